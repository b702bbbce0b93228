"""Validation policy of a partition, from its topic's options, and the origin of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from chaffinch.identifiers import TopicPartition
from chaffinch.records.batch_codec import DECOMPRESSED_BYTES_MAX
from chaffinch.records.batch_header import TimestampType
from chaffinch.records.compression import Compression

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
HOUR_MS = 3_600_000
_LOG_APPEND_TIME = TimestampType.LOG_APPEND_TIME
BATCH_BYTES_MAX_DEFAULT = 1_048_588
"""Kafka's default for `max.message.bytes`: 1 MiB and the overhead of a format 0 message."""


class Origin(Enum):
    """The writer of a batch, which decides how much is checked (Kafka's `AppendOrigin`)."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationPolicy:
    """The limits of one partition; the defaults are those of Apache Kafka 4.3's topic options.

    `compression` is the codec of the topic's `compression.type`, with `compression_level` (None: the codec's default); None keeps the
    producer's codec. The timestamp limits, in ms, are relative to the broker's clock and inclusive.
    """

    topic_partition: TopicPartition
    is_compacted: bool = False
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    timestamp_before_max_ms: int = INT64_MAX
    timestamp_after_max_ms: int = HOUR_MS
    batch_bytes_max: int = BATCH_BYTES_MAX_DEFAULT
    compression: Compression | None = None
    compression_level: int | None = None
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX

    def timestamp_bounds(self, wall_ms: int) -> tuple[int, int]:
        """The smallest and the largest timestamp that a record may have now, inclusive, as 64-bit numbers."""
        if self.timestamp_type is _LOG_APPEND_TIME:
            return INT64_MIN, INT64_MAX
        first, last = wall_ms - self.timestamp_before_max_ms, wall_ms + self.timestamp_after_max_ms
        return first if first > INT64_MIN else INT64_MIN, last if last < INT64_MAX else INT64_MAX
