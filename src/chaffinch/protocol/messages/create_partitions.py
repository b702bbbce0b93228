"""CreatePartitions (key 37): add partitions to topics (KIP-195).

Versions 0-3. Version 2 is the first flexible one; 3 may answer with a quota's code (KIP-599).
"""

from __future__ import annotations

from chaffinch.protocol.primitives import Array, Bool, Int16, Int32, String
from chaffinch.protocol.schema import Message, wire


class CreatePartitionsAssignment(Message):
    """Replicas of one new partition: broker ids, the preferred leader first."""

    broker_ids: list[int] = wire(Array(Int32))


class CreatePartitionsTopic(Message):
    """`count`: the new total. `assignments`: one per new partition; None: the broker chooses."""

    name: str = wire(String)
    count: int = wire(Int32)
    assignments: list[CreatePartitionsAssignment] | None = wire(Array(CreatePartitionsAssignment), nullable_since=0, default=None)


class CreatePartitionsRequest(Message, api_key=37, versions=(0, 3), flexible_since=2):
    """Topics with their new partition counts."""

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
