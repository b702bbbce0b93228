"""What of a log compaction may work on now, and when it should.

Follows Kafka's `LogCleanerManager` (`cleanableOffsets`, `grabFilthiestCompactedLog`), but for one thing: only whole sealed segments count,
those below the last stable offset with every record older than `min.compaction.lag.ms`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from chaffinch.storage.log_config import NEVER, LogConfig
from chaffinch.storage.log_state import LogState
from chaffinch.storage.segment import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanable:
    """`end_offset`: compaction may go up to it. `dirty_ratio`: share of bytes that it has not seen. `is_overdue`: a record has waited for
    `max.compaction.lag.ms`; `must_roll`: it stands in the last segment, which has to be sealed for that. `check_again_ms`: when by
    the wall clock the answer may be another one though nothing is written; None for never."""

    end_offset: int
    dirty_bytes: int
    dirty_ratio: float
    is_overdue: bool
    must_roll: bool
    check_again_ms: int | None

    def is_due(self, config: LogConfig) -> bool:
        return config.compacts and self.dirty_bytes > 0 and (self.is_overdue or self.dirty_ratio > config.dirty_ratio_min)


def cleanable(segments: Sequence[Segment], state: LogState, config: LogConfig, last_stable_offset: int, wall_ms: int) -> Cleanable:
    """Raises StorageError: a segment's first timestamp may have to be read."""
    clean_bytes = dirty_bytes = 0
    end_offset = state.first_dirty_offset
    check_again_ms: int | None = None
    first_dirty: Segment | None = None
    for segment in segments[:-1]:
        if segment.end_offset <= state.first_dirty_offset:
            clean_bytes += segment.size
            continue
        first_dirty = first_dirty or segment
        if segment.end_offset > last_stable_offset:
            check_again_ms = wall_ms  # A transaction may end without a new segment.
            break
        if config.compaction_lag_min_ms and segment.newest_ms > wall_ms - config.compaction_lag_min_ms:
            check_again_ms = segment.newest_ms + config.compaction_lag_min_ms
            break
        dirty_bytes += segment.size
        end_offset = segment.end_offset
    oldest = first_dirty or (segments[-1] if segments else None)
    is_overdue, overdue_ms = False, None
    if config.compaction_lag_max_ms != NEVER and oldest is not None and oldest.size:
        oldest_ms = oldest.first_timestamp if oldest.first_timestamp >= 0 else oldest.created_ms
        overdue_ms = oldest_ms + config.compaction_lag_max_ms + 1
        is_overdue = wall_ms >= overdue_ms
    total = clean_bytes + dirty_bytes
    if overdue_ms is not None and not is_overdue and (check_again_ms is None or overdue_ms < check_again_ms):
        check_again_ms = overdue_ms
    return Cleanable(
        end_offset=end_offset,
        dirty_bytes=dirty_bytes,
        dirty_ratio=dirty_bytes / total if total else 0.0,
        is_overdue=is_overdue,
        must_roll=is_overdue and first_dirty is None,
        check_again_ms=check_again_ms,
    )
