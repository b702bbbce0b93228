"""Groups of other clients' consumers against an EmbeddedBroker: both protocols, static members, cooperative rebalance, transactions."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer

from chaffinch import EmbeddedBroker

LIMIT_SECONDS = 180
TOPIC = "orders"
PARTITIONS = 4
RECORDS = 100


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    config = {
        "group.consumer.heartbeat.interval.ms": 100,
        "group.consumer.min.heartbeat.interval.ms": 100,
    }
    with EmbeddedBroker(config=config, brokers=2) as broker:
        broker.create_topic(TOPIC, PARTITIONS)
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        for number in range(RECORDS):
            producer.produce(TOPIC, key=str(number), value=str(number))
        assert producer.flush(LIMIT_SECONDS) == 0
        yield broker


GROUPS = itertools.count()


@pytest.fixture
def group() -> str:
    return f"group-{next(GROUPS)}"


def until(is_done: Callable[[], bool], *polls: Callable[[], Any]) -> None:
    """Drive clients by their own blocking calls until something is so."""
    end = monotonic() + LIMIT_SECONDS
    while not is_done():
        assert monotonic() < end, f"not within {LIMIT_SECONDS} s"
        for poll in polls:
            poll()


class Confluent:
    """A consumer of confluent-kafka, closed at the end."""

    def __init__(self, broker: EmbeddedBroker, group: str, protocol: str = "classic", **config: Any) -> None:
        named = {name.replace("_", "."): value for name, value in config.items()}
        if protocol == "classic":
            named = {"session.timeout.ms": 30_000, "heartbeat.interval.ms": 100, **named}
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": group,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
                **named,
            }
        )
        self.values: list[bytes] = []
        self.revoked: list[int] = []
        self.is_open = True

    def subscribe(self, *topics: str) -> Confluent:
        self.consumer.subscribe(list(topics), on_revoke=self._on_revoke)
        return self

    def _on_revoke(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self.revoked += [partition.partition for partition in partitions]

    def poll(self) -> None:
        message = self.consumer.poll(0.1)
        if message is not None:
            assert message.error() is None, message.error()
            self.values.append(message.value() or b"")

    @property
    def partitions(self) -> set[int]:
        return {partition.partition for partition in self.consumer.assignment()}

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self.consumer.close()


@pytest.fixture
def confluent(broker: EmbeddedBroker, group: str) -> Iterator[Callable[..., Confluent]]:
    opened: list[Confluent] = []

    def open_one(protocol: str = "classic", **config: Any) -> Confluent:
        opened.append(Confluent(broker, group, protocol, **config))
        return opened[-1]

    yield open_one
    for consumer in opened:
        consumer.close()


PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])


@PROTOCOLS
def test_two_members_share_and_one_takes_over(confluent: Callable[..., Confluent], protocol: str) -> None:
    first, second = confluent(protocol).subscribe(TOPIC), confluent(protocol).subscribe(TOPIC)
    until(lambda: len(first.partitions) == len(second.partitions) == 2, first.poll, second.poll)
    assert first.partitions | second.partitions == set(range(PARTITIONS))
    second.close()
    until(lambda: first.partitions == set(range(PARTITIONS)), first.poll)


@PROTOCOLS
def test_committed_records_are_not_read_again(confluent: Callable[..., Confluent], protocol: str) -> None:
    first = confluent(protocol).subscribe(TOPIC)
    until(lambda: len(first.values) == RECORDS, first.poll)
    first.consumer.commit(asynchronous=False)
    first.close()
    second = confluent(protocol).subscribe(TOPIC)
    until(lambda: len(second.partitions) == PARTITIONS, second.poll)
    positions = second.consumer.committed([TopicPartition(TOPIC, index) for index in range(PARTITIONS)], timeout=LIMIT_SECONDS)
    assert sum(position.offset for position in positions) == RECORDS
    second.poll()
    assert second.values == []


@PROTOCOLS
def test_restarted_static_member_keeps_its_partitions(confluent: Callable[..., Confluent], protocol: str) -> None:
    first = confluent(protocol, group_instance_id="i-1").subscribe(TOPIC)
    second = confluent(protocol, group_instance_id="i-2").subscribe(TOPIC)
    until(lambda: len(first.partitions) == len(second.partitions) == 2, first.poll, second.poll)
    kept, mine = first.partitions, second.partitions
    first.revoked.clear()
    second.close()
    again = confluent(protocol, group_instance_id="i-2").subscribe(TOPIC)
    until(lambda: again.partitions == mine, first.poll, again.poll)
    assert (first.partitions, first.revoked) == (kept, [])


def test_cooperative_members_only_give_back_what_moves(confluent: Callable[..., Confluent]) -> None:
    config = {"partition_assignment_strategy": "cooperative-sticky"}
    first = confluent(**config).subscribe(TOPIC)
    until(lambda: len(first.partitions) == PARTITIONS, first.poll)
    second = confluent(**config).subscribe(TOPIC)
    until(lambda: len(first.partitions) == len(second.partitions) == 2, first.poll, second.poll)
    assert set(first.revoked) == second.partitions


def test_pattern_subscription_reads_matching_topics(broker: EmbeddedBroker, group: str, confluent: Callable[..., Confluent]) -> None:
    """KIP-848: the broker matches, and a topic that comes later is found."""
    broker.create_topic(f"{group}-one", 1)
    member = confluent("consumer").subscribe(f"^{group}-.*")
    until(lambda: len(member.consumer.assignment()) == 1, member.poll)
    broker.create_topic(f"{group}-two", 2)
    until(lambda: len(member.consumer.assignment()) == 3, member.poll)


def test_offset_fetch_waits_for_open_transaction(broker: EmbeddedBroker, group: str, confluent: Callable[..., Confluent]) -> None:
    """KIP-447: the member's generation goes with the offsets; who takes over reads where the transaction ended."""
    first = confluent().subscribe(TOPIC)
    until(lambda: len(first.values) == RECORDS, first.poll)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": group, "log_level": 0})
    producer.init_transactions(LIMIT_SECONDS)
    producer.begin_transaction()
    positions = first.consumer.position(first.consumer.assignment())
    producer.send_offsets_to_transaction(positions, first.consumer.consumer_group_metadata(), LIMIT_SECONDS)
    second = confluent(isolation_level="read_committed").subscribe(TOPIC)
    first.close()
    tps = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
    with pytest.raises(confluent_kafka.KafkaException):
        second.consumer.committed(tps, timeout=1)
    producer.commit_transaction(LIMIT_SECONDS)
    assert sum(tp.offset for tp in second.consumer.committed(tps, timeout=LIMIT_SECONDS)) == RECORDS


def test_member_of_another_generation_cannot_commit_in_transaction(
    broker: EmbeddedBroker, group: str, confluent: Callable[..., Confluent]
) -> None:
    first = confluent().subscribe(TOPIC)
    until(lambda: len(first.partitions) == PARTITIONS, first.poll)
    metadata = first.consumer.consumer_group_metadata()
    positions = [TopicPartition(TOPIC, 0, 1)]
    second = confluent().subscribe(TOPIC)
    until(lambda: len(second.partitions) == 2, first.poll, second.poll)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": group, "log_level": 0})
    producer.init_transactions(LIMIT_SECONDS)
    producer.begin_transaction()
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        producer.send_offsets_to_transaction(positions, metadata, LIMIT_SECONDS)
    assert caught.value.args[0].txn_requires_abort()
    producer.abort_transaction(LIMIT_SECONDS)


@PROTOCOLS
def test_admin_requests_for_groups_succeed(broker: EmbeddedBroker, group: str, confluent: Callable[..., Confluent], protocol: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    member = confluent(protocol, client_id="mine").subscribe(TOPIC)
    until(lambda: len(member.values) == RECORDS, member.poll)
    member.consumer.commit(asynchronous=False)
    listed = {found.group_id: found for found in admin.list_consumer_groups(request_timeout=LIMIT_SECONDS).result().valid}
    assert (listed[group].state.name, listed[group].type.name) == ("STABLE", protocol.upper())
    described = admin.describe_consumer_groups([group], request_timeout=LIMIT_SECONDS)[group].result()
    assert [(found.client_id, found.host, len(found.assignment.topic_partitions)) for found in described.members] == [
        ("mine", "/127.0.0.1", PARTITIONS)
    ]
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        admin.delete_consumer_groups([group], request_timeout=LIMIT_SECONDS)[group].result()
    assert caught.value.args[0].code() == confluent_kafka.KafkaError.NON_EMPTY_GROUP
    member.close()
    request = [ConsumerGroupTopicPartitions(group, [TopicPartition(TOPIC, 0, 7)])]
    admin.alter_consumer_group_offsets(request, request_timeout=LIMIT_SECONDS)[group].result()
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result().topic_partitions
    assert {tp.partition: tp.offset for tp in found}[0] == 7
    admin.delete_consumer_groups([group], request_timeout=LIMIT_SECONDS)[group].result()
    assert group not in {found.group_id for found in admin.list_consumer_groups().result().valid}


@PROTOCOLS
def test_members_continue_after_broker_restart(protocol: str) -> None:
    """The broker is killed: no member joins again, and later records are read."""
    with EmbeddedBroker(topics={TOPIC: {}}) as broker:
        member = Confluent(broker, "g", protocol).subscribe(TOPIC)
        try:
            until(lambda: len(member.partitions) == 1, member.poll)
            broker.restart(kill=True)
            producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
            producer.produce(TOPIC, b"afterwards")
            assert producer.flush(LIMIT_SECONDS) == 0
            until(lambda: member.values == [b"afterwards"], member.poll)
            member.consumer.commit(asynchronous=False)
            assert member.revoked == []
        finally:
            member.close()


def test_kafka_python_members_share_partitions(broker: EmbeddedBroker, group: str) -> None:
    def consumer() -> KafkaConsumer:
        return KafkaConsumer(
            TOPIC,
            bootstrap_servers=broker.bootstrap_servers,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=30_000,
            heartbeat_interval_ms=100,
        )

    first = consumer()
    second = None
    try:
        values: list[bytes] = []

        def poll(wait_ms: int = 100) -> None:
            for records in first.poll(wait_ms).values():
                values.extend(record.value for record in records)

        until(lambda: len(values) == RECORDS, lambda: poll(5_000))  # Time enough to join on a busy machine.
        first.commit()
        second = consumer()
        until(lambda: len(first.assignment()) == len(second.assignment()) == 2, poll, lambda: second.poll(100))
        assert len(values) == RECORDS
        second.close()
        until(lambda: len(first.assignment()) == PARTITIONS, poll)
    finally:
        first.close()
        if second is not None:
            second.close()


def test_aiokafka_members_share_partitions(broker: EmbeddedBroker, group: str) -> None:
    async def main() -> None:
        def consumer() -> AIOKafkaConsumer:
            return AIOKafkaConsumer(
                TOPIC,
                bootstrap_servers=broker.bootstrap_servers,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                session_timeout_ms=30_000,
                heartbeat_interval_ms=100,
            )

        first, second = consumer(), consumer()
        await first.start()
        try:
            values = [await first.getone() for _ in range(RECORDS)]
            assert len(values) == RECORDS
            await first.commit()
            await second.start()
            try:
                while not len(first.assignment()) == len(second.assignment()) == 2:
                    await first.getmany(timeout_ms=50)
                    await second.getmany(timeout_ms=50)
            finally:
                await second.stop()
            while len(first.assignment()) != PARTITIONS:
                await first.getmany(timeout_ms=50)
        finally:
            await first.stop()

    asyncio.run(asyncio.wait_for(main(), LIMIT_SECONDS))
