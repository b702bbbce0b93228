"""Logs that retention and compaction work on, through a broker core and its clock."""

from __future__ import annotations

from typing import Any

from chaffinch.records.batch import decode, views
from chaffinch.storage.partition_log import PartitionLog
from tests.broker.batches import batch_of
from tests.broker.core_client import Cluster

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
CLEANER_BACKOFF = 15_000


def log_of(cluster: Cluster, topic: str = "orders") -> PartitionLog:
    partition = cluster.core.topics.partition(topic, 0)
    assert partition is not None
    return partition.log


def fill(cluster: Cluster, *ages_ms: int, topic: str = "orders", key: bytes = b"k") -> None:
    """One batch of one record per age."""
    client = cluster.client()
    for age_ms in ages_ms:
        sent = batch_of(b"v" * 100, keys=[key], timestamps=[cluster.steady_ms - age_ms])
        assert client.produce(topic, sent).error_code == 0


def offsets(log: PartitionLog) -> list[int]:
    found: list[int] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        view = next(views(log.read(offset, 1)[0]))
        if view.header.count:
            decoded = decode(view).offsets
            assert decoded is not None
            found += decoded.tolist()
        offset = view.header.last_offset + 1
    return found


def compacted(cluster: Cluster, *, sealed: int = 4, **config: Any) -> PartitionLog:
    """A log of segments of one record each, all of one key; `sealed` of them and one more."""
    cluster.topic("orders", cleanup_policy="compact", segment_ms="1", **config)
    fill(cluster, *range(2 * sealed, -1, -2))
    return log_of(cluster)
