"""OffsetCommit (key 8): a group's offsets, outside transactions.

Versions 0-10. Version 1 adds the group member; 2 to 4 a retention time; 6 leader epochs (KIP-320); 7 static members (KIP-345); 8 is the
first flexible one; 9 allows the epochs of KIP-848; 10 has topic ids in place of names (KIP-848).
"""

from __future__ import annotations

from uuid import UUID

from chaffinch.protocol.primitives import Array, Int16, Int32, Int64, String, Uuid
from chaffinch.protocol.schema import Message, wire


class OffsetCommitRequestPartition(Message):
    """The offset of the next record to read, and the caller's text."""

    partition_index: int = wire(Int32)
    committed_offset: int = wire(Int64)
    committed_leader_epoch: int = wire(Int32, since=6, default=-1)
    commit_timestamp: int = wire(Int64, since=1, until=1, default=-1)
    committed_metadata: str | None = wire(String, nullable_since=0)


class OffsetCommitRequestTopic(Message):
    """The partitions of one topic, known by name up to version 9 and by id from 10 on."""

    name: str = wire(String, until=9)
    topic_id: UUID = wire(Uuid, since=10, essential=True)
    partitions: list[OffsetCommitRequestPartition] = wire(Array(OffsetCommitRequestPartition))


class OffsetCommitRequest(Message, api_key=8, versions=(0, 10), flexible_since=8):
    """`generation_id_or_member_epoch` -1 and an empty `member_id` commit from outside the group."""

    group_id: str = wire(String)
    generation_id_or_member_epoch: int = wire(Int32, since=1, default=-1, essential=True)
    member_id: str = wire(String, since=1, essential=True)
    group_instance_id: str | None = wire(String, since=7, nullable_since=7, default=None, essential=True)
    retention_time_ms: int = wire(Int64, since=2, until=4, default=-1)
    topics: list[OffsetCommitRequestTopic] = wire(Array(OffsetCommitRequestTopic))


class OffsetCommitResponsePartition(Message):
    """Result of one partition's offset."""

    partition_index: int = wire(Int32)
    error_code: int = wire(Int16)


class OffsetCommitResponseTopic(Message):
    """The partitions of one topic."""

    name: str = wire(String, until=9)
    topic_id: UUID = wire(Uuid, since=10)
    partitions: list[OffsetCommitResponsePartition] = wire(Array(OffsetCommitResponsePartition))


class OffsetCommitResponse(Message, api_key=8, versions=(0, 10), flexible_since=8):
    """One result per partition."""

    throttle_time_ms: int = wire(Int32, since=3)
    topics: list[OffsetCommitResponseTopic] = wire(Array(OffsetCommitResponseTopic))
