"""Options as keywords: misspelled names and values of another type."""

import json
from pathlib import Path

from pyspark.sql import SparkSession

from chaffinch import AsyncProducer, BrokerOptions, Consumer, ConsumerOptions, EmbeddedBroker, Producer, ProducerOptions
from chaffinch.admin import Admin, AdminOptions
from chaffinch.spark import KafkaSink, KafkaSinkOptions

SERVERS = "localhost:9092"

Producer({"bootstrap.servers": SERVERS, "linger.ms": "5"})
Producer(bootstrap_servers=SERVERS, linger_ms=5, acks="all", enable_idempotence=True, ssl_ca_location=Path("ca.pem"))
Producer(bootstrap_servers=[SERVERS], acks=1, compression_type="zstd", value_serializer=json.dumps, transactional_id=None)
Producer({"bootstrap.servers": SERVERS}, linger_ms=5)
Producer(bootstrap_servers=SERVERS, linger_mss=5)  # wrong
Producer(bootstrap_servers=SERVERS, linger_ms="abc")  # wrong
Producer(bootstrap_servers=SERVERS, linger_ms=0.5)  # wrong
Producer(bootstrap_servers=SERVERS, acks="al")  # wrong
Producer(bootstrap_servers=SERVERS, acks=2)  # wrong
Producer(bootstrap_servers=SERVERS, compression_type="brotli")  # wrong
Producer(bootstrap_servers=9092)  # wrong
Producer(bootstrap_servers=SERVERS, group_id="billing")  # wrong
Producer(SERVERS)  # wrong
AsyncProducer(bootstrap_servers=SERVERS, linger_ms=5)
AsyncProducer(bootstrap_servers=SERVERS, linger_mss=5)  # wrong
AsyncProducer(bootstrap_servers=SERVERS, linger_ms="abc")  # wrong

Consumer(bootstrap_servers=SERVERS, group_id="billing", auto_offset_reset="earliest", partition_assignment_strategy=["range"])
Consumer(bootstrap_servers=SERVERS, group_ids="billing")  # wrong
Consumer(bootstrap_servers=SERVERS, max_poll_records="many")  # wrong
Consumer(bootstrap_servers=SERVERS, isolation_level="committed")  # wrong
Consumer(bootstrap_servers=SERVERS, linger_ms=5)  # wrong
Consumer(bootstrap_servers=SERVERS, value_deserializer=5)  # wrong

Admin(bootstrap_servers=SERVERS, request_timeout_ms=1000)
Admin(bootstrap_servers=SERVERS, request_timeout=1000)  # wrong
Admin(bootstrap_servers=SERVERS, default_api_timeout_ms="5 s")  # wrong

EmbeddedBroker(topics=["orders"], log_retention_ms=1000, log_cleanup_policy="compact", config={"listener.name.x.ssl.client.auth": "none"})
EmbeddedBroker(topics={"orders": {"partitions": 3}}, data_dir=Path("data"), brokers=3)
EmbeddedBroker(log_retention_mss=1000)  # wrong
EmbeddedBroker(log_retention_ms="an hour")  # wrong
EmbeddedBroker(topic=["orders"])  # wrong

KafkaSink(topic="orders", kafka_bootstrap_servers=SERVERS, kafka_acks="all", deliveryGuarantee="exactly-once", name="orders")
KafkaSink({"kafka.bootstrap.servers": SERVERS}, topic="orders", checkpointLocation=Path("checkpoint"))
KafkaSink(topics="orders", kafka_bootstrap_servers=SERVERS)  # wrong
KafkaSink(topic="orders", kafka_bootstrap_servers=SERVERS, kafka_acks=2)  # wrong
KafkaSink(topic="orders", kafka_bootstrap_servers=SERVERS, deliveryGuarantee="exactly once")  # wrong
KafkaSink(topic="orders", kafka_bootstrap_servers=SERVERS, attempts_max="3")  # wrong


def with_stored_options() -> None:
    """Options in variables of their own."""
    common: ProducerOptions = {"bootstrap_servers": SERVERS, "linger_ms": 5}
    Producer(**common)
    Producer({"acks": "all"}, **common)
    misspelled: ProducerOptions = {"bootstrap_server": SERVERS}  # wrong
    Producer(**misspelled)
    consumer: ConsumerOptions = {"bootstrap_servers": SERVERS}
    Consumer(**consumer)
    broker: BrokerOptions = {"num_partitions": 3}
    EmbeddedBroker(**broker)
    sink: KafkaSinkOptions = {"topic": "orders"}
    KafkaSink(**sink)
    admin: AdminOptions = {"bootstrap_servers": SERVERS, "retries": 3}  # wrong
    Admin(**admin)


def for_each_batch(spark: SparkSession, sink: KafkaSink) -> None:
    """A sink is a function for `foreachBatch`."""
    spark.readStream.load().writeStream.foreachBatch(sink).start()
