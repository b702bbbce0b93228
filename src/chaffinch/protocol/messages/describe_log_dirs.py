"""DescribeLogDirs (key 35): the directories of a broker and the sizes of its logs in them (KIP-113).

Versions 0-5. Version 2 is the first flexible one; 3 adds a top-level error code; 4 the volume's size (KIP-827); 5 whether the directory is
cordoned (KIP-1066).
"""

from __future__ import annotations

from typing import Final

from chaffinch.protocol.primitives import Array, Bool, Int16, Int32, Int64, String
from chaffinch.protocol.schema import Message, wire

BYTES_UNKNOWN: Final = -1


class DescribableLogDirTopic(Message):
    """The partitions of one topic."""

    topic: str = wire(String)
    partitions: list[int] = wire(Array(Int32))


class DescribeLogDirsRequest(Message, api_key=35, versions=(0, 5), flexible_since=2):
    """`topics` None requests all."""

    topics: list[DescribableLogDirTopic] | None = wire(Array(DescribableLogDirTopic), nullable_since=0)


class DescribeLogDirsPartition(Message):
    """Size in bytes of one log; `offset_lag` is the number of records that it lags behind its leader."""

    partition_index: int = wire(Int32)
    partition_size: int = wire(Int64)
    offset_lag: int = wire(Int64)
    is_future_key: bool = wire(Bool)


class DescribeLogDirsTopic(Message):
    """The partitions of one topic."""

    name: str = wire(String)
    partitions: list[DescribeLogDirsPartition] = wire(Array(DescribeLogDirsPartition))


class DescribeLogDirsResult(Message):
    """One directory; bytes of its volume, -1 if unknown."""

    error_code: int = wire(Int16)
    log_dir: str = wire(String)
    topics: list[DescribeLogDirsTopic] = wire(Array(DescribeLogDirsTopic))
    total_bytes: int = wire(Int64, since=4, default=BYTES_UNKNOWN)
    usable_bytes: int = wire(Int64, since=4, default=BYTES_UNKNOWN)
    is_cordoned: bool = wire(Bool, since=5)


class DescribeLogDirsResponse(Message, api_key=35, versions=(0, 5), flexible_since=2):
    """One result per directory."""

    throttle_time_ms: int = wire(Int32)
    error_code: int = wire(Int16, since=3)
    results: list[DescribeLogDirsResult] = wire(Array(DescribeLogDirsResult))
