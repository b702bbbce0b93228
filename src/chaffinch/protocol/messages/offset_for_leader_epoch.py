"""OffsetForLeaderEpoch (key 23): end offsets of leader epochs, by which consumers detect a truncated log (KIP-101, KIP-320).

Versions 0-4. Version 1 answers with the epoch too; 2 fences by the client's epoch; 3 adds the replica id; 4 is flexible.
"""

from __future__ import annotations

from typing import Final

from chaffinch.protocol.primitives import Array, Int16, Int32, Int64, String
from chaffinch.protocol.schema import Message, wire

REPLICA_ID_DEBUG: Final = -2
"""A consumer that may read beyond the high watermark; implied by requests before version 3."""


class OffsetForLeaderPartition(Message):
    """`current_leader_epoch` is the one known to the client, `leader_epoch` the one whose end is requested."""

    partition: int = wire(Int32)
    current_leader_epoch: int = wire(Int32, since=2, default=-1)
    leader_epoch: int = wire(Int32)


class OffsetForLeaderTopic(Message):
    """The partitions of one topic."""

    topic: str = wire(String)
    partitions: list[OffsetForLeaderPartition] = wire(Array(OffsetForLeaderPartition))


class OffsetForLeaderEpochRequest(Message, api_key=23, versions=(0, 4), flexible_since=4):
    """Requested partitions."""

    replica_id: int = wire(Int32, since=3, default=REPLICA_ID_DEBUG)
    topics: list[OffsetForLeaderTopic] = wire(Array(OffsetForLeaderTopic))


class EpochEndOffset(Message):
    """The largest epoch up to the requested one, and the offset after its last record; -1 and -1 when there is none."""

    error_code: int = wire(Int16)
    partition: int = wire(Int32)
    leader_epoch: int = wire(Int32, since=1, default=-1)
    end_offset: int = wire(Int64, default=-1)


class OffsetForLeaderTopicResult(Message):
    """The partitions of one topic."""

    topic: str = wire(String)
    partitions: list[EpochEndOffset] = wire(Array(EpochEndOffset))


class OffsetForLeaderEpochResponse(Message, api_key=23, versions=(0, 4), flexible_since=4):
    """One result per partition."""

    throttle_time_ms: int = wire(Int32, since=2)
    topics: list[OffsetForLeaderTopicResult] = wire(Array(OffsetForLeaderTopicResult))
