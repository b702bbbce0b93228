"""ListOffsets (key 2): offsets by timestamp, or the first and last of a log.

Versions 0-11. Version 0 answers with a list of offsets; 1 with one offset and its timestamp (KIP-79); 2 adds the isolation level (KIP-98);
4 leader epochs (KIP-320); 6 is the first flexible one; 7 supports the offset of the largest timestamp (KIP-734); 8 and 9 tiered storage
(KIP-405, KIP-1005); 10 a timeout (KIP-1075); 11 the earliest offset not yet uploaded (KIP-1023).
"""

from __future__ import annotations

from chaffinch.protocol.primitives import Array, Int8, Int16, Int32, Int64, String
from chaffinch.protocol.schema import Message, wire


class ListOffsetsPartition(Message):
    """`timestamp` in ms, or -1 for the end, -2 for the first offset, -3 for the largest timestamp."""

    partition_index: int = wire(Int32)
    current_leader_epoch: int = wire(Int32, since=4, default=-1)
    timestamp: int = wire(Int64)
    max_num_offsets: int = wire(Int32, until=0, default=1)


class ListOffsetsTopic(Message):
    """The partitions of one topic."""

    name: str = wire(String)
    partitions: list[ListOffsetsPartition] = wire(Array(ListOffsetsPartition))


class ListOffsetsRequest(Message, api_key=2, versions=(0, 11), flexible_since=6):
    """`replica_id` is -1 for consumers; `isolation_level` 1 ends at the last stable offset."""

    replica_id: int = wire(Int32, default=-1)
    isolation_level: int = wire(Int8, since=2, essential=True)
    topics: list[ListOffsetsTopic] = wire(Array(ListOffsetsTopic))
    timeout_ms: int = wire(Int32, since=10)


class ListOffsetsPartitionResponse(Message):
    """`offset` is -1 if no record is at or after the timestamp."""

    partition_index: int = wire(Int32)
    error_code: int = wire(Int16)
    old_style_offsets: list[int] = wire(Array(Int64), until=0)
    timestamp: int = wire(Int64, since=1, default=-1)
    offset: int = wire(Int64, since=1, default=-1)
    leader_epoch: int = wire(Int32, since=4, default=-1)


class ListOffsetsTopicResponse(Message):
    """The partitions of one topic."""

    name: str = wire(String)
    partitions: list[ListOffsetsPartitionResponse] = wire(Array(ListOffsetsPartitionResponse))


class ListOffsetsResponse(Message, api_key=2, versions=(0, 11), flexible_since=6):
    """One offset per requested partition."""

    throttle_time_ms: int = wire(Int32, since=2)
    topics: list[ListOffsetsTopicResponse] = wire(Array(ListOffsetsTopicResponse))
