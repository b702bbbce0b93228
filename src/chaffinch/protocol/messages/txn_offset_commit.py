"""TxnOffsetCommit (key 28): offsets of a group that become committed with the transaction (KIP-98).

Versions 0-6. Version 2 adds leader epochs (KIP-320); 3 is the first flexible one and carries the group member (KIP-447); 4 may answer with
TRANSACTION_ABORTABLE; 5 adds the group to the transaction implicitly (KIP-890); 6 has topic ids in place of names (KIP-1319).
"""

from __future__ import annotations

from uuid import UUID

from chaffinch.protocol.primitives import Array, Int16, Int32, Int64, String, Uuid
from chaffinch.protocol.schema import Message, wire


class TxnOffsetCommitRequestPartition(Message):
    """The offset of the next record to read, and the caller's text."""

    partition_index: int = wire(Int32)
    committed_offset: int = wire(Int64)
    committed_leader_epoch: int = wire(Int32, since=2, default=-1)
    committed_metadata: str | None = wire(String, nullable_since=0)


class TxnOffsetCommitRequestTopic(Message):
    """The partitions of one topic, known by name up to version 5 and by id from 6 on."""

    name: str = wire(String, until=5)
    topic_id: UUID = wire(Uuid, since=6, essential=True)
    partitions: list[TxnOffsetCommitRequestPartition] = wire(Array(TxnOffsetCommitRequestPartition))


class TxnOffsetCommitRequest(Message, api_key=28, versions=(0, 6), flexible_since=3):
    """Sent to the group's coordinator."""

    transactional_id: str = wire(String)
    group_id: str = wire(String)
    producer_id: int = wire(Int64)
    producer_epoch: int = wire(Int16)
    generation_id: int = wire(Int32, since=3, default=-1, essential=True)
    member_id: str = wire(String, since=3, essential=True)
    group_instance_id: str | None = wire(String, since=3, nullable_since=3, default=None, essential=True)
    topics: list[TxnOffsetCommitRequestTopic] = wire(Array(TxnOffsetCommitRequestTopic))


class TxnOffsetCommitResponsePartition(Message):
    """Result of one partition's offset."""

    partition_index: int = wire(Int32)
    error_code: int = wire(Int16)


class TxnOffsetCommitResponseTopic(Message):
    """The partitions of one topic."""

    name: str = wire(String, until=5)
    topic_id: UUID = wire(Uuid, since=6)
    partitions: list[TxnOffsetCommitResponsePartition] = wire(Array(TxnOffsetCommitResponsePartition))


class TxnOffsetCommitResponse(Message, api_key=28, versions=(0, 6), flexible_since=3):
    """One result per partition."""

    throttle_time_ms: int = wire(Int32)
    topics: list[TxnOffsetCommitResponseTopic] = wire(Array(TxnOffsetCommitResponseTopic))
