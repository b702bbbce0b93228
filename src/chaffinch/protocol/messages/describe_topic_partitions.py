"""DescribeTopicPartitions (key 75): topics and their partitions, page by page (KIP-966). Version 0, flexible."""

from __future__ import annotations

from uuid import UUID

from chaffinch.protocol.messages.metadata import OPERATIONS_UNKNOWN
from chaffinch.protocol.primitives import Array, Bool, Int16, Int32, String, Uuid
from chaffinch.protocol.schema import Message, wire


class TopicRequest(Message):
    """A requested topic."""

    name: str = wire(String)


class Cursor(Message):
    """The start of the next page."""

    topic_name: str = wire(String)
    partition_index: int = wire(Int32)


class DescribeTopicPartitionsRequest(Message, api_key=75, versions=(0, 0), flexible_since=0):
    """Without topics all are requested. The response has at most `response_partition_limit` partitions, from `cursor` on."""

    topics: list[TopicRequest] = wire(Array(TopicRequest))
    response_partition_limit: int = wire(Int32, default=2000)
    cursor: Cursor | None = wire(Cursor, nullable_since=0, default=None)


class DescribeTopicPartitionsResponsePartition(Message):
    """One partition; `leader_id` is -1 when there is none. Eligible leaders (KIP-966) are None if the broker does not maintain them."""

    error_code: int = wire(Int16)
    partition_index: int = wire(Int32)
    leader_id: int = wire(Int32)
    leader_epoch: int = wire(Int32, default=-1)
    replica_nodes: list[int] = wire(Array(Int32))
    isr_nodes: list[int] = wire(Array(Int32))
    eligible_leader_replicas: list[int] | None = wire(Array(Int32), nullable_since=0, default=None)
    last_known_elr: list[int] | None = wire(Array(Int32), nullable_since=0, default=None)
    offline_replicas: list[int] = wire(Array(Int32))


class DescribeTopicPartitionsResponseTopic(Message):
    """One topic, or its error."""

    error_code: int = wire(Int16)
    name: str | None = wire(String, nullable_since=0)
    topic_id: UUID = wire(Uuid)
    is_internal: bool = wire(Bool)
    partitions: list[DescribeTopicPartitionsResponsePartition] = wire(Array(DescribeTopicPartitionsResponsePartition))
    topic_authorized_operations: int = wire(Int32, default=OPERATIONS_UNKNOWN)


class DescribeTopicPartitionsResponse(Message, api_key=75, versions=(0, 0), flexible_since=0):
    """`next_cursor` is None on the last page."""

    throttle_time_ms: int = wire(Int32)
    topics: list[DescribeTopicPartitionsResponseTopic] = wire(Array(DescribeTopicPartitionsResponseTopic))
    next_cursor: Cursor | None = wire(Cursor, nullable_since=0, default=None)
