"""DeleteRecords (KIP-107): logs that begin later."""

from __future__ import annotations

from typing import Any

import pytest

from chaffinch.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from chaffinch.storage.file_system import StorageError
from tests.broker.batches import batch_of
from tests.broker.core.fetch_requests import fetch, first, offsets, partitions_of
from tests.broker.core_client import Client, Cluster


def delete(client: Client, offset: int, *, topic: str = "orders", partition: int = 0, version: int | None = None) -> tuple[int, int]:
    """Code and low watermark."""
    requested = [DeleteRecordsPartition(partition_index=partition, offset=offset)]
    answer = client.ask(DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=requested)], timeout_ms=1000), version)
    (result,) = answer.topics[0].partitions
    return result.error_code, result.low_watermark


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.topic("orders", 2)
    client = cluster.client()
    for _ in range(4):
        client.produce("orders", batch_of(b"a"))
    return cluster


@pytest.mark.parametrize(("offset", "start"), [(0, 0), (2, 2), (4, 4), (-1, 4)])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_log_starts_at_the_requested_offset(cluster: Cluster, offset: int, start: int, version: int) -> None:
    client = cluster.client()
    assert delete(client, offset, version=version) == (0, start)
    data = first(client.ask(fetch(start)))
    assert (data.error_code, data.log_start_offset, offsets(data)) == (0, start, list(range(start, 4)))
    if start:
        assert first(client.ask(fetch(start - 1))).error_code == 1


@pytest.mark.parametrize(("policy", "code"), [("", 0), ("delete", 0), ("compact,delete", 0), ("compact", 44)])
def test_topic_with_compaction_alone_is_refused(cluster: Cluster, policy: str, code: int) -> None:
    cluster.topic("other", cleanup_policy=policy)
    cluster.client().produce("other", batch_of(b"a"))
    assert delete(cluster.client(), 1, topic="other")[0] == code


def test_log_start_never_decreases(cluster: Cluster) -> None:
    client = cluster.client()
    assert delete(client, 3) == (0, 3)
    assert delete(client, 1) == (0, 3)


@pytest.mark.parametrize(
    ("offset", "options", "code"),
    [
        (5, {}, 1),
        (-2, {}, 1),
        (0, {"topic": "missing"}, 3),
        (0, {"partition": 2}, 3),
        (0, {"topic": "kept"}, 44),
        (0, {"topic": "__consumer_offsets"}, 17),
    ],
)
def test_invalid_request_is_refused(cluster: Cluster, offset: int, options: dict[str, Any], code: int) -> None:
    cluster.topic("kept", cleanup_policy="compact")
    cluster.topic("__consumer_offsets")
    assert delete(cluster.client(), offset, **options) == (code, -1)


def test_topic_with_compaction_and_deletion_is_accepted(cluster: Cluster) -> None:
    cluster.topic("both", cleanup_policy="compact,delete")
    assert delete(cluster.client(), -1, topic="both") == (0, 0)


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [(2, 999, (1, -1, 0)), (999, 2, (0, 2, 2)), (3, 1, (0, 1, 1)), (1, 3, (0, 3, 3))],
)
@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
def test_last_offset_of_a_repeated_partition_is_used(
    cluster: Cluster, first: int, last: int, expected: tuple[int, int, int], apart: bool
) -> None:
    """As in Apache Kafka: it is answered once, and an error says that nothing was deleted."""
    requested = [DeleteRecordsPartition(partition_index=index, offset=offset) for index, offset in ((0, first), (1, 0), (0, last))]
    groups = [[each] for each in requested] if apart else [requested]
    topics = [DeleteRecordsTopic(name="orders", partitions=partitions) for partitions in groups]
    (answer,) = cluster.client().ask(DeleteRecordsRequest(topics=topics, timeout_ms=1000)).topics
    results = {result.partition_index: (result.error_code, result.low_watermark) for result in answer.partitions}
    assert (len(answer.partitions), results[0], results[1]) == (2, expected[:2], (0, 0))
    assert cluster.partition("orders", 0).log.log_start_offset == expected[2]


def test_offset_above_the_high_watermark_is_refused(cluster: Cluster) -> None:
    cluster.partition("orders", 0).log.high_watermark = 2
    assert delete(cluster.client(), 3) == (1, -1)
    assert delete(cluster.client(), -1) == (0, 2)


def test_request_at_another_node_is_refused() -> None:
    cluster = Cluster(nodes=2)
    cluster.topic("orders")
    leader = cluster.partition("orders", 0).replicas.leader
    assert delete(cluster.client(node=1 - leader), -1) == (6, -1)


def test_log_start_survives_a_restart(cluster: Cluster) -> None:
    delete(cluster.client(), 3)
    cluster.restart()
    assert cluster.partition("orders", 0).log.log_start_offset == 3


def test_failing_disk_is_reported(cluster: Cluster) -> None:
    def fail(operation: str, path: str, size: int) -> None:
        if operation in ("append", "open", "rename"):
            raise StorageError(path, operation, "input/output error")

    cluster.file_system.hook = fail
    assert delete(cluster.client(), 3) == (56, -1)
    assert any("input/output error" in line for line in cluster.lines)


def test_fetch_session_reports_the_new_log_start(cluster: Cluster) -> None:
    client = cluster.client()
    session_id = client.ask(fetch(4, session=(0, 0))).session_id
    assert partitions_of(client.ask(fetch(4, session=(session_id, 1)))) == []
    delete(client, 2)
    assert partitions_of(client.ask(fetch(4, session=(session_id, 2)))) == [0]


@pytest.mark.parametrize(("start", "codes"), [(3, [1]), (2, [])])
def test_waiting_fetch_fails_when_its_offset_is_deleted(cluster: Cluster, start: int, codes: list[int]) -> None:
    reader = cluster.client()
    reader.send(fetch(2, wait_ms=500, min_bytes=100_000))
    assert delete(cluster.client(), start) == (0, start)
    assert [first(answer).error_code for answer in reader.answers] == codes
    cluster.advance(500)
    assert len(reader.answers) == 1
