"""Members of one group: partitions are assigned, revoked, taken over and lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial

import pytest

from chaffinch import Consumer, EmbeddedBroker, OffsetAndMetadata, TopicPartition, errors
from chaffinch.errors import KafkaException
from tests.consumer.conftest import ConsumerOf
from tests.consumer.polling import LIMIT_S, committed, partition_counts, poll_until, read, values_of, write

STRATEGIES = ["range", "roundrobin", "sticky", "cooperative-sticky"]


def is_balanced(consumers: Iterable[Consumer], wanted: list[int]) -> bool:
    return partition_counts(*consumers) == wanted


class CallbackLog:
    """Records the calls of rebalance callbacks, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def listeners(self) -> dict[str, Callable[[list[TopicPartition]], None]]:
        return {f"on_{kind}": partial(self._record, kind) for kind in ("assign", "revoke", "lost")}

    def _record(self, kind: str, tps: list[TopicPartition]) -> None:
        self.events.append((kind, len(tps)))

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]


class TestRebalances:
    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_members_share_partitions_and_take_over(
        self, broker: EmbeddedBroker, name: str, consumer_of: ConsumerOf, strategy: str
    ) -> None:
        topic = f"{name}-t"
        broker.create_topic(topic, 6)
        members = [consumer_of(broker, partition_assignment_strategy=strategy, client_id=f"m{number}") for number in range(3)]
        callbacks = [CallbackLog() for _ in members]
        expected = ([6], [3, 3], [2, 2, 2])
        for number, member in enumerate(members):
            member.subscribe([topic], **callbacks[number].listeners())
            there = members[: number + 1]
            poll_until(partial(is_balanced, there, expected[number]), *there)
        assert {tp for member in members for tp in member.assignment()} == {TopicPartition(topic, index) for index in range(6)}
        members[0].close()
        poll_until(lambda: partition_counts(*members[1:]) == [3, 3], *members[1:])
        assert callbacks[0].events[-1] == ("revoke", 2)
        assert all("lost" not in one.kinds() for one in callbacks)
        eager = [("assign", 6), ("revoke", 6), ("assign", 3), ("revoke", 3), ("assign", 2), ("revoke", 2)]
        if strategy != "cooperative-sticky":
            assert callbacks[0].events == eager
        else:
            assert [event for event in callbacks[0].events if event[1]] == [("assign", 6), ("revoke", 3), ("revoke", 1), ("revoke", 2)]

    def test_cooperative_member_reads_while_another_joins(self, broker: EmbeddedBroker, name: str, consumer_of: ConsumerOf) -> None:
        topic = f"{name}-t"
        broker.create_topic(topic, 4)
        first, second = (consumer_of(broker, partition_assignment_strategy="cooperative-sticky") for _ in range(2))
        first.subscribe([topic])
        poll_until(lambda: partition_counts(first) == [4], first)
        kept = []
        second.subscribe([topic])
        second.poll(0)
        for number in range(5):
            for partition in range(4):
                write(broker, topic, [b"%d" % number], partition)
            kept += first.poll(0.05)
        kept += poll_until(lambda: partition_counts(first, second) == [2, 2], first, second)
        kept += poll_until(lambda: all(member.position(tp) == 5 for member in (first, second) for tp in member.assignment()), first, second)
        # Every record was read at least once; records of retained partitions once, in order.
        assert {(record.partition, record.value) for record in kept} == {
            (partition, b"%d" % number) for partition in range(4) for number in range(5)
        }
        for tp in first.assignment():
            assert [record.value for record in kept if record.partition == tp.partition] == [b"%d" % number for number in range(5)]

    def test_records_are_read_once_while_members_change(self, broker: EmbeddedBroker, name: str, consumer_of: ConsumerOf) -> None:
        topic = f"{name}-t"
        broker.create_topic(topic, 4)
        for partition in range(4):
            write(broker, topic, [b"%d" % number for number in range(200)], partition)
        members = [consumer_of(broker, max_poll_records=7) for _ in range(2)]
        members[0].subscribe([topic])
        found = read(members[0], 50)
        members[1].subscribe([topic])
        found += poll_until(lambda: partition_counts(*members) == [2, 2], *members)
        found += members[0].poll(1)
        members[0].close()
        found += poll_until(lambda: partition_counts(members[1]) == [4], members[1])
        tps = [TopicPartition(topic, index) for index in range(4)]
        found += poll_until(lambda: all(members[1].position(tp) == 200 for tp in tps), members[1])
        assert sorted((record.partition, record.offset) for record in found) == [
            (index, offset) for index in range(4) for offset in range(200)
        ]

    def test_changed_subscription_rebalances(self, broker: EmbeddedBroker, name: str, consumer_of: ConsumerOf) -> None:
        for suffix in "ab":
            broker.create_topic(f"{name}-{suffix}", 1)
        consumer = consumer_of(broker)
        callbacks = CallbackLog()
        consumer.subscribe([f"{name}-a"], **callbacks.listeners())
        poll_until(lambda: consumer.assignment() == {TopicPartition(f"{name}-a", 0)}, consumer)
        consumer.subscribe([f"{name}-b"], **callbacks.listeners())
        poll_until(lambda: consumer.assignment() == {TopicPartition(f"{name}-b", 0)}, consumer)
        consumer.unsubscribe()
        assert (consumer.assignment(), consumer.subscription()) == (frozenset(), frozenset())
        assert callbacks.events == [("assign", 1), ("revoke", 1), ("assign", 1), ("revoke", 1)]

    def test_new_partitions_are_assigned(self, broker: EmbeddedBroker, name: str, consumer_of: ConsumerOf) -> None:
        from chaffinch.admin.options import connect
        from chaffinch.admin.topics import add_partitions

        topic = f"{name}-t"
        broker.create_topic(topic, 1)
        consumer = consumer_of(broker, metadata_max_age_ms=50)
        consumer.subscribe([topic])
        poll_until(lambda: partition_counts(consumer) == [1], consumer)
        with connect(bootstrap_servers=broker.bootstrap_servers) as client:
            add_partitions(client, topic, 3)
        poll_until(lambda: partition_counts(consumer) == [3], consumer)

    @pytest.mark.parametrize("end", ["unsubscribe", "close"])
    @pytest.mark.parametrize("begins_with", ["assign", "revoke"])
    def test_callback_that_closes_runs_once(
        self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf, end: str, begins_with: str
    ) -> None:
        consumer = consumer_of(broker)
        callbacks = []

        def on_callback(kind: str) -> None:
            callbacks.append(kind)
            if kind == begins_with:
                getattr(consumer, end)()

        consumer.subscribe([topic], on_assign=lambda _: on_callback("assign"), on_revoke=lambda _: on_callback("revoke"))
        with pytest.raises(errors.IllegalStateException) if end == "close" else nullcontext():
            poll_until(lambda: "assign" in callbacks, consumer)
            getattr(consumer, end)()
            consumer.assignment()
        assert callbacks == ["assign", "revoke"]

    def test_rebalance_callback_that_raises(self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
        consumer = consumer_of(broker)

        def refuse(_tps: list[TopicPartition]) -> None:
            raise ValueError("no, thank you")

        consumer.subscribe([topic], on_assign=refuse)
        with pytest.raises(errors.KafkaException, match="on_assign raised ValueError"):
            poll_until(lambda: False, consumer)
        assert consumer.assignment() == {TopicPartition(topic, 0)}

    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_commit_callback_that_raises(self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf, asynchronous: bool) -> None:
        consumer, tp, callbacks = consumer_of(broker), TopicPartition(topic, 0), []
        consumer.assign([tp])

        def refuse(_offsets: Mapping[TopicPartition, OffsetAndMetadata], _error: KafkaException | None) -> None:
            consumer.commit({tp: 2}, asynchronous=True, on_commit=lambda offsets, error: callbacks.append((offsets[tp].offset, error)))
            raise ValueError("no, thank you")

        def commit() -> None:
            consumer.commit({tp: 1}, asynchronous=asynchronous, on_commit=refuse)
            poll_until(lambda: False, consumer)

        with pytest.raises(errors.KafkaException, match=r"the callback on_commit raised ValueError\('no, thank you'\)") as caught:
            commit()
        assert isinstance(caught.value.__cause__, ValueError)
        poll_until(lambda: bool(callbacks), consumer)
        assert callbacks == [(2, None)]

    def test_callbacks_may_use_the_consumer(self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
        write(broker, topic, [b"0", b"1", b"2"])
        consumer = consumer_of(broker)
        consumer.subscribe([topic], on_assign=lambda tps: consumer.seek(tps[0], 2), on_revoke=lambda tps: consumer.commit({tps[0]: 1}))
        assert values_of(read(consumer, 1)) == [b"2"]
        consumer.unsubscribe()
        other = consumer_of(broker)
        assert committed(other, TopicPartition(topic, 0)).offset == 1

    @pytest.mark.parametrize(("kind", "expected"), [("committed", 1), ("beginning", 0), ("end", 3)])
    def test_on_assign_may_read_positions(
        self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf, kind: str, expected: int
    ) -> None:
        write(broker, topic, [b"0", b"1", b"2"])
        consumer, tp = consumer_of(broker), TopicPartition(topic, 0)
        consumer.commit({tp: 1})
        found: list[int] = []

        def read_positions(_tps: list[TopicPartition]) -> None:
            if kind == "beginning":
                consumer.seek_to_beginning()
            elif kind == "end":
                consumer.seek_to_end()
            found.append(consumer.position(tp, timeout=LIMIT_S))

        consumer.subscribe([topic], on_assign=read_positions)
        poll_until(lambda: bool(found), consumer)
        assert found == [expected]

    def test_poll_in_callback_is_rejected(self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
        consumer = consumer_of(broker)
        consumer.subscribe([topic], on_assign=lambda _: consumer.poll(0))
        with pytest.raises(errors.IllegalStateException, match="poll within a rebalance callback"):
            poll_until(lambda: False, consumer)

    @pytest.mark.parametrize("end", ["unsubscribe", "close"])
    def test_callback_may_close_or_unsubscribe(self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf, end: str) -> None:
        consumer = consumer_of(broker)
        ended = []

        def end_consumer(_tps: list[TopicPartition]) -> None:
            ended.append(getattr(consumer, end)())

        consumer.subscribe([topic], on_assign=end_consumer)
        with pytest.raises(errors.IllegalStateException):
            poll_until(lambda: False, consumer)
        assert ended


class TestStaticMembers:
    @pytest.mark.parametrize("strategy", [*STRATEGIES, "range,cooperative-sticky"])
    @pytest.mark.parametrize("with_another", [False, True])
    def test_restarted_leader_finds_partitions_added(
        self, broker: EmbeddedBroker, name: str, consumer_of: ConsumerOf, strategy: str, with_another: bool
    ) -> None:
        topics = [f"{name}-{suffix}" for suffix in "ab"]
        broker.create_topic(topics[0], 2)
        options = {"partition_assignment_strategy": strategy, "session_timeout_ms": 30_000, "metadata_max_age_ms": 60_000}
        first = consumer_of(broker, group_instance_id="one", **options)
        first.subscribe(topics)
        poll_until(lambda: partition_counts(first) == [2], first)
        others = [consumer_of(broker, group_instance_id="two", **options)] if with_another else []
        for other in others:
            other.subscribe(topics)
            poll_until(partial(is_balanced, (first, other), [1, 1]), first, other)
        first.close()
        broker.create_topic(topics[1], 1)
        again = consumer_of(broker, group_instance_id="one", **options)
        again.subscribe(topics)
        poll_until(lambda: sum(partition_counts(again, *others)) == 3, again, *others)

    def test_restart_of_static_member_moves_nothing(self, broker: EmbeddedBroker, name: str, consumer_of: ConsumerOf) -> None:
        topic = f"{name}-t"
        broker.create_topic(topic, 4)
        first, second = (consumer_of(broker, group_instance_id=number) for number in ("one", "two"))
        for member in (first, second):
            member.subscribe([topic])
        poll_until(lambda: partition_counts(first, second) == [2, 2], first, second)
        had, rebalances = first.assignment(), second.metrics()["join-total"]
        first.close()
        again = consumer_of(broker, group_instance_id="one")
        again.subscribe([topic])
        poll_until(lambda: again.assignment() == had, again, second)
        assert second.metrics()["join-total"] == rebalances

    def test_second_static_member_fences_the_first(self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
        first = consumer_of(broker, group_instance_id="one")
        first.subscribe([topic])
        poll_until(lambda: partition_counts(first) == [1], first)
        second = consumer_of(broker, group_instance_id="one")
        second.subscribe([topic])
        poll_until(lambda: partition_counts(second) == [1], second)
        for _ in range(2):
            with pytest.raises(errors.FencedInstanceIdException):
                poll_until(lambda: False, first)
        for offsets in ({TopicPartition(topic, 0): 1}, None):
            with pytest.raises(errors.FencedInstanceIdException):
                first.commit(offsets)


class TestLostMembership:
    def test_member_that_does_not_poll_is_removed(self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
        write(broker, topic, [b"0"])
        slow, other = consumer_of(broker, max_poll_interval_ms=200, session_timeout_ms=6000), consumer_of(broker)
        callbacks = CallbackLog()
        slow.subscribe([topic], **callbacks.listeners())
        read(slow, 1)
        other.subscribe([topic])
        poll_until(lambda: partition_counts(other) == [1], other)
        with pytest.raises(errors.CommitFailedException, match="has removed this member"):
            slow.commit()
        poll_until(lambda: "lost" in callbacks.kinds(), slow, other)
        assert callbacks.events[:2] == [("assign", 1), ("lost", 1)]

    @pytest.mark.parametrize("kind", ["assign", "revoke", "commit"])
    def test_member_with_a_slow_callback_is_removed(self, broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf, kind: str) -> None:
        slow, other = consumer_of(broker, max_poll_interval_ms=200, session_timeout_ms=6000), consumer_of(broker)
        is_there, hangs, goes_on = threading.Event(), threading.Event(), threading.Event()

        def hang(_tps: Sequence[TopicPartition]) -> None:
            is_there.set()
            hangs.set()
            assert goes_on.wait(LIMIT_S)

        def commit(_tps: list[TopicPartition]) -> None:
            slow.commit({TopicPartition(topic, 0): 0}, asynchronous=True, on_commit=lambda *_: hang(()) if kind == "commit" else None)
            is_there.set()

        listeners = {"on_assign": commit, **({} if kind == "commit" else {f"on_{kind}": hang})}
        slow.subscribe([topic], **listeners)
        with ThreadPoolExecutor() as pool:
            poller = pool.submit(poll_until, goes_on.is_set, slow)
            try:
                assert (hangs if kind == "commit" else is_there).wait(LIMIT_S)
                other.subscribe([topic])
                poll_until(lambda: partition_counts(other) == [1], other)
                assert hangs.is_set()
                assert not goes_on.is_set()
            finally:
                goes_on.set()
            poller.result(LIMIT_S)
        poll_until(lambda: partition_counts(slow, other) == [0, 1], slow, other)

    @pytest.mark.parametrize("error", ["UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS", "NOT_COORDINATOR"])
    def test_error_codes_of_heartbeat(self, broker: EmbeddedBroker, name: str, consumer_of: ConsumerOf, error: str) -> None:
        topic = f"{name}-t"
        broker.create_topic(topic, 1)
        # A member that was forgotten here is not by the broker: it is waited for. The others are not to run into that time.
        session_timeout_ms = 1000 if error == "UNKNOWN_MEMBER_ID" else 45_000
        consumer = consumer_of(broker, client_id=name, session_timeout_ms=session_timeout_ms)
        callbacks = CallbackLog()
        consumer.subscribe([topic], **callbacks.listeners())
        poll_until(lambda: partition_counts(consumer) == [1], consumer)
        beats = consumer.metrics()["heartbeat-total"]
        broker.faults.add(api="Heartbeat", error=error, count=1, client_id=name)
        if error == "NOT_COORDINATOR":
            poll_until(lambda: consumer.metrics()["heartbeat-total"] >= beats + 3, consumer)
            assert callbacks.events == [("assign", 1)]
            return
        poll_until(lambda: len(callbacks.events) == 3, consumer)
        gone = "revoke" if error == "REBALANCE_IN_PROGRESS" else "lost"
        assert callbacks.events == [("assign", 1), (gone, 1), ("assign", 1)]
