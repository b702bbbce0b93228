"""Members of one group: how partitions are shared, given up, taken over and lost, and what is committed meanwhile."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress

import confluent_kafka
import pytest

from chaffinch import OffsetAndMetadata, TopicPartition, errors
from chaffinch.admin import groups
from chaffinch.client.sync_client import SyncClient
from tests.consumer.polling import LIMIT_S, poll_until, read, values_of, write

STRATEGIES = ["range", "roundrobin", "sticky", "cooperative-sticky"]


def shares(*consumers):
    return sorted(len(consumer.assignment()) for consumer in consumers)


class Told:
    """What callbacks were told, in order."""

    def __init__(self):
        self.events = []

    def listeners(self):
        return {f"on_{kind}": lambda places, kind=kind: self.events.append((kind, len(places))) for kind in ("assign", "revoke", "lost")}

    def kinds(self):
        return [kind for kind, _ in self.events]


class TestRebalances:
    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_members_share_and_take_over(self, broker, name, consumer_of, strategy):
        topic = f"{name}-t"
        broker.create_topic(topic, 6)
        members = [consumer_of(broker, partition_assignment_strategy=strategy, client_id=f"m{number}") for number in range(3)]
        told = [Told() for _ in members]
        expected = ([6], [3, 3], [2, 2, 2])
        for number, member in enumerate(members):
            member.subscribe([topic], **told[number].listeners())
            there = members[: number + 1]
            poll_until(lambda there=there, number=number: shares(*there) == expected[number], *there)
        assert {place for member in members for place in member.assignment()} == {TopicPartition(topic, index) for index in range(6)}
        members[0].close()
        poll_until(lambda: shares(*members[1:]) == [3, 3], *members[1:])
        assert told[0].events[-1] == ("revoke", 2)
        assert all("lost" not in one.kinds() for one in told)
        eager = [("assign", 6), ("revoke", 6), ("assign", 3), ("revoke", 3), ("assign", 2), ("revoke", 2)]
        if strategy != "cooperative-sticky":
            assert told[0].events == eager
        else:
            assert [event for event in told[0].events if event[1]] == [("assign", 6), ("revoke", 3), ("revoke", 1), ("revoke", 2)]

    def test_a_cooperative_member_reads_on_while_another_joins(self, broker, name, consumer_of):
        topic = f"{name}-t"
        broker.create_topic(topic, 4)
        first, second = (consumer_of(broker, partition_assignment_strategy="cooperative-sticky") for _ in range(2))
        first.subscribe([topic])
        poll_until(lambda: shares(first) == [4], first)
        kept = []
        second.subscribe([topic])
        second.poll(0)
        for number in range(5):
            for partition in range(4):
                write(broker, topic, [b"%d" % number], partition)
            kept += first.poll(0.05)
        kept += poll_until(lambda: shares(first, second) == [2, 2], first, second)
        kept += poll_until(
            lambda: all(member.position(place) == 5 for member in (first, second) for place in member.assignment()), first, second
        )
        # Everything came at least once; what the first one kept came in order, once.
        assert {(record.partition, record.value) for record in kept} == {
            (partition, b"%d" % number) for partition in range(4) for number in range(5)
        }
        for place in first.assignment():
            assert [record.value for record in kept if record.partition == place.partition] == [b"%d" % number for number in range(5)]

    def test_nothing_is_read_twice_or_lost_when_members_come_and_go(self, broker, name, consumer_of):
        topic = f"{name}-t"
        broker.create_topic(topic, 4)
        for partition in range(4):
            write(broker, topic, [b"%d" % number for number in range(200)], partition)
        members = [consumer_of(broker, max_poll_records=7) for _ in range(2)]
        members[0].subscribe([topic])
        found = read(members[0], 50)
        members[1].subscribe([topic])
        found += poll_until(lambda: shares(*members) == [2, 2], *members)
        found += members[0].poll(1)
        members[0].close()
        found += poll_until(lambda: shares(members[1]) == [4], members[1])
        places = [TopicPartition(topic, index) for index in range(4)]
        found += poll_until(lambda: all(members[1].position(place) == 200 for place in places), members[1])
        assert sorted((record.partition, record.offset) for record in found) == [
            (index, offset) for index in range(4) for offset in range(200)
        ]

    def test_a_subscription_that_changes(self, broker, name, consumer_of):
        for suffix in "ab":
            broker.create_topic(f"{name}-{suffix}", 1)
        consumer = consumer_of(broker)
        told = Told()
        consumer.subscribe([f"{name}-a"], **told.listeners())
        poll_until(lambda: consumer.assignment() == {TopicPartition(f"{name}-a", 0)}, consumer)
        consumer.subscribe([f"{name}-b"], **told.listeners())
        poll_until(lambda: consumer.assignment() == {TopicPartition(f"{name}-b", 0)}, consumer)
        consumer.unsubscribe()
        assert (consumer.assignment(), consumer.subscription()) == (frozenset(), frozenset())
        assert told.events == [("assign", 1), ("revoke", 1), ("assign", 1), ("revoke", 1)]

    def test_new_partitions_are_shared_out(self, broker, name, consumer_of):
        from chaffinch.admin.options import connect
        from chaffinch.admin.topics import add_partitions

        topic = f"{name}-t"
        broker.create_topic(topic, 1)
        consumer = consumer_of(broker, metadata_max_age_ms=50)
        consumer.subscribe([topic])
        poll_until(lambda: shares(consumer) == [1], consumer)
        with connect(bootstrap_servers=broker.bootstrap_servers) as client:
            add_partitions(client, topic, 3)
        poll_until(lambda: shares(consumer) == [3], consumer)

    @pytest.mark.parametrize("end", ["unsubscribe", "close"])
    @pytest.mark.parametrize("begins_with", ["assign", "revoke"])
    def test_a_callback_that_ends_it_all_is_told_once(self, broker, topic, consumer_of, end, begins_with):
        consumer = consumer_of(broker)
        told = []

        def tell(kind):
            told.append(kind)
            if kind == begins_with:
                getattr(consumer, end)()

        consumer.subscribe([topic], on_assign=lambda _: tell("assign"), on_revoke=lambda _: tell("revoke"))
        with pytest.raises(errors.IllegalStateException) if end == "close" else nullcontext():
            poll_until(lambda: "assign" in told, consumer)
            getattr(consumer, end)()
            consumer.assignment()
        assert told == ["assign", "revoke"]

    def test_a_callback_that_raises(self, broker, topic, consumer_of):
        consumer = consumer_of(broker)

        def refuse(_places):
            raise ValueError("no, thank you")

        consumer.subscribe([topic], on_assign=refuse)
        with pytest.raises(errors.KafkaException, match="on_assign raised ValueError"):
            poll_until(lambda: False, consumer)
        assert consumer.assignment() == {TopicPartition(topic, 0)}

    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_a_callback_of_a_commit_that_raises(self, broker, topic, consumer_of, asynchronous):
        consumer, place, told = consumer_of(broker), TopicPartition(topic, 0), []
        consumer.assign([place])

        def refuse(_offsets, _error):
            consumer.commit({place: 2}, asynchronous=True, on_commit=lambda offsets, error: told.append((offsets[place].offset, error)))
            raise ValueError("no, thank you")

        def commit():
            consumer.commit({place: 1}, asynchronous=asynchronous, on_commit=refuse)
            poll_until(lambda: False, consumer)

        with pytest.raises(errors.KafkaException, match=r"the callback on_commit raised ValueError\('no, thank you'\)") as caught:
            commit()
        assert isinstance(caught.value.__cause__, ValueError)
        poll_until(lambda: bool(told), consumer)
        assert told == [(2, None)]

    def test_callbacks_may_use_the_consumer(self, broker, topic, consumer_of):
        write(broker, topic, [b"0", b"1", b"2"])
        consumer = consumer_of(broker)
        consumer.subscribe(
            [topic], on_assign=lambda places: consumer.seek(places[0], 2), on_revoke=lambda places: consumer.commit({places[0]: 1})
        )
        assert values_of(read(consumer, 1)) == [b"2"]
        consumer.unsubscribe()
        other = consumer_of(broker)
        assert other.committed([TopicPartition(topic, 0)])[TopicPartition(topic, 0)].offset == 1

    @pytest.mark.parametrize(("kind", "expected"), [("committed", 1), ("beginning", 0), ("end", 3)])
    def test_a_callback_may_ask_where_it_begins(self, broker, topic, consumer_of, kind, expected):
        write(broker, topic, [b"0", b"1", b"2"])
        consumer, places, found = consumer_of(broker), [TopicPartition(topic, 0)], []
        consumer.commit({places[0]: 1})
        seek = {"committed": lambda: None, "beginning": consumer.seek_to_beginning, "end": consumer.seek_to_end}[kind]
        consumer.subscribe([topic], on_assign=lambda _: (seek(), found.append(consumer.position(places[0], timeout=LIMIT_S))))
        poll_until(lambda: bool(found), consumer)
        assert found == [expected]

    def test_a_callback_may_not_poll(self, broker, topic, consumer_of):
        consumer = consumer_of(broker)
        consumer.subscribe([topic], on_assign=lambda _: consumer.poll(0))
        with pytest.raises(errors.IllegalStateException, match="poll within a rebalance callback"):
            poll_until(lambda: False, consumer)

    @pytest.mark.parametrize("end", ["unsubscribe", "close"])
    def test_a_callback_may_make_an_end(self, broker, topic, consumer_of, end):
        consumer = consumer_of(broker)
        ended = []

        def make_an_end(_places):
            ended.append(getattr(consumer, end)())

        consumer.subscribe([topic], on_assign=make_an_end)
        with pytest.raises(errors.IllegalStateException):
            poll_until(lambda: False, consumer)
        assert ended


class TestStaticMembers:
    @pytest.mark.parametrize("strategy", [*STRATEGIES, "range,cooperative-sticky"])
    @pytest.mark.parametrize("with_another", [False, True])
    def test_a_restart_finds_what_was_added_meanwhile(self, broker, name, consumer_of, strategy, with_another):
        topics = [f"{name}-{suffix}" for suffix in "ab"]
        broker.create_topic(topics[0], 2)
        options = {"partition_assignment_strategy": strategy, "session_timeout_ms": 30_000, "metadata_max_age_ms": 60_000}
        first = consumer_of(broker, group_instance_id="one", **options)
        first.subscribe(topics)
        poll_until(lambda: shares(first) == [2], first)
        others = [consumer_of(broker, group_instance_id="two", **options)] if with_another else []
        for other in others:
            other.subscribe(topics)
            poll_until(lambda other=other: shares(first, other) == [1, 1], first, other)
        first.close()
        broker.create_topic(topics[1], 1)
        again = consumer_of(broker, group_instance_id="one", **options)
        again.subscribe(topics)
        poll_until(lambda: sum(shares(again, *others)) == 3, again, *others)

    def test_a_restart_moves_nothing(self, broker, name, consumer_of):
        topic = f"{name}-t"
        broker.create_topic(topic, 4)
        first, second = (consumer_of(broker, group_instance_id=number) for number in ("one", "two"))
        for member in (first, second):
            member.subscribe([topic])
        poll_until(lambda: shares(first, second) == [2, 2], first, second)
        had, rebalances = first.assignment(), second.metrics()["join-total"]
        first.close()
        again = consumer_of(broker, group_instance_id="one")
        again.subscribe([topic])
        poll_until(lambda: again.assignment() == had, again, second)
        assert second.metrics()["join-total"] == rebalances

    def test_a_second_one_of_the_same_name_fences_the_first(self, broker, topic, consumer_of):
        first = consumer_of(broker, group_instance_id="one")
        first.subscribe([topic])
        poll_until(lambda: shares(first) == [1], first)
        second = consumer_of(broker, group_instance_id="one")
        second.subscribe([topic])
        poll_until(lambda: shares(second) == [1], second)
        for _ in range(2):
            with pytest.raises(errors.FencedInstanceIdException):
                poll_until(lambda: False, first)
        for offsets in ({TopicPartition(topic, 0): 1}, None):
            with pytest.raises(errors.FencedInstanceIdException):
                first.commit(offsets)


class TestLosingTouch:
    def test_who_does_not_poll_is_out(self, broker, topic, consumer_of):
        write(broker, topic, [b"0"])
        slow, other = consumer_of(broker, max_poll_interval_ms=200, session_timeout_ms=6000), consumer_of(broker)
        told = Told()
        slow.subscribe([topic], **told.listeners())
        read(slow, 1)
        other.subscribe([topic])
        poll_until(lambda: shares(other) == [1], other)
        with pytest.raises(errors.CommitFailedException, match="has gone on without this member"):
            slow.commit()
        poll_until(lambda: "lost" in told.kinds(), slow, other)
        assert told.events[:2] == [("assign", 1), ("lost", 1)]

    @pytest.mark.parametrize("kind", ["assign", "revoke", "commit"])
    def test_who_does_not_come_back_from_a_callback_is_out(self, broker, topic, consumer_of, kind):
        slow, other = consumer_of(broker, max_poll_interval_ms=200, session_timeout_ms=6000), consumer_of(broker)
        is_there, hangs, goes_on = threading.Event(), threading.Event(), threading.Event()

        def hang(_places):
            is_there.set()
            hangs.set()
            assert goes_on.wait(LIMIT_S)

        def commit(_places):
            slow.commit({TopicPartition(topic, 0): 0}, asynchronous=True, on_commit=lambda *_: hang(()) if kind == "commit" else None)
            is_there.set()

        listeners = {"on_assign": commit, **({} if kind == "commit" else {f"on_{kind}": hang})}
        slow.subscribe([topic], **listeners)
        with ThreadPoolExecutor() as pool:
            polls = pool.submit(poll_until, goes_on.is_set, slow)
            try:
                assert (hangs if kind == "commit" else is_there).wait(LIMIT_S)
                other.subscribe([topic])
                poll_until(lambda: shares(other) == [1], other)
                assert hangs.is_set()
                assert not goes_on.is_set()
            finally:
                goes_on.set()
            polls.result(LIMIT_S)
        poll_until(lambda: shares(slow, other) == [0, 1], slow, other)

    @pytest.mark.parametrize("error", ["UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS", "NOT_COORDINATOR"])
    def test_what_heartbeats_are_told(self, broker, name, consumer_of, error):
        topic = f"{name}-t"
        broker.create_topic(topic, 1)
        # A member that was forgotten here is not by the broker: it is waited for. The others are not to run into that time.
        session_timeout_ms = 1000 if error == "UNKNOWN_MEMBER_ID" else 45_000
        consumer = consumer_of(broker, client_id=name, session_timeout_ms=session_timeout_ms)
        told = Told()
        consumer.subscribe([topic], **told.listeners())
        poll_until(lambda: shares(consumer) == [1], consumer)
        beats = consumer.metrics()["heartbeat-total"]
        broker.faults.add(api="Heartbeat", error=error, count=1, client_id=name)
        if error == "NOT_COORDINATOR":
            poll_until(lambda: consumer.metrics()["heartbeat-total"] >= beats + 3, consumer)
            assert told.events == [("assign", 1)]
            return
        poll_until(lambda: len(told.events) == 3, consumer)
        gone = "revoke" if error == "REBALANCE_IN_PROGRESS" else "lost"
        assert told.events == [("assign", 1), (gone, 1), ("assign", 1)]


class TestCommits:
    def test_by_hand(self, broker, topic, consumer_of):
        write(broker, topic, [b"0", b"1", b"2"])
        place = TopicPartition(topic, 0)
        consumer = consumer_of(broker, enable_auto_commit=False)
        consumer.subscribe([topic])
        read(consumer, 3)
        assert consumer.committed([place]) == {place: None}
        consumer.commit({place: OffsetAndMetadata(1, "half")})
        assert consumer.committed([place])[place][:2] == (1, "half")
        heard = []
        consumer.commit(asynchronous=True, on_commit=lambda offsets, error: heard.append((offsets[place].offset, error)))
        poll_until(lambda: bool(heard), consumer)
        assert heard == [(3, None)]
        assert consumer.committed([place])[place].offset == 3

    def test_without_subscribing(self, broker, topic, consumer_of):
        place = TopicPartition(topic, 0)
        write(broker, topic, [b"0", b"1"])
        consumer = consumer_of(broker)
        consumer.assign([place])
        read(consumer, 2)
        consumer.close()
        again = consumer_of(broker)
        again.assign([place])
        assert again.position(place) == 2

    def test_polls_commit_what_earlier_polls_gave(self, broker, topic, consumer_of):
        write(broker, topic, [b"0", b"1", b"2"])
        place = TopicPartition(topic, 0)
        consumer, other = consumer_of(broker, auto_commit_interval_ms=0, max_poll_records=1), consumer_of(broker)
        consumer.subscribe([topic])
        for number in range(3):
            assert values_of(read(consumer, 1)) == [b"%d" % number]
            committed = other.committed([place])[place]
            assert (0 if committed is None else committed.offset) <= number
        poll_until(lambda: other.committed([place])[place] is not None and other.committed([place])[place].offset == 3, consumer)

    def test_closing_commits(self, broker, topic, consumer_of):
        write(broker, topic, [b"0", b"1"])
        consumer = consumer_of(broker, auto_commit_interval_ms=100_000)
        consumer.subscribe([topic])
        read(consumer, 2)
        consumer.close()
        assert consumer_of(broker).committed([TopicPartition(topic, 0)])[TopicPartition(topic, 0)].offset == 2

    @pytest.mark.parametrize("reads", [lambda consumer: read(consumer, 2), lambda consumer: next(iter(consumer))], ids=["poll", "iterator"])
    def test_an_exception_that_ends_the_with_statement_commits_nothing_more(self, broker, topic, consumer_of, caplog, reads):
        """The record whose handling has failed would else never be read again."""
        write(broker, topic, [b"0", b"1"])
        with suppress(RuntimeError), consumer_of(broker, auto_commit_interval_ms=100_000) as consumer:
            consumer.subscribe([topic])
            reads(consumer)
            raise RuntimeError
        assert "close: left by RuntimeError, so what was read since the last commit is not committed" in caplog.text
        with consumer_of(broker) as again:  # Which has left the group, and ends in peace.
            again.subscribe([topic])
            assert values_of(read(again, 2)) == [b"0", b"1"]
        assert consumer_of(broker).committed([TopicPartition(topic, 0)])[TopicPartition(topic, 0)].offset == 2

    def test_who_is_woken_up_was_done_with_what_came_before(self, broker, topic, consumer_of):
        write(broker, topic, [b"0", b"1"])
        with suppress(errors.WakeupException), consumer_of(broker, auto_commit_interval_ms=100_000) as consumer:
            consumer.subscribe([topic])
            read(consumer, 2)
            consumer.wakeup()
            consumer.poll()
        assert consumer_of(broker).committed([TopicPartition(topic, 0)])[TopicPartition(topic, 0)].offset == 2

    def test_a_close_without_time_leaves_the_group_all_the_same(self, broker, topic, consumer_of, monkeypatch):
        """Whatever becomes of its last commit: the others would wait for the end of its session. Its thread is told to end at once."""
        write(broker, topic, [b"0"])
        consumer = consumer_of(broker, session_timeout_ms=600_000, heartbeat_interval_ms=60_000)
        consumer.subscribe([topic])
        read(consumer, 1)
        thread = consumer._thread
        wakeup = thread._network.wakeup
        monkeypatch.setattr(thread._network, "wakeup", lambda: wakeup() if thread.is_stopping else None)
        consumer.close(0)
        with SyncClient(broker.bootstrap_servers) as client:
            ends = time.monotonic() + LIMIT_S
            while groups.describe_groups(client, [topic])[0].members:
                assert time.monotonic() < ends

    @pytest.mark.parametrize(
        ("error", "outcome"),
        [
            ("COORDINATOR_LOAD_IN_PROGRESS", None),
            ("NOT_COORDINATOR", None),
            ("COORDINATOR_NOT_AVAILABLE", None),
            ("REQUEST_TIMED_OUT", None),
            ("UNKNOWN_TOPIC_OR_PARTITION", None),
            ("REBALANCE_IN_PROGRESS", errors.RebalanceInProgressException),
            ("UNKNOWN_MEMBER_ID", errors.CommitFailedException),
            ("ILLEGAL_GENERATION", errors.CommitFailedException),
            ("FENCED_INSTANCE_ID", errors.FencedInstanceIdException),
            ("GROUP_AUTHORIZATION_FAILED", errors.GroupAuthorizationException),
            ("OFFSET_METADATA_TOO_LARGE", errors.OffsetMetadataTooLarge),
        ],
    )
    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_what_commits_are_told(self, broker, name, consumer_of, error, outcome, asynchronous):
        topic = f"{name}-t"
        broker.create_topic(topic, 1)
        place = TopicPartition(topic, 0)
        consumer = consumer_of(broker, client_id=name, enable_auto_commit=False)
        consumer.subscribe([topic])
        poll_until(lambda: shares(consumer) == [1], consumer)
        broker.faults.add(api="OffsetCommit", error=error, count=1, client_id=name)
        heard = []
        if asynchronous:
            consumer.commit({place: 1}, asynchronous=True, on_commit=lambda _, refusal: heard.append(refusal))
            with pytest.raises(errors.FencedInstanceIdException) if error == "FENCED_INSTANCE_ID" else nullcontext():
                poll_until(lambda: bool(heard), consumer)
                consumer.poll(0)
            assert len(heard) == 1
            assert isinstance(heard[0], errors.KafkaException)  # One attempt, whatever stands in its way.
        elif outcome is None:
            consumer.commit({place: 1})
            assert consumer.committed([place])[place].offset == 1
        else:
            with pytest.raises(outcome):
                consumer.commit({place: 1})

    def test_offsets_of_a_topic_that_does_not_exist(self, broker, topic, consumer_of):
        consumer = consumer_of(broker, enable_auto_commit=False)

        def is_said():
            with pytest.raises(errors.TimeoutException) as caught:
                consumer.commit({TopicPartition("nowhere", 0): 1}, timeout=0.1)
            return "UNKNOWN_TOPIC_OR_PARTITION" in str(caught.value)

        poll_until(is_said)  # Not at once, where the broker's answer takes longer than the call.


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_what_another_client_wrote(broker, name, consumer_of, codec):
    topic = f"{name}-t"
    broker.create_topic(topic, 1)
    writer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, "compression.type": codec, "linger.ms": 20})
    for number in range(300):
        writer.produce(topic, value=b"value %d" % number, key=b"key" * (number % 3), headers=[("n", b"%d" % number)])
    assert writer.flush(30) == 0
    consumer = consumer_of(broker)
    consumer.subscribe([topic])
    found = read(consumer, 300)
    assert [(record.value, record.key, record.headers) for record in found] == [
        (b"value %d" % number, b"key" * (number % 3) or b"", [("n", b"%d" % number)]) for number in range(300)
    ]
