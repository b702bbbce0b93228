"""What is about many partitions is synced once for all of them, and promises no less for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from chaffinch.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from chaffinch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.broker.batches import batch_of
from tests.broker.core.transactions.transactional_writer import Writer
from tests.broker.core_client import Cluster

COUNT = 20


def produce_to_all(cluster: Cluster) -> set[int]:
    topic = cluster.core.topics.get("orders")
    assert topic is not None
    data = [PartitionProduceData(index=index, records=batch_of(b"a")) for index in range(COUNT)]
    topics = [TopicProduceData(name="orders", topic_id=topic.topic_id, partitions=data)]
    answer = cluster.client().ask(ProduceRequest(acks=1, timeout_ms=1000, topics=topics))
    return {part.error_code for part in answer.responses[0].partition_responses}


def delete_from_all(cluster: Cluster) -> set[int]:
    requested = [DeleteRecordsPartition(partition_index=index, offset=1) for index in range(COUNT)]
    answer = cluster.client().ask(DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="orders", partitions=requested)], timeout_ms=1000))
    assert {part.low_watermark for part in answer.topics[0].partitions} == {1}
    return {part.error_code for part in answer.topics[0].partitions}


def lose_power(cluster: Cluster) -> None:
    cluster.file_system.hook = None
    cluster.core.abandon()
    cluster.file_system.crash(lambda path, unsynced: 0)
    cluster.clients.clear()
    cluster.core = cluster._core()


def syncs_of(cluster: Cluster, work: Callable[[Cluster], set[int]]) -> Counter[str]:
    """By operation, those of the partitions' own files and directories."""
    cluster.client()
    seen: Counter[str] = Counter()

    def note(operation: str, path: str, size: int) -> None:
        if "sync" in operation and not path.startswith("journals"):
            seen[operation] += 1

    cluster.file_system.hook = note
    assert work(cluster) == {0}
    cluster.file_system.hook = None
    return seen


@pytest.mark.parametrize(
    ("policy", "work", "syncs", "expected"),
    [
        ("always", produce_to_all, {"sync all": 1}, (0, 2)),
        ("always", delete_from_all, {"sync all": 2}, (1, 1)),
        ("os", delete_from_all, {"sync all": 2}, (1, 1)),
    ],
)
def test_request_for_many_partitions_syncs_once(
    policy: str, work: Callable[[Cluster], set[int]], syncs: dict[str, int], expected: tuple[int, int]
) -> None:
    cluster = Cluster({"flush.policy": policy})
    cluster.topic("orders", COUNT)
    assert produce_to_all(cluster) == {0}
    assert syncs_of(cluster, work) == syncs
    lose_power(cluster)
    logs = [partition.log for partition in cluster.core.topics.partitions()]
    assert [(log.log_start_offset, log.log_end_offset) for log in logs] == [expected] * COUNT


def test_markers_of_a_transaction_sync_once() -> None:
    cluster = Cluster({"flush.policy": "always"})
    for number in range(COUNT):
        cluster.topic(f"orders{number}")
    writer = Writer(cluster.client(), "writer")
    for number in range(COUNT):
        writer.sequence = 0
        writer.write(b"a", topic=f"orders{number}")
    assert syncs_of(cluster, lambda _cluster: {writer.end(commit=True)}) == {"sync all": 1}
    lose_power(cluster)
    logs = [partition.log for partition in cluster.core.topics.partitions()]
    assert [(log.log_end_offset, log.last_stable_offset) for log in logs] == [(2, 2)] * COUNT
