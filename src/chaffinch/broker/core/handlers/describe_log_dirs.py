"""DescribeLogDirs: the data directory and the log sizes of this node's replicas. Data is stored once for all nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.topics.registry import Topic
from chaffinch.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


def handle(broker: BrokerState, event: RequestReceived, request: DescribeLogDirsRequest, steady_ms: int) -> Result:
    described: Iterable[tuple[Topic, Collection[int]]]
    if request.topics is None:
        described = ((topic, range(len(topic.partitions))) for topic in broker.topics)
    else:
        wanted: dict[str, set[int]] = {}
        for requested in request.topics:
            wanted.setdefault(requested.topic, set()).update(requested.partitions)
        described = ((topic, wanted[topic.name]) for topic in broker.topics if topic.name in wanted)
    topics = [_described(topic, indexes, event.node_id) for topic, indexes in described]
    result = DescribeLogDirsResult(log_dir=broker.topics.directory, topics=[topic for topic in topics if topic.partitions])
    return DescribeLogDirsResponse(results=[result])


def _described(topic: Topic, indexes: Collection[int], node_id: int) -> DescribeLogDirsTopic:
    return DescribeLogDirsTopic(
        name=topic.name,
        partitions=[
            DescribeLogDirsPartition(partition_index=index, partition_size=partition.log.size_bytes)
            for index, partition in enumerate(topic.partitions)
            if index in indexes and node_id in partition.replicas.assigned
        ],
    )
