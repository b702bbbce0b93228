"""A topic is deleted and created again while a consumer runs: each new record is read once, however it commits.

Each way to commit, with coordinators that take topic ids and with those that take names only, and with a new log that is shorter or longer
than the position in the old one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from chaffinch import Consumer, EmbeddedBroker, Producer
from chaffinch.admin import topics
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import RecordDeserializationException
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core.transactions import manager
from chaffinch.protocol import apis
from tests.consumer.conftest import ConsumerOf
from tests.consumer.polling import read

OLD = 20
Way = Callable[[Consumer, list[bytes | None]], None]
LIMITED = {
    "OffsetCommit": range(2, 10),
    "OffsetFetch": range(1, 10),
    "TxnOffsetCommit": range(6),
}


@pytest.fixture(params=["by id", "by name"])
def coordinator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """`by name`: as with Apache Kafka 2.8 to 4.1."""
    if request.param == "by name":
        limited = {key: dataclasses.replace(api, reach=LIMITED[api.name]) if api.name in LIMITED else api for key, api in apis.APIS.items()}
        monkeypatch.setattr(apis, "APIS", limited)
        monkeypatch.setattr(apis, "_BY_MESSAGE", {message: api for api in limited.values() for message in (api.request, api.response)})
    return str(request.param)


def recreate(broker: EmbeddedBroker, topic: str, count: int, partitions: int = 1) -> list[bytes]:
    """Delete the topic, create it again, and write records; what they are."""
    with SyncClient(broker.bootstrap_servers) as client:
        topics.delete_topics(client, [topic])
    broker.create_topic(topic, partitions)
    return write(broker, topic, b"new", count)


def write(broker: EmbeddedBroker, topic: str, text: bytes, count: int) -> list[bytes]:
    values = [b"%s %d" % (text, number) for number in range(count)]
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for value in values:
            producer.send(topic, value, partition=0)
    return values


def by_poll(consumer: Consumer, given: list[bytes | None]) -> None:
    given += [record.value for record in consumer.poll(0)]


def by_commit(consumer: Consumer, given: list[bytes | None]) -> None:
    consumer.commit()


def by_asynchronous_commit(consumer: Consumer, given: list[bytes | None]) -> None:
    consumer.commit(asynchronous=True)
    consumer.committed(consumer.assignment())


def in_on_revoke(consumer: Consumer, given: list[bytes | None]) -> None:
    consumer.unsubscribe()


def in_close(consumer: Consumer, given: list[bytes | None]) -> None:
    consumer.close()


AUTOMATIC: dict[str, Any] = {"enable_auto_commit": True, "auto_commit_interval_ms": 0}
WAYS: dict[Way, dict[str, Any]] = {
    by_poll: AUTOMATIC,
    in_close: {"enable_auto_commit": True, "auto_commit_interval_ms": 10**6},
    by_commit: {"enable_auto_commit": False},
    by_asynchronous_commit: {"enable_auto_commit": False},
    in_on_revoke: {"enable_auto_commit": False},
}


@pytest.mark.parametrize("count", [10, 30], ids=["shorter", "longer"])
@pytest.mark.parametrize("way", WAYS)
def test_each_record_of_the_new_topic_is_read_once(
    broker: EmbeddedBroker, topic: str, coordinator: str, consumer_of: ConsumerOf, way: Way, count: int
) -> None:
    write(broker, topic, b"old", OLD)
    consumer = consumer_of(broker, **WAYS[way])
    consumer.subscribe([topic], on_revoke=(lambda _: consumer.commit()) if way is in_on_revoke else None)
    assert len(read(consumer, OLD)) == OLD
    new = recreate(broker, topic, count)
    given: list[bytes | None] = []
    way(consumer, given)
    consumer.close()
    after = consumer_of(broker, enable_auto_commit=False)
    after.subscribe([topic])
    given += [record.value for record in read(after, count - len(given))]
    assert given == new


@pytest.mark.parametrize("count", [10, 30], ids=["shorter", "longer"])
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky", None], ids=["eager", "cooperative", "assigned"])
@pytest.mark.parametrize("partitions", [1, 2])
def test_same_consumer_reads_the_new_topic(
    broker: EmbeddedBroker, topic: str, coordinator: str, consumer_of: ConsumerOf, strategy: str | None, count: int, partitions: int
) -> None:
    """Also where the new topic has other partitions, which leads to a rebalance."""
    write(broker, topic, b"old", OLD)
    consumer = consumer_of(broker, **AUTOMATIC, **({"partition_assignment_strategy": strategy} if strategy else {}))
    if strategy:
        consumer.subscribe([topic])
    else:
        consumer.assign([TopicPartition(topic, 0)])
    assert len(read(consumer, OLD)) == OLD
    new = recreate(broker, topic, count, partitions)
    assert [record.value for record in read(consumer, count)] == new


@pytest.mark.parametrize("count", [10, 30], ids=["shorter", "longer"])
@pytest.mark.parametrize("version", [1, 2], ids=["transaction version 1", "transaction version 2"])
def test_transaction_with_offsets_of_the_deleted_topic(
    name: str,
    coordinator: str,
    consumer_of: ConsumerOf,
    count: int,
    version: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(manager, "transaction_version_of", lambda _levels: version)
    config = {"group.initial.rebalance.delay.ms": 0, "auto.create.topics.enable": False}
    with EmbeddedBroker(topics=[name, "out"], config=config) as broker:
        write(broker, name, b"old", OLD)
        consumer = consumer_of(broker, enable_auto_commit=False)
        consumer.subscribe([name])
        records = read(consumer, OLD)
        new = recreate(broker, name, count)
        with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=name) as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("out", b"made of what was read")
                offsets = {record.topic_partition: record.offset + 1 for record in records}
                producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        assert broker.read("out").num_rows == 1
        assert "left out of the transaction" in caplog.text
        consumer.close()
        after = consumer_of(broker, enable_auto_commit=False)
        after.subscribe([name])
        assert [record.value for record in read(after, count)] == new
        after.close()


def test_partition_is_not_paused_in_the_new_topic(broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
    write(broker, topic, b"old", OLD)
    consumer = consumer_of(broker)
    consumer.assign([TopicPartition(topic, 0)])
    assert len(read(consumer, OLD)) == OLD
    consumer.pause(consumer.assignment())
    new = recreate(broker, topic, 3)
    consumer.commit()  # Finds that the topic is another one; fetching does, too, once something is fetched.
    assert [record.value for record in read(consumer, 3)] == new
    assert not consumer.paused()


def test_iterated_records_of_the_deleted_topic_are_not_committed(broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
    write(broker, topic, b"old", OLD)
    consumer = consumer_of(broker, enable_auto_commit=False)
    consumer.assign([TopicPartition(topic, 0)])
    given, new = [], []
    for record in consumer:
        given.append(record.value)
        if len(given) == OLD // 2:
            new = recreate(broker, topic, 30)
            consumer.commit()
        if record.value == b"new 29":
            break
    assert given == [b"old %d" % number for number in range(OLD // 2)] + new


def test_undeserializable_record_of_the_deleted_topic_is_forgotten(broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
    """The error of a record of the deleted topic is not raised for the record that has its offset in the new one."""

    def reject_old(value: bytes) -> bytes:
        if value.startswith(b"old"):
            raise ValueError(value)
        return value

    write(broker, topic, b"old", 1)
    consumer = consumer_of(broker, value_deserializer=reject_old, enable_auto_commit=False)
    consumer.assign([TopicPartition(topic, 0)])
    with pytest.raises(RecordDeserializationException):
        read(consumer, 1)
    consumer._calls._rejected[TopicPartition(topic, 0)] = 0, RecordDeserializationException("as of a second record of the same poll")
    new = recreate(broker, topic, 3)
    consumer.commit()
    assert [record.value for record in read(consumer, 3)] == new
