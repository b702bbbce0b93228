"""CreatePartitions (key 37): give topics more partitions (KIP-195).

Versions 0-3. 2 is flexible; 3 may answer with a quota's code (KIP-599).
"""

from __future__ import annotations

from chaffinch.protocol.primitives import Array, Bool, Int16, Int32, String
from chaffinch.protocol.schema import Message, wire


class CreatePartitionsAssignment(Message):
    """The brokers that are to hold one new partition, the preferred leader first."""

    broker_ids: list[int] = wire(Array(Int32))


class CreatePartitionsTopic(Message):
    """`count`: how many partitions there are to be in all. `assignments`, one per new partition; None leaves them to the broker."""

    name: str = wire(String)
    count: int = wire(Int32)
    assignments: list[CreatePartitionsAssignment] | None = wire(Array(CreatePartitionsAssignment), nullable_since=0, default=None)


class CreatePartitionsRequest(Message, api_key=37, versions=(0, 3), flexible_since=2):
    """Topics to widen."""

    topics: list[CreatePartitionsTopic] = wire(Array(CreatePartitionsTopic))
    timeout_ms: int = wire(Int32)
    validate_only: bool = wire(Bool)


class CreatePartitionsTopicResult(Message):
    """Result of one topic."""

    name: str = wire(String)
    error_code: int = wire(Int16)
    error_message: str | None = wire(String, nullable_since=0, default=None)


class CreatePartitionsResponse(Message, api_key=37, versions=(0, 3), flexible_since=2):
    """One result per topic."""

    throttle_time_ms: int = wire(Int32)
    results: list[CreatePartitionsTopicResult] = wire(Array(CreatePartitionsTopicResult))
