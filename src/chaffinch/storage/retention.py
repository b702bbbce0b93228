"""Retention and roll decisions: which segments to delete, and when to seal the last one by age. `PartitionLog` carries them out.

Follows Kafka's `UnifiedLog.deleteOldSegments` and `LogSegment.shouldRoll`: ages are those of record timestamps, not of files. Records
without timestamps count from when this process first opened their segment.
"""

from collections.abc import Sequence

from chaffinch.records.checksum import crc32c
from chaffinch.storage.log_config import NEVER, LogConfig
from chaffinch.storage.segment import Segment
from chaffinch.storage.wall_time import WallTime


def is_time_to_roll(segment: Segment, config: LogConfig, timestamp: int, wall: WallTime, steady_ms: int) -> bool:
    """Whether a batch with the largest timestamp `timestamp` (ms) must begin a new segment."""
    if config.roll_ms == NEVER:
        return False
    first = segment.first_timestamp
    waited_ms = timestamp - first if first >= 0 else wall.at(steady_ms) - segment.created_ms
    if waited_ms <= config.roll_ms - config.segment_jitter_ms:
        return False  # Independent of the jitter; nearly every append returns here.
    return waited_ms > config.roll_ms - _jitter_ms(segment, config)


def _jitter_ms(segment: Segment, config: LogConfig) -> int:
    """Jitter of a segment (`segment.jitter.ms`): constant for one segment, different between segments, so that many logs do not roll at
    once.
    """
    largest = min(config.segment_jitter_ms, config.roll_ms)
    return crc32c(segment.stem.encode()) % largest if largest > 0 else 0


def expired_count(segments: Sequence[Segment], config: LogConfig, log_start_offset: int, high_watermark: int, wall_ms: int) -> int:
    """How many of the oldest segments to delete: whole ones below the high watermark. An empty last one stays."""
    below_start = 0
    while below_start < len(segments) - 1 and segments[below_start].end_offset <= log_start_offset:
        below_start += 1
    if not config.deletes:
        return below_start
    stop = len(segments) if segments and segments[-1].size else len(segments) - 1
    while stop > 0 and segments[stop - 1].end_offset > high_watermark:
        stop -= 1
    return max(below_start, _too_old(segments[:stop], config, wall_ms), _too_many(segments, stop, config))


def _too_old(segments: Sequence[Segment], config: LogConfig, wall_ms: int) -> int:
    if config.retention_ms < 0:
        return 0
    for count, segment in enumerate(segments):
        if wall_ms - segment.newest_ms <= config.retention_ms:
            return count
    return len(segments)


def _too_many(segments: Sequence[Segment], stop: int, config: LogConfig) -> int:
    if config.retention_bytes < 0:
        return 0
    surplus = sum(segment.size for segment in segments) - config.retention_bytes
    for count, segment in enumerate(segments[:stop]):
        surplus -= segment.size
        if surplus < 0:
            return count
    return stop


def next_expiry_ms(segments: Sequence[Segment], config: LogConfig) -> int | None:
    """Wall time at which the oldest segment gets too old if nothing is written; None for never. An empty segment counts too, because a
    write to it triggers no check.
    """
    if not config.deletes or config.retention_ms < 0 or not segments:
        return None
    return segments[0].newest_ms + config.retention_ms + 1
