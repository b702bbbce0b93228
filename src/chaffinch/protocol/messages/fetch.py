"""Fetch (key 1): record batches from partitions.

Versions 0-18. Version 4 adds the isolation level and aborted transactions (KIP-98); 5 the log's start; 7 fetch sessions (KIP-227); 9 leader
epochs (KIP-320); 11 reading from followers (KIP-392); 12 is the first flexible one and detects divergence (KIP-595); 13 has topic ids in
place of names (KIP-516); 14 has the bytes of 13 (KIP-405); 15 replaces the replica id with a tagged structure (KIP-903); 16 has the
endpoints of new leaders (KIP-951); 17 adds directory ids (KIP-853); 18 the follower's high watermark (KIP-1166).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from chaffinch.protocol.messages.produce import LeaderIdAndEpoch, NodeEndpoint
from chaffinch.protocol.primitives import Array, Int8, Int16, Int32, Int64, Records, RecordsType, String, Uuid
from chaffinch.protocol.schema import Message, wire

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
ISOLATION_LEVELS: Final[Mapping[str, int]] = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}
"""Isolation levels by their names in client options."""


class ReplicaState(Message):
    """A follower that fetches (KIP-903)."""

    replica_id: int = wire(Int32, default=-1)
    replica_epoch: int = wire(Int64, default=-1)


class FetchPartition(Message):
    """Fetch offset and size limit of one partition."""

    partition: int = wire(Int32)
    current_leader_epoch: int = wire(Int32, since=9, default=-1)
    fetch_offset: int = wire(Int64)
    last_fetched_epoch: int = wire(Int32, since=12, default=-1)
    log_start_offset: int = wire(Int64, since=5, default=-1)
    partition_max_bytes: int = wire(Int32)
    replica_directory_id: UUID = wire(Uuid, since=17, tag=0)
    high_watermark: int = wire(Int64, since=18, tag=1, default=(1 << 63) - 1)


class FetchTopic(Message):
    """The partitions of one topic, known by name up to version 12 and by id from 13 on."""

    topic: str = wire(String, until=12)
    topic_id: UUID = wire(Uuid, since=13)
    partitions: list[FetchPartition] = wire(Array(FetchPartition))


class ForgottenTopic(Message):
    """Partitions to take out of the fetch session (KIP-227)."""

    topic: str = wire(String, since=7, until=12)
    topic_id: UUID = wire(Uuid, since=13)
    partitions: list[int] = wire(Array(Int32), since=7)


class FetchRequest(Message, api_key=1, versions=(0, 18), flexible_since=12):
    """`session_id` 0 with `session_epoch` -1 is a fetch without session."""

    cluster_id: str | None = wire(String, since=12, tag=0, nullable_since=12, default=None)
    replica_id: int = wire(Int32, until=14, default=-1)
    replica_state: ReplicaState | None = wire(ReplicaState, since=15, tag=1)
    max_wait_ms: int = wire(Int32)
    min_bytes: int = wire(Int32)
    max_bytes: int = wire(Int32, since=3, default=(1 << 31) - 1)
    isolation_level: int = wire(Int8, since=4, essential=True)
    session_id: int = wire(Int32, since=7)
    session_epoch: int = wire(Int32, since=7, default=-1)
    topics: list[FetchTopic] = wire(Array(FetchTopic))
    forgotten_topics_data: list[ForgottenTopic] = wire(Array(ForgottenTopic), since=7)
    rack_id: str = wire(String, since=11)


class EpochEndOffset(Message):
    """The largest epoch and its end where leader and fetcher agree (KIP-595)."""

    epoch: int = wire(Int32, default=-1)
    end_offset: int = wire(Int64, default=-1)


class SnapshotId(Message):
    """A snapshot to fetch instead (KIP-630)."""

    end_offset: int = wire(Int64, default=-1)
    epoch: int = wire(Int32, default=-1)


class AbortedTransaction(Message):
    """A producer whose records from `first_offset` up to its abort marker must be skipped (KIP-98)."""

    producer_id: int = wire(Int64, since=4)
    first_offset: int = wire(Int64, since=4)


class PartitionData(Message):
    """The records of one partition; `aborted_transactions` is None for readers of uncommitted records."""

    partition_index: int = wire(Int32)
    error_code: int = wire(Int16)
    high_watermark: int = wire(Int64)
    last_stable_offset: int = wire(Int64, since=4, default=-1)
    log_start_offset: int = wire(Int64, since=5, default=-1)
    diverging_epoch: EpochEndOffset | None = wire(EpochEndOffset, since=12, tag=0)
    current_leader: LeaderIdAndEpoch | None = wire(LeaderIdAndEpoch, since=12, tag=1)
    snapshot_id: SnapshotId | None = wire(SnapshotId, since=12, tag=2)
    aborted_transactions: list[AbortedTransaction] | None = wire(Array(AbortedTransaction), since=4, nullable_since=4, default=None)
    preferred_read_replica: int = wire(Int32, since=11, default=-1)
    records: Records = wire(RecordsType, nullable_since=0)


class FetchableTopicResponse(Message):
    """The partitions of one topic."""

    topic: str = wire(String, until=12)
    topic_id: UUID = wire(Uuid, since=13)
    partitions: list[PartitionData] = wire(Array(PartitionData))


class FetchResponse(Message, api_key=1, versions=(0, 18), flexible_since=12):
    """`session_id` is 0 without a session."""

    throttle_time_ms: int = wire(Int32, since=1)
    error_code: int = wire(Int16, since=7)
    session_id: int = wire(Int32, since=7)
    responses: list[FetchableTopicResponse] = wire(Array(FetchableTopicResponse))
    node_endpoints: list[NodeEndpoint] = wire(Array(NodeEndpoint), since=16, tag=0)
