"""By how much the wall clock of a broker is set in tests, and what they look at then."""

from __future__ import annotations

from chaffinch.storage.partition_log import PartitionLog
from tests.broker.core_client import Cluster

SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1000, 60_000, 3_600_000, 86_400_000
STEPS = {"an hour forward": HOUR_MS, "an hour back": -HOUR_MS, "a second back": -SECOND_MS, "50 days forward": 50 * DAY_MS}


def cluster_with(config: dict[str, str] | None = None, nodes: int = 1) -> Cluster:
    cluster = Cluster(config, nodes=nodes)
    cluster.topic("orders")
    return cluster


def log_of(cluster: Cluster, topic: str = "orders") -> PartitionLog:
    partition = cluster.core.topics.partition(topic, 0)
    assert partition is not None
    return partition.log
