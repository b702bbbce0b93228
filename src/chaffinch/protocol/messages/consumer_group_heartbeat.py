"""ConsumerGroupHeartbeat (key 68): all communication of a member with its group's coordinator (KIP-848).

Versions 0-1, both flexible. Version 1 adds subscription by regular expression, and members choose their id themselves (KIP-1082).
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from chaffinch.protocol.primitives import Array, Int16, Int32, String, Uuid
from chaffinch.protocol.schema import Message, wire

EPOCH_JOIN: Final = 0
EPOCH_LEAVE: Final = -1
EPOCH_LEAVE_FOR_A_WHILE: Final = -2
"""Epoch of a static member that leaves and will rejoin within its session timeout."""


class TopicPartitions(Message):
    """Partitions of one topic."""

    topic_id: UUID = wire(Uuid)
    partitions: list[int] = wire(Array(Int32))


class ConsumerGroupHeartbeatRequest(Message, api_key=68, versions=(0, 1), flexible_since=0):
    """`member_epoch` 0 joins, -1 leaves, -2 leaves temporarily. Unchanged fields are None (-1 for the timeout)."""

    group_id: str = wire(String)
    member_id: str = wire(String)
    member_epoch: int = wire(Int32)
    instance_id: str | None = wire(String, nullable_since=0, default=None)
    rack_id: str | None = wire(String, nullable_since=0, default=None)
    rebalance_timeout_ms: int = wire(Int32, default=-1)
    subscribed_topic_names: list[str] | None = wire(Array(String), nullable_since=0, default=None)
    subscribed_topic_regex: str | None = wire(String, since=1, nullable_since=1, default=None, essential=True)
    server_assignor: str | None = wire(String, nullable_since=0, default=None)
    topic_partitions: list[TopicPartitions] | None = wire(Array(TopicPartitions), nullable_since=0, default=None)


class Assignment(Message):
    """Partitions assigned to the member now."""

    topic_partitions: list[TopicPartitions] = wire(Array(TopicPartitions))


class ConsumerGroupHeartbeatResponse(Message, api_key=68, versions=(0, 1), flexible_since=0):
    """`assignment` is None if it is unchanged."""

    throttle_time_ms: int = wire(Int32)
    error_code: int = wire(Int16)
    error_message: str | None = wire(String, nullable_since=0, default=None)
    member_id: str | None = wire(String, nullable_since=0, default=None)
    member_epoch: int = wire(Int32)
    heartbeat_interval_ms: int = wire(Int32)
    assignment: Assignment | None = wire(Assignment, nullable_since=0, default=None)
