"""Members of other clients in a group with ours: under any leader every member gets partitions, and sticky members keep theirs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as AiokafkaSticky
from kafka import KafkaConsumer
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as KafkaPythonSticky

from chaffinch import Consumer, EmbeddedBroker, errors
from tests.consumer.conftest import ConsumerOf
from tests.consumer.polling import LIMIT_S, Member, partition_counts, poll_until, read, values_of, write

T = TypeVar("T")


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
@pytest.mark.parametrize("leader", ["ours", "theirs"])
def test_group_with_confluent_kafka(broker: EmbeddedBroker, name: str, consumer_of: ConsumerOf, strategy: str, leader: str) -> None:
    topic = f"{name}-t"
    broker.create_topic(topic, 6)
    ours = consumer_of(broker, partition_assignment_strategy=strategy)
    theirs = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": name,
            "partition.assignment.strategy": strategy,
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 50,
            "log_level": 0,
        }
    )
    their_values: list[bytes | None] = []

    def is_balanced(mine: int, others: int) -> bool:
        their_values.extend(message.value() for message in theirs.consume(10, 0.02) if message.error() is None)
        return (len(ours.assignment()), len(theirs.assignment())) == (mine, others)

    try:
        if leader == "ours":
            ours.subscribe([topic])
            poll_until(lambda: partition_counts(ours) == [6], ours)
            theirs.subscribe([topic])
        else:
            theirs.subscribe([topic])
            poll_until(lambda: is_balanced(0, 6))
            ours.subscribe([topic])
        poll_until(lambda: is_balanced(3, 3), ours)
        for partition in range(6):
            write(broker, topic, [b"%d" % partition], partition)
        found = poll_until(lambda: is_balanced(3, 3) and len(their_values) >= 3, ours)
        found += [] if len(found) >= 3 else read(ours, 3 - len(found))
        assert sorted(values_of(found) + their_values) == [b"%d" % partition for partition in range(6)]
    finally:
        theirs.close()
    poll_until(lambda: partition_counts(ours) == [6], ours)


class KafkaPythonMember:
    """A thread of its own polls it, as its rebalances need."""

    def __init__(
        self, broker: EmbeddedBroker, name: str, topic: str, assignor: type[RangePartitionAssignor] | type[KafkaPythonSticky]
    ) -> None:
        self._consumer = KafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap_servers,
            group_id=name,
            partition_assignment_strategy=(assignor,),
            heartbeat_interval_ms=50,
        )
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._done.is_set():
            self._consumer.poll(timeout_ms=50)

    def assignment(self) -> Collection[Any]:
        return set(self._consumer.assignment())

    def close(self) -> None:
        self._done.set()
        self._thread.join()
        self._consumer.close()


@pytest.mark.parametrize(("strategy", "assignor"), [("range", RangePartitionAssignor), ("sticky", KafkaPythonSticky)])
def test_group_with_kafka_python(
    broker: EmbeddedBroker,
    name: str,
    consumer_of: ConsumerOf,
    strategy: str,
    assignor: type[RangePartitionAssignor] | type[KafkaPythonSticky],
) -> None:
    """Its sticky members write a version before their user data, as no other client does: each side ignores the other's user data.

    Ours leads: as a leader theirs sometimes begins without the topic's metadata, gives out nothing, and then hangs.
    """
    topic = f"{name}-t"
    broker.create_topic(topic, 4)
    ours = consumer_of(broker, partition_assignment_strategy=strategy)
    ours.subscribe([topic])
    poll_until(lambda: partition_counts(ours) == [4], ours)
    theirs = KafkaPythonMember(broker, name, topic, assignor)
    try:
        poll_until(lambda: partition_counts(ours, theirs) == [2, 2], ours)
    finally:
        theirs.close()
    poll_until(lambda: partition_counts(ours) == [4], ours)


class AiokafkaMembers:
    """Sticky members on an event loop in a thread of its own, where they rebalance without being polled."""

    def __init__(self, broker: EmbeddedBroker, name: str, topic: str) -> None:
        self._options = {"bootstrap_servers": broker.bootstrap_servers, "group_id": name, "heartbeat_interval_ms": 50}
        self._topic = topic
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._members: list[AIOKafkaConsumer] = []

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def join(self) -> Future[AIOKafkaConsumer]:
        """Of a member that is in the group as soon as the others have joined again, for which they are to be polled."""
        return self._run(self._started())

    async def _started(self) -> AIOKafkaConsumer:
        # What a member remembers is its assignor's class's: each has one of its own.
        assignor = type("OneSticky", (AiokafkaSticky,), {})
        member = AIOKafkaConsumer(self._topic, partition_assignment_strategy=(assignor,), **self._options)
        self._members.append(member)
        await member.start()
        return member

    async def _stopped(self) -> None:
        # At once: one that joins again waits for the others before it stops.
        await asyncio.gather(*(member.stop() for member in self._members))

    def close(self) -> None:
        self._run(self._stopped()).result(LIMIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.mark.parametrize("leader", ["ours", "theirs"])
def test_sticky_members_of_aiokafka_and_chaffinch_keep_their_partitions(
    broker: EmbeddedBroker, name: str, consumer_of: ConsumerOf, leader: str
) -> None:
    """The leader, who was there first, has read what two members of the other kind remember; else another member would shuffle them."""
    topic = f"{name}-t"
    broker.create_topic(topic, 12)
    others = AiokafkaMembers(broker, name, topic)
    ours: list[Consumer] = []
    members: list[Member] = []

    def join(client: str) -> None:
        if client == "theirs":
            joins = others.join()
            poll_until(joins.done, *ours)
            members.append(joins.result())
        else:
            ours.append(consumer_of(broker, partition_assignment_strategy="sticky"))
            ours[-1].subscribe([topic])
            members.append(ours[-1])
        poll_until(lambda: partition_counts(*members) == [12 // len(members)] * len(members), *ours)

    try:
        follows = {"ours": "theirs", "theirs": "ours"}[leader]
        for client in (leader, follows, follows):
            join(client)
        before = [{(tp.topic, tp.partition) for tp in member.assignment()} for member in members]
        join(leader)
        after = [{(tp.topic, tp.partition) for tp in member.assignment()} for member in members]
        assert all(kept < had for kept, had in zip(after, before, strict=False)), (before, after)
    finally:
        for consumer in ours:
            consumer.close(5)
        others.close()


def test_group_of_the_consumer_protocol_is_named(broker: EmbeddedBroker, topic: str, name: str, consumer_of: ConsumerOf) -> None:
    """KIP-848: no assignor of ours would help."""
    theirs = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": name, "group.protocol": "consumer", "log_level": 0}
    )
    try:
        theirs.subscribe([topic])
        poll_until(lambda: theirs.poll(0.02) is None and bool(theirs.assignment()))
        ours = consumer_of(broker)
        ours.subscribe([topic])
        with pytest.raises(errors.InconsistentGroupProtocolException, match="the group uses the consumer protocol"):
            ours.poll(LIMIT_S)
    finally:
        theirs.close()
