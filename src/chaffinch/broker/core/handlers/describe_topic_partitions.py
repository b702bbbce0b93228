"""DescribeTopicPartitions: describes topics in name order, a limited number of partitions per response (KIP-966)."""

from __future__ import annotations

from collections.abc import Sequence

from chaffinch.broker.core.broker_state import BrokerState, Result
from chaffinch.broker.core.events import RequestReceived
from chaffinch.broker.core.security import authorized_operations
from chaffinch.broker.core.topics import creation_rules
from chaffinch.broker.core.topics.registry import Partition
from chaffinch.errors import codes
from chaffinch.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

PARTITIONS_MAX = 2000
"""Limit of partitions in one response, whatever the request says; Kafka's `max.request.partition.size.limit`."""


def handle(broker: BrokerState, event: RequestReceived, request: DescribeTopicPartitionsRequest, steady_ms: int) -> Result:
    cursor = request.cursor or Cursor(topic_name="", partition_index=0)
    requested = {topic.name for topic in request.topics}
    names = sorted(name for name in requested or (topic.name for topic in broker.topics) if name >= cursor.topic_name)
    if cursor.partition_index < 0 or (request.cursor is not None and requested and cursor.topic_name not in requested):
        return _refused(sorted(requested))
    limit = max(1, min(request.response_partition_limit, PARTITIONS_MAX))
    response = DescribeTopicPartitionsResponse()
    for position, name in enumerate(names):
        first = cursor.partition_index if name == cursor.topic_name else 0
        described = _described(broker, name, first, limit)
        response.topics.append(described)
        limit -= len(described.partitions)
        response.next_cursor = _next(broker, names[position:], first + len(described.partitions)) if limit == 0 else None
        if response.next_cursor is not None:
            break
    return response


def _refused(names: Sequence[str]) -> DescribeTopicPartitionsResponse:
    """The response to an invalid cursor; the protocol has no field for a message."""
    code = codes.INVALID_REQUEST.number
    return DescribeTopicPartitionsResponse(topics=[DescribeTopicPartitionsResponseTopic(error_code=code, name=name) for name in names])


def _next(broker: BrokerState, names: Sequence[str], index: int) -> Cursor | None:
    """The cursor of the next page, which begins with partition `index` of the first remaining topic."""
    topic = broker.topics.get(names[0])
    if topic is not None and index < len(topic.partitions):
        return Cursor(topic_name=names[0], partition_index=index)
    return Cursor(topic_name=names[1], partition_index=0) if len(names) > 1 else None


def _described(broker: BrokerState, name: str, first: int, limit: int) -> DescribeTopicPartitionsResponseTopic:
    topic = broker.topics.get(name)
    if topic is None:
        code = codes.INVALID_TOPIC_EXCEPTION if creation_rules.fault_of(name) is not None else codes.UNKNOWN_TOPIC_OR_PARTITION
        described = DescribeTopicPartitionsResponseTopic(error_code=code.number, name=name, is_internal=name in creation_rules.INTERNAL)
    else:
        partitions = [_described_partition(broker, partition) for partition in topic.partitions[first : first + limit]]
        described = DescribeTopicPartitionsResponseTopic(
            name=name, topic_id=topic.topic_id, is_internal=topic.is_internal, partitions=partitions
        )
    described.topic_authorized_operations = authorized_operations.ON_TOPICS
    return described


def _described_partition(broker: BrokerState, partition: Partition) -> DescribeTopicPartitionsResponsePartition:
    replicas = partition.replicas
    return DescribeTopicPartitionsResponsePartition(
        partition_index=partition.topic_partition.partition,
        leader_id=replicas.leader,
        leader_epoch=replicas.leader_epoch,
        replica_nodes=list(replicas.assigned),
        isr_nodes=list(replicas.in_sync),
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=[node_id for node_id in replicas.assigned if broker.nodes.by_id(node_id) is None],
    )
