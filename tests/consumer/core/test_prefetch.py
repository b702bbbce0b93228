"""Prefetch: fetches ahead of the caller, and their limits."""

import pytest

from chaffinch.client.addresses import Address
from chaffinch.consumer.core.fetch_session import FetchPosition, FetchSession
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.fetch import FetchRequest, PartitionData
from tests.consumer.core.rig import TOPIC_ID, Rig, records
from tests.consumer.core.test_fetching import P0, asked

P1 = TopicPartition("t", 1)
LIMIT = {"max.partition.fetch.bytes": 1000}


def test_next_records_are_prefetched() -> None:
    rig = Rig(**LIMIT).assign(0)
    rig.answer_fetch(p0=records(0, b"x" * 600))
    assert asked(rig)[1] == {0: 1}
    rig.answer_fetch(p0=records(1, b"y" * 600))
    assert not rig.pending(FetchRequest)
    assert rig.poll(1) == [(0, b"x" * 600)]
    rig.poll(0)
    assert rig.poll(5) == [(0, b"y" * 600)]
    rig.poll()
    assert asked(rig)[1] == {0: 2}


def test_idle_partition_does_not_delay_a_busy_one() -> None:
    """Requested alone, its response takes `fetch.max.wait.ms`, and blocks the busy partition: 2 MB in half a second."""
    rig = Rig(**LIMIT).assign(0, 1)
    for offset in range(2):
        rig.answer_fetch(session=9, p0=records(offset, b"x" * 600))
    assert not rig.pending(FetchRequest)
    assert rig.poll(1) == [(0, b"x" * 600)]
    rig.poll(1)
    assert asked(rig) == (2, {0: 2}, [])  # The session still contains the other one.
    rig.answer_fetch(session=9, p0=records(2, b"x" * 600), p1=records(0, b"y"))
    assert [number for number, _ in rig.poll()] == [0, 1]


NEAR = {**LIMIT, "client.rack": "r1"}


def know_node(rig: Rig, node_id: int) -> None:
    rig.core.context.cluster.learn_node(node_id, Address(f"node-{node_id}", 9092))


@pytest.mark.parametrize("how", ["paused", "waiting", "unusable", "elsewhere", "preferred"])
def test_full_buffer_delays_only_its_broker_while_it_is_read(how: str) -> None:
    rig = Rig(**LIMIT)
    rig.assign(0, 1)
    rig.answer_fetch(session=9, p0=records(0, b"x" * 1100))
    assert not rig.pending(FetchRequest)
    state = rig.core.subscriptions.of(P0)
    if how == "paused":
        state.is_paused = True
    elif how == "waiting":
        state.retry_at_ms = rig.steady_ms + 10_000
    elif how == "unusable":
        state.is_usable = False
    elif how == "elsewhere":
        know_node(rig, 2)
        rig.core.context.cluster.learn_leader(P1, 2, 9)
    else:
        know_node(rig, 2)
        state.preferred_replica, state.preferred_until_ms = 2, rig.steady_ms + 10_000
    rig.advance(0)
    assert [sent.address[0] for sent in rig.pending(FetchRequest)] == ["node-2" if how == "elsewhere" else "b"]
    assert asked(rig)[1] == ({1: 0} if how == "elsewhere" else {})


def test_full_buffer_of_a_nearby_replica_delays_its_fetch() -> None:
    """It is the one that is held up, not the leader."""
    rig = Rig(**NEAR)
    rig.assign(0, 1)
    know_node(rig, 3)
    sent_there = PartitionData(preferred_read_replica=3, high_watermark=5)
    rig.answer_fetch(p0=sent_there, p1=sent_there)
    assert asked(rig)[1] == {0: 0, 1: 0}
    rig.answer_fetch(p0=records(0, b"x" * 1100))
    assert not rig.pending(FetchRequest)


def sized(offset: int, size: int) -> bytearray:
    """A batch of this many bytes."""
    return records(offset, b"x" * (size - len(records(offset, b"x" * size)) + size))


@pytest.mark.parametrize(("size", "is_full"), [(999, False), (1000, True)])
def test_buffer_limit(size: int, is_full: bool) -> None:
    data = sized(0, size)
    assert len(data) == size
    rig = Rig(**LIMIT).assign(0)
    rig.answer_fetch(p0=data)
    assert bool(rig.pending(FetchRequest)) is not is_full


def test_incomplete_batch_does_not_count_as_buffered() -> None:
    """Apache Kafka cuts responses at the limit: the next bytes are requested at once, not when the first are read."""
    rig = Rig(**LIMIT).assign(0)
    rig.answer_fetch(p0=(records(0, b"x" * 600) + records(1, b"y" * 600))[:1000])
    assert asked(rig)[1] == {0: 1}


def test_zero_limit_still_fetches_single_batches() -> None:
    rig = Rig(**{"max.partition.fetch.bytes": 0}).assign(0)
    rig.answer_fetch(p0=records(0, b"x"))
    assert not rig.pending(FetchRequest)
    assert rig.poll() == [(0, b"x")]
    rig.poll()
    assert asked(rig)[1] == {0: 1}


def order(rig: Rig) -> list[tuple[str, int]]:
    """In which the fetch that waits names partitions, topic by topic."""
    message = rig.pending(FetchRequest)[0].message
    return [(topic.topic, part.partition) for topic in message.topics for part in topic.partitions]


def test_most_recently_served_partition_is_requested_last() -> None:
    """Without a session brokers fill their answer in the order of the request: the first partition could have all of it for ever."""
    rig = Rig(**LIMIT).assign(0, 1, 2)
    assert order(rig) == [("t", 0), ("t", 1), ("t", 2)]
    rig.answer_fetch(p0=records(0, b"x"))
    assert order(rig) == [("t", 1), ("t", 2), ("t", 0)]
    rig.answer_fetch(p1=records(0, b"x"))
    assert order(rig) == [("t", 2), ("t", 0), ("t", 1)]
    rig.answer_fetch()
    assert order(rig) == [("t", 2), ("t", 0), ("t", 1)]


def test_topic_appears_twice_in_an_interleaved_request() -> None:
    wanted = FetchPosition(TOPIC_ID, 0, 0, 1)
    request, _ = FetchSession().next_request({TopicPartition(topic, number): wanted for topic, number in (("a", 1), ("b", 0), ("a", 0))})
    assert [(topic.topic, [part.partition for part in topic.partitions]) for topic in request.topics] == [
        ("a", [1]),
        ("b", [0]),
        ("a", [0]),
    ]
