"""DeleteRecords (key 21): delete records at the start of logs (KIP-107). Versions 0-2; 2 is flexible."""

from __future__ import annotations

from typing import Final

from chaffinch.protocol.primitives import Array, Int16, Int32, Int64, String
from chaffinch.protocol.schema import Message, wire

OFFSET_HIGH_WATERMARK: Final = -1
"""Delete all records below the high watermark."""


class DeleteRecordsPartition(Message):
    """Delete the records below `offset`; -1 is the high watermark."""

    partition_index: int = wire(Int32)
    offset: int = wire(Int64)


class DeleteRecordsTopic(Message):
    """The partitions of one topic."""

    name: str = wire(String)
    partitions: list[DeleteRecordsPartition] = wire(Array(DeleteRecordsPartition))


class DeleteRecordsRequest(Message, api_key=21, versions=(0, 2), flexible_since=2):
    """`timeout_ms`: limit for the replication to followers."""

    topics: list[DeleteRecordsTopic] = wire(Array(DeleteRecordsTopic))
    timeout_ms: int = wire(Int32)


class DeleteRecordsPartitionResult(Message):
    """`low_watermark`: the new log start offset; -1 with an error."""

    partition_index: int = wire(Int32)
    low_watermark: int = wire(Int64)
    error_code: int = wire(Int16)


class DeleteRecordsTopicResult(Message):
    """The partitions of one topic."""

    name: str = wire(String)
    partitions: list[DeleteRecordsPartitionResult] = wire(Array(DeleteRecordsPartitionResult))


class DeleteRecordsResponse(Message, api_key=21, versions=(0, 2), flexible_since=2):
    """One result per partition."""

    throttle_time_ms: int = wire(Int32)
    topics: list[DeleteRecordsTopicResult] = wire(Array(DeleteRecordsTopicResult))
