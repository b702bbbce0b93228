"""Types of records, tables and futures."""

import json
from typing import Any, assert_type

import pyarrow as pa

from chaffinch import (
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    ConsumerRecord,
    EmbeddedBroker,
    OffsetAndMetadata,
    Producer,
    RecordFuture,
    RecordMetadata,
    SendTableResult,
    TopicPartition,
    errors,
)

SERVERS = "localhost:9092"


def text(data: bytes) -> str:
    """A deserializer with a type."""
    return data.decode()


def number(data: bytes) -> int:
    """Another one."""
    return int(data)


def records_without_deserializers_have_bytes() -> None:
    consumer = Consumer(bootstrap_servers=SERVERS)
    assert_type(consumer, Consumer[bytes, bytes])
    assert_type(Consumer({"bootstrap.servers": SERVERS}), Consumer[bytes, bytes])
    for record in consumer.poll(timeout=1):
        assert_type(record.key, bytes | None)
        assert_type(record.value, bytes | None)
        record.value.decode()  # wrong
        (record.value or b"").decode()
        assert_type(record.topic_partition, TopicPartition)
    for each in consumer:
        assert_type(each, ConsumerRecord[bytes, bytes])


async def asyncio_clients_have_the_same_types() -> None:
    async with AsyncConsumer(bootstrap_servers=SERVERS, value_deserializer=number) as consumer:
        assert_type(consumer, AsyncConsumer[bytes, int])
        assert_type(await consumer.poll(), list[ConsumerRecord[bytes, int]])
        async for record in consumer:
            assert_type(record, ConsumerRecord[bytes, int])
    async with AsyncProducer(bootstrap_servers=SERVERS) as producer:
        future = await producer.send("orders", b"v")
        assert_type(await future, RecordMetadata)
        assert_type(await (await producer.send_table("orders", pa.table({"value": [b"v"]}))), SendTableResult)
        await producer.send("orders", b"v", partition="0")  # wrong


def deserializers_decide() -> None:
    assert_type(Consumer(bootstrap_servers=SERVERS, value_deserializer=number), Consumer[bytes, int])
    assert_type(Consumer(bootstrap_servers=SERVERS, key_deserializer=text), Consumer[str, bytes])
    assert_type(Consumer({"bootstrap.servers": SERVERS}, value_deserializer=json.loads), Consumer[bytes, Any])
    consumer = Consumer(bootstrap_servers=SERVERS, key_deserializer=text, value_deserializer=number)
    for record in consumer.poll():
        assert_type(record.key, str | None)
        assert_type(record.value, int | None)
        record.value + "1"  # wrong
    by_name = Consumer(bootstrap_servers=SERVERS, value_deserializer="orders.parse")
    assert_type(by_name, Consumer[Any, Any])
    in_mapping: Consumer[str, int] = Consumer({"key.deserializer": text, "value.deserializer": number})
    assert_type(in_mapping.poll(), list[ConsumerRecord[str, int]])
    different: Consumer[bytes, str] = Consumer(bootstrap_servers=SERVERS, value_deserializer=number)  # wrong
    different.close()


def takes_consumer(consumer: Consumer) -> bytes | None:
    """Without arguments it is `Consumer[bytes, bytes]`."""
    return consumer.poll()[0].value


takes_consumer(Consumer(bootstrap_servers=SERVERS))
takes_consumer(Consumer(bootstrap_servers=SERVERS, value_deserializer=number))  # wrong


def tables_are_arrow_tables(consumer: Consumer, broker: EmbeddedBroker) -> None:
    assert_type(consumer.poll_table(timeout=1), pa.Table)
    assert_type(broker.read("orders"), pa.Table)
    consumer.poll_table(timeout_ms=5)  # wrong


def futures_have_results(producer: Producer, table: pa.Table) -> None:
    future = producer.send("orders", b"tea", key=b"1")
    assert_type(future, RecordFuture[RecordMetadata])
    assert_type(future.result(timeout=5).offset, int)
    result = producer.send_table("orders", table).result()
    assert_type(result, SendTableResult)
    assert_type(result.rejected, pa.Table)
    assert_type(result.errors(), dict[int, errors.KafkaException])
    producer.send("orders", b"tea", partition="0")  # wrong
    producer.send("orders", b"tea", keys=b"1")  # wrong
    producer.flush(timeout="5")  # wrong


async def futures_can_be_awaited(producer: Producer) -> None:
    assert_type(await producer.send("orders", b"tea"), RecordMetadata)


def offsets(producer: Producer, consumer: Consumer) -> None:
    with producer.transaction() as same:
        assert_type(same, Producer)
        producer.send_offsets_to_transaction({TopicPartition("orders", 0): 5}, consumer.group_metadata())
    consumer.commit({TopicPartition("orders", 0): OffsetAndMetadata(5)})
    consumer.commit({"orders": 5})  # wrong
    consumer.subscribe(5)  # wrong


def errors_have_groups(error: errors.KafkaException) -> bool:
    assert_type(error.stored, errors.Stored)
    assert_type(error.group, errors.Group)
    return error.stored is errors.Stored.NO
