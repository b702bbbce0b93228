"""ListPartitionReassignments (key 46): replicas that are being moved (KIP-455). Version 0, flexible."""

from __future__ import annotations

from chaffinch.protocol.primitives import Array, Int16, Int32, String
from chaffinch.protocol.schema import Message, wire


class ListPartitionReassignmentsTopics(Message):
    """The partitions of one topic."""

    name: str = wire(String)
    partition_indexes: list[int] = wire(Array(Int32))


class ListPartitionReassignmentsRequest(Message, api_key=46, versions=(0, 0), flexible_since=0):
    """`topics` None requests all."""

    timeout_ms: int = wire(Int32, default=60_000)
    topics: list[ListPartitionReassignmentsTopics] | None = wire(Array(ListPartitionReassignmentsTopics), nullable_since=0, default=None)


class OngoingPartitionReassignment(Message):
    """Replicas of a partition, those being added, and those being removed."""

    partition_index: int = wire(Int32)
    replicas: list[int] = wire(Array(Int32))
    adding_replicas: list[int] = wire(Array(Int32))
    removing_replicas: list[int] = wire(Array(Int32))


class OngoingTopicReassignment(Message):
    """The partitions of one topic."""

    name: str = wire(String)
    partitions: list[OngoingPartitionReassignment] = wire(Array(OngoingPartitionReassignment))


class ListPartitionReassignmentsResponse(Message, api_key=46, versions=(0, 0), flexible_since=0):
    """Only partitions with a reassignment in progress."""

    throttle_time_ms: int = wire(Int32)
    error_code: int = wire(Int16)
    error_message: str | None = wire(String, nullable_since=0, default=None)
    topics: list[OngoingTopicReassignment] = wire(Array(OngoingTopicReassignment))
