"""Which segments of a log have to go, and when the last one is sealed for its age. Looks only; `PartitionLog` deletes.

Follows Kafka's `UnifiedLog.deleteOldSegments` and `LogSegment.shouldRoll`: ages are those of record timestamps, not of files. Records
without timestamps count from when this process first saw their segment.
"""

from collections.abc import Sequence

from chaffinch.records.checksum import crc32c
from chaffinch.storage.log_config import NEVER, LogConfig
from chaffinch.storage.segment import Segment
from chaffinch.storage.wall_time import WallTime


def is_time_to_roll(segment: Segment, config: LogConfig, timestamp: int, wall: WallTime, steady_ms: int) -> bool:
    """Whether a batch whose largest timestamp (ms) is `timestamp` belongs into a new segment, and not behind what is in this one."""
    if config.roll_ms == NEVER:
        return False
    first = segment.first_timestamp
    waited_ms = timestamp - first if first >= 0 else wall.at(steady_ms) - segment.created_ms
    if waited_ms <= config.roll_ms - config.segment_jitter_ms:
        return False  # Whatever the jitter; so asks nearly every append.
    return waited_ms > config.roll_ms - _jitter_ms(segment, config)


def _jitter_ms(segment: Segment, config: LogConfig) -> int:
    """`segment.jitter.ms`: another share for each segment, so that those of many logs do not roll at once; always the same for one."""
    largest = min(config.segment_jitter_ms, config.roll_ms)
    return crc32c(segment.stem.encode()) % largest if largest > 0 else 0


def expired_count(segments: Sequence[Segment], config: LogConfig, log_start_offset: int, high_watermark: int, wall_ms: int) -> int:
    """How many segments, from the oldest on, are to be deleted: whole ones below the high watermark; an empty last one stays."""
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
    """When by the wall clock the oldest segment gets too old, if nothing is written meanwhile; None for never. An empty one counts too:
    what is written to it makes nobody look."""
    if not config.deletes or config.retention_ms < 0 or not segments:
        return None
    return segments[0].newest_ms + config.retention_ms + 1
