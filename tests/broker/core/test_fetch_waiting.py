"""Fetches that wait: for records, for enough of them, or for another change that the client needs."""

from __future__ import annotations

import gc

import pytest

from chaffinch.broker.core.handlers.fetch import UNREADABLE_WAITING_MAX
from chaffinch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from chaffinch.protocol.messages.fetch import FetchPartition
from tests.broker.batches import batch_of
from tests.broker.core.fetch_requests import fetch, first, offsets, partitions_of
from tests.broker.core.transactions.transactional_writer import Writer
from tests.broker.core_client import Cluster

SIZE = len(batch_of(b"a"))


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.topic("orders", 2)
    return cluster


def count_reads(cluster: Cluster) -> list[str]:
    """Every read of a file from now on."""
    reads: list[str] = []

    def note(operation: str, path: str, size: int) -> None:
        if operation == "read":
            reads.append(path)

    cluster.file_system.hook = note
    return reads


def test_fetch_waits_until_records_are_written(cluster: Cluster) -> None:
    reader, writer = cluster.client(), cluster.client()
    reader.send(fetch(0, wait_ms=500))
    cluster.advance(499)
    assert reader.answers == []
    writer.produce("orders", batch_of(b"a"))
    assert offsets(first(reader.answers.pop())) == [0]


def test_fetch_waits_until_max_wait_ms(cluster: Cluster) -> None:
    reader = cluster.client()
    reader.send(fetch(0, wait_ms=500))
    cluster.advance(499)
    assert reader.answers == []
    cluster.advance(1)
    assert offsets(first(reader.answers.pop())) == []


def test_fetch_waits_until_min_bytes(cluster: Cluster) -> None:
    reader, writer = cluster.client(), cluster.client()
    reader.send(fetch(0, wait_ms=500, min_bytes=2 * SIZE, partitions=(0, 1)))
    writer.produce("orders", batch_of(b"a"))
    assert reader.answers == []
    writer.produce("orders", batch_of(b"a"), partition=1)
    (answer,) = reader.answers
    assert [len(offsets(data)) for data in answer.responses[0].partitions] == [1, 1]


def test_min_bytes_counts_from_the_fetch_offset(cluster: Cluster) -> None:
    """Two batches lie before the offset and do not count, one behind it does."""
    reader, writer = cluster.client(), cluster.client()
    for _ in range(3):
        writer.produce("orders", batch_of(b"a"))
    reader.send(fetch(2, wait_ms=500, min_bytes=3 * SIZE))
    writer.produce("orders", batch_of(b"a"))
    assert reader.answers == []
    writer.produce("orders", batch_of(b"a"))
    assert offsets(first(reader.answers.pop())) == [2, 3, 4]


def test_min_bytes_counts_each_partition_up_to_its_limit(cluster: Cluster) -> None:
    reader, writer = cluster.client(), cluster.client()
    reader.send(fetch(0, wait_ms=500, min_bytes=2 * SIZE, partition_bytes=SIZE, partitions=(0, 1)))
    for _ in range(3):
        writer.produce("orders", batch_of(b"a"))
    assert reader.answers == []
    writer.produce("orders", batch_of(b"a"), partition=1)
    assert [len(offsets(data)) for data in reader.answers.pop().responses[0].partitions] == [1, 1]


def test_fetch_does_not_wait_for_more_than_max_bytes(cluster: Cluster) -> None:
    reader, writer = cluster.client(), cluster.client()
    reader.send(fetch(0, wait_ms=500, min_bytes=100 * SIZE, max_bytes=SIZE))
    writer.produce("orders", batch_of(b"a"))
    assert offsets(first(reader.answers.pop())) == [0]


def test_waiting_fetch_reads_nothing_below_min_bytes(cluster: Cluster) -> None:
    reader, writer = cluster.client(), cluster.client()
    reader.send(fetch(0, wait_ms=500, min_bytes=10 * SIZE))
    reads = count_reads(cluster)
    for _ in range(9):
        writer.produce("orders", batch_of(b"a"))
    assert (reader.answers, reads) == ([], [])
    writer.produce("orders", batch_of(b"a"))
    assert len(offsets(first(reader.answers.pop()))) == 10
    assert len(reads) == 1


def test_end_of_a_segment_ends_the_wait() -> None:
    """An answer comes from one segment, so there is nothing more to wait for."""
    cluster = Cluster()
    cluster.topic("orders", segment_bytes="1048576")
    reader, writer = cluster.client(), cluster.client()
    reader.send(fetch(0, wait_ms=500, min_bytes=1 << 30, max_bytes=1 << 30, partition_bytes=1 << 30))
    for _ in range(2):
        assert reader.answers == []
        writer.produce("orders", batch_of(b"a" * 600_000))
    assert offsets(first(reader.answers.pop())) == [0]


def test_other_partitions_do_not_wake_a_fetch(cluster: Cluster) -> None:
    reader, writer = cluster.client(), cluster.client()
    reader.send(fetch(0, wait_ms=500))
    writer.produce("orders", batch_of(b"a"), partition=1)
    assert reader.answers == []


def test_high_watermark_wakes_a_waiting_fetch(cluster: Cluster) -> None:
    log = cluster.partition("orders", 0).log
    reader, writer = cluster.client(), cluster.client()
    log.high_watermark = 0
    writer.produce("orders", batch_of(b"a"))
    reader.send(fetch(0, wait_ms=500, min_bytes=2 * SIZE))
    writer.produce("orders", batch_of(b"a"))
    assert reader.answers == []
    log.high_watermark = 2
    writer.produce("orders", batch_of(b"a"))
    assert offsets(first(reader.answers.pop())) == [0, 1]


def test_deleted_topic_fails_a_waiting_fetch(cluster: Cluster) -> None:
    reader, admin = cluster.client(), cluster.client()
    reader.send(fetch(0, wait_ms=500))
    admin.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")]))
    assert first(reader.answers.pop()).error_code == 3


def test_replaced_topic_fails_a_waiting_fetch(cluster: Cluster) -> None:
    """Read by its old id, the new topic's records would look like the old one's."""
    reader, admin = cluster.client(), cluster.client()
    reader.send(fetch(topic_id=cluster.topic_named("orders").topic_id, wait_ms=500), 13)
    admin.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")]))
    assert first(reader.answers.pop()).error_code == 3


def test_stopped_leader_fails_a_waiting_fetch() -> None:
    cluster = Cluster(nodes=2)
    cluster.topic("orders", 1, 2)
    leader = cluster.partition("orders", 0).replicas.leader
    reader = cluster.client(node=leader)
    reader.send(fetch(0, wait_ms=500))
    cluster.stop_node(leader)
    assert first(reader.answers.pop()).error_code == 6


def test_unknown_partitions_do_not_end_a_wait(cluster: Cluster) -> None:
    reader = cluster.client()
    reader.send(fetch(0, wait_ms=500, partitions=(0, 7)))
    assert reader.answers == []
    cluster.advance(500)
    assert [data.error_code for data in reader.answers.pop().responses[0].partitions] == [0, 3]


def test_lost_connection_removes_its_waiting_fetch(cluster: Cluster) -> None:
    reader, writer = cluster.client(), cluster.client()
    reader.send(fetch(0, wait_ms=500))
    reader.lose()
    writer.produce("orders", batch_of(b"a"))
    cluster.advance(1000)
    assert reader.answers == []
    assert not cluster.core._waits


def test_fetch_in_a_session_waits_for_all_its_partitions(cluster: Cluster) -> None:
    reader, writer = cluster.client(), cluster.client()
    session_id = reader.ask(fetch(partitions=(0, 1), session=(0, 0))).session_id
    reader.send(fetch(partitions=(), session=(session_id, 1), wait_ms=500))
    assert reader.answers == []
    writer.produce("orders", batch_of(b"a"), partition=1)
    assert partitions_of(reader.answers.pop()) == [1]


@pytest.mark.parametrize("is_commit", [True, False])
def test_readers_of_committed_records_wait_for_the_marker(cluster: Cluster, is_commit: bool) -> None:
    reader, writer = cluster.client(), Writer(cluster.client(), "t")
    reader.send(fetch(0, wait_ms=500, committed=True))
    writer.write(b"a")
    assert reader.answers == []
    writer.end(is_commit)
    (answer,) = reader.answers
    assert offsets(first(answer)) == [0, 1]


def test_waiting_fetch_does_not_keep_repeated_partitions(cluster: Cluster) -> None:
    reader = cluster.client()
    request = fetch(0, wait_ms=500)
    request.topics[0].partitions *= 1000
    reader.send(request)
    del request
    gc.collect()
    assert sum(type(found) is FetchPartition for found in gc.get_objects()) < 10
    cluster.client().produce("orders", batch_of(b"a"))
    assert offsets(first(reader.answers[0])) == [0]


@pytest.mark.parametrize("count", [UNREADABLE_WAITING_MAX, UNREADABLE_WAITING_MAX + 1])
@pytest.mark.parametrize("has_session", [False, True])
def test_fetch_with_too_many_unreadable_partitions_does_not_wait(cluster: Cluster, count: int, has_session: bool) -> None:
    reader = cluster.client()
    requested = tuple(range(2 + count))
    if has_session:
        session = reader.ask(fetch(0, partitions=requested, session=(0, 0))).session_id
        reader.send(fetch(0, partitions=(), session=(session, 1), wait_ms=500))
    else:
        reader.send(fetch(0, partitions=requested, wait_ms=500))
    waits = has_session or count <= UNREADABLE_WAITING_MAX
    assert len(reader.answers) == (not waits)
    cluster.advance(500)
    assert len(partitions_of(reader.answers[0])) == (count if has_session else 2 + count)
