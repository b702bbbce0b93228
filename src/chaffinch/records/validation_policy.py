"""What a partition's topic allows, and who is writing: what validation needs to know besides the batch and the time."""

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
"""Kafka's default for `max.message.bytes`: 1 MiB and a format 0 message's overhead."""


class Origin(Enum):
    """Who writes, and so how much is checked (Kafka's `AppendOrigin`)."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationPolicy:
    """The limits of one partition; the defaults are those of Apache Kafka 4.3's topic options.

    `compression` is what the topic's `compression.type` wants batches stored as, with `compression_level` (the codec's default
    where None); None keeps what the producer sent. The limits on timestamps, in ms, count from the broker's clock and are inclusive.
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
        """The least and the largest timestamp that a record may have now, both allowed and both 64-bit numbers."""
        if self.timestamp_type is _LOG_APPEND_TIME:
            return INT64_MIN, INT64_MAX
        first, last = wall_ms - self.timestamp_before_max_ms, wall_ms + self.timestamp_after_max_ms
        return first if first > INT64_MIN else INT64_MIN, last if last < INT64_MAX else INT64_MAX
