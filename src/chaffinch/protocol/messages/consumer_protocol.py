"""Metadata and assignments of consumer group members in JoinGroup and SyncGroup: the protocol type "consumer" (classic protocol).

Brokers pass these bytes on and read only the topics. Each begins with its version (int16). Subscription versions: 1 adds the
partitions owned (KIP-429), 2 the generation they were assigned in (KIP-792), 3 the rack (KIP-881); the assignment has nothing new in 1 to
3. The user data of the sticky assignors have no version of their own: StickyAssignor.java and CooperativeStickyAssignor.java.
"""

from __future__ import annotations

from chaffinch.protocol.primitives import Array, Buffer, Bytes, Int32, String
from chaffinch.protocol.schema import Message, wire

VERSION_MAX = 3


class TopicPartitions(Message):
    """Partitions of one topic."""

    topic: str = wire(String)
    partitions: list[int] = wire(Array(Int32))


class ConsumerProtocolSubscription(Message, versions=(0, VERSION_MAX)):
    """Topics that a member subscribes to, and partitions that it owns."""

    topics: list[str] = wire(Array(String))
    user_data: Buffer | None = wire(Bytes, nullable_since=0, default=None)
    owned_partitions: list[TopicPartitions] = wire(Array(TopicPartitions), since=1)
    generation_id: int = wire(Int32, since=2, default=-1)
    rack_id: str | None = wire(String, since=3, nullable_since=3, default=None)


class ConsumerProtocolAssignment(Message, versions=(0, VERSION_MAX)):
    """Partitions assigned to a member."""

    assigned_partitions: list[TopicPartitions] = wire(Array(TopicPartitions))
    user_data: Buffer | None = wire(Bytes, nullable_since=0, default=None)


class StickyUserData(Message, versions=(0, 1)):
    """Previous partitions of a member of an eager sticky group; version 1 adds their generation."""

    previous_assignment: list[TopicPartitions] = wire(Array(TopicPartitions))
    generation: int = wire(Int32, since=1, default=-1)


class CooperativeStickyUserData(Message, versions=(0, 0)):
    """The generation in which the owned partitions were assigned."""

    generation: int = wire(Int32, default=-1)
