"""ConsumerGroupDescribe (key 69): groups of KIP-848 with their members. Versions 0-1, both flexible; 1 adds the member's type."""

from __future__ import annotations

from uuid import UUID

from chaffinch.protocol.primitives import Array, Bool, Int8, Int16, Int32, String, Uuid
from chaffinch.protocol.schema import Message, wire


class ConsumerGroupDescribeRequest(Message, api_key=69, versions=(0, 1), flexible_since=0):
    """Sent to the groups' coordinator."""

    group_ids: list[str] = wire(Array(String))
    include_authorized_operations: bool = wire(Bool)


class DescribedTopicPartitions(Message):
    """Partitions of one topic."""

    topic_id: UUID = wire(Uuid)
    topic_name: str = wire(String)
    partitions: list[int] = wire(Array(Int32))


class DescribedAssignment(Message):
    """A set of partitions."""

    topic_partitions: list[DescribedTopicPartitions] = wire(Array(DescribedTopicPartitions))


class DescribedMember(Message):
    """`assignment` is the member's current assignment, `target_assignment` the next; `member_type` 0 classic, 1 consumer."""

    member_id: str = wire(String)
    instance_id: str | None = wire(String, nullable_since=0, default=None)
    rack_id: str | None = wire(String, nullable_since=0, default=None)
    member_epoch: int = wire(Int32)
    client_id: str = wire(String)
    client_host: str = wire(String)
    subscribed_topic_names: list[str] = wire(Array(String))
    subscribed_topic_regex: str | None = wire(String, nullable_since=0, default=None)
    assignment: DescribedAssignment = wire(DescribedAssignment)
    target_assignment: DescribedAssignment = wire(DescribedAssignment)
    member_type: int = wire(Int8, since=1, default=-1)


class DescribedConsumerGroup(Message):
    """One group, or its error."""

    error_code: int = wire(Int16)
    error_message: str | None = wire(String, nullable_since=0, default=None)
    group_id: str = wire(String)
    group_state: str = wire(String)
    group_epoch: int = wire(Int32)
    assignment_epoch: int = wire(Int32)
    assignor_name: str = wire(String)
    members: list[DescribedMember] = wire(Array(DescribedMember))
    authorized_operations: int = wire(Int32, default=-(1 << 31))


class ConsumerGroupDescribeResponse(Message, api_key=69, versions=(0, 1), flexible_since=0):
    """One entry per requested group."""

    throttle_time_ms: int = wire(Int32)
    groups: list[DescribedConsumerGroup] = wire(Array(DescribedConsumerGroup))
