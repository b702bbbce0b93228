"""Other clients at topics, their options and their records: what they administer, and how they read in sessions and by topic ids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kafka
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, OffsetSpec

from chaffinch import EmbeddedBroker


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"orders": 3}) as broker:
        yield broker


@pytest.fixture
def admin(broker: EmbeddedBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


def only(futures: dict[Any, Any]) -> Any:
    """What the one request of a call came to."""
    (future,) = futures.values()
    return future.result(60)


def write(broker: EmbeddedBroker, first: int, last: int) -> None:
    """Numbers as values, in turn to the three partitions."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
    for number in range(first, last):
        producer.produce("orders", b"%d" % number, partition=number % 3)
    assert producer.flush(10) == 0


def test_kafka_python_reads_in_a_session(broker: EmbeddedBroker) -> None:
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest", fetch_max_wait_ms=50)
    partitions = [kafka.TopicPartition("orders", index) for index in range(3)]
    consumer.assign(partitions)
    seen: list[int] = []
    try:
        for goal in (30, 60, 90):
            write(broker, goal - 30, goal)
            if goal == 60:
                consumer.pause(partitions[0])  # It leaves the session and comes back.
            while len(seen) < goal and not (goal == 60 and len(seen) == 50):
                seen += [int(record.value) for records in consumer.poll(1000).values() for record in records]
            consumer.resume(partitions[0])
    finally:
        consumer.close()
    assert sorted(seen) == list(range(90))
    assert [number for number in seen if number % 3 == 1] == list(range(1, 90, 3))


def test_confluent_kafka_reads_recreated_topic_by_id(broker: EmbeddedBroker, admin: AdminClient) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"})
    try:
        for first in (0, 9):
            write(broker, first, first + 9)
            consumer.assign([TopicPartition("orders", index, 0) for index in range(3)])
            seen = [consumer.poll(10) for _ in range(9)]
            assert sorted(int(message.value() or b"") for message in seen if message is not None) == list(range(first, first + 9))
            consumer.unassign()
            only(admin.delete_topics(["orders"]))
            broker.create_topic("orders", partitions=3)
    finally:
        consumer.close()


def test_partitions_are_added(broker: EmbeddedBroker, admin: AdminClient) -> None:
    only(admin.create_partitions([NewPartitions("orders", 5)]))
    assert len(admin.list_topics("orders", timeout=60).topics["orders"].partitions) == 5
    with pytest.raises(Exception, match="5 partitions"):
        only(admin.create_partitions([NewPartitions("orders", 4)]))


def test_records_are_deleted_and_offsets_found(broker: EmbeddedBroker, admin: AdminClient) -> None:
    write(broker, 0, 30)
    tp = TopicPartition("orders", 0)
    assert only(admin.delete_records([TopicPartition("orders", 0, 4)])).low_watermark == 4
    found = {
        name: only(admin.list_offsets({tp: spec})).offset
        for name, spec in {"first": OffsetSpec.earliest(), "last": OffsetSpec.latest(), "late": OffsetSpec.for_timestamp(2**50)}.items()
    }
    assert found == {"first": 4, "last": 10, "late": -1}


def test_options_are_described_and_changed(admin: AdminClient) -> None:
    resource = ConfigResource(ConfigResource.Type.TOPIC, "orders")
    change = ConfigResource(
        ConfigResource.Type.TOPIC,
        "orders",
        incremental_configs=[
            ConfigEntry("retention.ms", "1234", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
        ],
    )
    only(admin.incremental_alter_configs([change]))
    entries = only(admin.describe_configs([resource]))
    assert (entries["retention.ms"].value, entries["retention.ms"].is_default) == ("1234", False)
    assert entries["cleanup.policy"].value == "delete,compact"
    broker_entries = only(admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, "0")]))
    assert broker_entries["num.partitions"].value == "1"
