"""Log compaction, in slices that the broker's single thread runs between requests.

First the keys of all new records are read (`LatestOffsets`). Then the segments are rewritten, oldest first, each group into one new segment
next to the old ones. The new segment is synced, and `LogFiles.begin_swap` replaces the group with it. Until then readers see the old
segments. Appends continue, because only sealed segments are compacted. Afterwards the old files are removed, some in each slice.

A crash leaves the old segments or the new one. An error leaves the old segments, or the new one and unused files. Those are
removed by later calls of `LogFiles.end_swap`, or by the next compaction, which starts over.

The choice of the log and how far it may be compacted (`cleanable`) follow Kafka's `LogCleanerManager` (`cleanableOffsets`,
`grabFilthiestCompactedLog`) with one difference: only whole sealed segments are compacted, those below the last stable offset in which
every record is older than `min.compaction.lag.ms`.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from chaffinch.records.batch_header import BatchView, read_header
from chaffinch.records.key_filter import read_keys
from chaffinch.storage.batch_scan import BatchScan
from chaffinch.storage.compaction_rules import AbortedRanges, LatestOffsets, Rules
from chaffinch.storage.files import CorruptLog, StorageError
from chaffinch.storage.log_config import NEVER, LogConfig
from chaffinch.storage.log_state import LogState
from chaffinch.storage.offset_index import SPAN_MAX
from chaffinch.storage.partition_log import PartitionLog
from chaffinch.storage.segment import CLEANED_SUFFIX, Segment

SLICE_BYTES = 1 << 20
"""Approximate bytes that one `step` processes: a few milliseconds."""
SYNC_BYTES = 8 << 20
"""A new segment is synced after this many bytes, so that no single sync takes long."""
RECOMPRESSION_COST = 4
"""Approximate relative cost of a compressed byte."""
SEGMENT_COST = 16 << 10
"""Approximate cost of opening a segment, in bytes read."""
REMOVED_PER_SLICE = 50
"""Segments whose files one `step` removes: about 10 ms, as for retention."""


class Compaction:
    """One compaction of `log` up to `end_offset`; `cleanable` decides when and how far.

    `map_bytes_max`: memory for keys (`log.cleaner.dedupe.buffer.size`); compaction ends earlier if they do not fit.
    """

    def __init__(self, log: PartitionLog, end_offset: int, wall_ms: int, *, map_bytes_max: int) -> None:
        self.bytes_read = 0
        self.bytes_written = 0
        self._log = log
        self._files = log.files
        self._config = log.config
        self._end_offset = end_offset
        self._wall_ms = wall_ms
        self._map_bytes_max = map_bytes_max
        self._slice_bytes = 0
        self._oldest = self._files.segments[0]
        self._cleaned: Segment | None = None
        self._aborted = AbortedRanges(entry for segment in self._files.segments for entry in segment.aborted)
        self._latest = LatestOffsets(max(self._files.state.first_dirty_offset, self._oldest.base_offset))
        self._rules = Rules(
            self._latest,
            self._aborted,
            log.producers.last_entries(),
            wall_ms=wall_ms,
            delete_retention_ms=self._config.delete_retention_ms,
            decompressed_bytes_max=self._config.decompressed_bytes_max,
        )
        self._work = self._run()

    def step(self) -> bool:
        """Run one slice; True when the compaction is complete. StorageError and RecordsError end it; the log is then as before, or
        partly compacted.
        """
        if not self._files.segments or self._files.segments[0] is not self._oldest:
            self.abandon()  # Segments were deleted since the last slice, perhaps those being read.
            return True
        try:
            next(self._work)
        except StopIteration:
            return True
        except BaseException:
            self.abandon()
            raise
        return False

    def abandon(self) -> None:
        """Stop. A new segment that has not replaced the old ones is deleted now, or by the next compaction or start."""
        self._work.close()
        if self._cleaned is not None:
            self._cleaned.close()
            self._cleaned = None
            with suppress(StorageError):
                self._files.complete_pending_swap()

    def _run(self) -> Generator[None, None, None]:
        while not self._files.end_swap(REMOVED_PER_SLICE):  # A swap that an error left unfinished.
            yield
        self._files.complete_pending_swap()
        self._log.sync()  # A marker that decided whether a record was removed must survive once older records are removed because of it.
        failure = self._log.persist_producers(self._end_offset)
        if failure is not None:  # Snapshots inside that range are removed, and may be the only record of old producers.
            raise failure
        yield from self._read_new_keys()
        groups = self._groups()
        for number, group in enumerate(groups, 1):
            yield from self._clean(group, is_last=number == len(groups))

    def _read_new_keys(self) -> Iterator[None]:
        latest = self._latest
        for segment in self._files.segments[:-1]:
            if segment.base_offset >= self._end_offset:
                return
            if segment.end_offset <= latest.end_offset:
                continue
            position = segment.position_of(latest.end_offset) if segment.base_offset < latest.end_offset else 0
            for view in self._batches(segment, position, max(segment.base_offset, latest.end_offset)):
                header = view.header
                if not header.is_control and header.count and not self._aborted.holds(header):
                    records = read_keys(view, self._config.decompressed_bytes_max)
                    latest.add(records)
                    self._slice_bytes += len(records.payload)
                latest.end_offset = header.last_offset + 1
                if self._slice_is_over(view.size):
                    yield
                if latest.size_bytes >= self._map_bytes_max:
                    return

    def _groups(self) -> list[Sequence[Segment]]:
        """The segments to compact, in groups that become one segment each."""
        groups: list[list[Segment]] = []
        size = 0
        for segment in self._files.segments[:-1]:
            if segment.base_offset >= self._latest.end_offset:
                break
            size += segment.size
            is_full = size > self._config.segment_bytes or not groups or segment.end_offset - groups[-1][0].base_offset > SPAN_MAX
            if is_full:
                groups.append([])
                size = segment.size
            groups[-1].append(segment)
        return list(groups)

    def _clean(self, group: Sequence[Segment], *, is_last: bool) -> Iterator[None]:
        files = self._files
        cleaned = self._cleaned = Segment(
            files.file_system,
            files.directory,
            group[0].base_offset,
            self._config,
            created_ms=group[-1].created_ms,
            suffix=CLEANED_SUFFIX,
        )
        synced_bytes, is_changed = 0, len(group) > 1
        growth_left = SPAN_MAX - sum(segment.size for segment in group)  # Total growth allowed when recompressed batches get larger.
        for segment in group:
            for view in self._batches(segment, 0, segment.base_offset):
                ended = self._rules.note_marker(view.header) if view.header.is_control else None
                retained = self._rules.apply(view, is_last=segment is group[-1] and view.header.last_offset + 1 == segment.end_offset)
                if retained is not None and len(retained) - view.size > growth_left:
                    retained = view.data  # Keep all of its records: otherwise the file exceeds what an index can address.
                growth_left += view.size - (0 if retained is None else len(retained))
                is_changed = is_changed or retained is not view.data
                if retained is not None:
                    cleaned.append(retained, read_header(retained), view.header.base_offset)
                    if ended is not None:
                        cleaned.aborted.add(ended)
                is_compressed = retained is not view.data and view.header.compression_id
                if self._slice_is_over(view.size * RECOMPRESSION_COST if is_compressed else view.size):
                    yield
                if cleaned.size - synced_bytes >= SYNC_BYTES:
                    cleaned.log.sync()
                    synced_bytes = cleaned.size
                    yield
        cleaned.save()
        cleaned.sync_all()
        files.file_system.sync_directory(files.directory)
        yield
        self.bytes_written += cleaned.size
        yield from self._replace_segments(cleaned, group, is_changed=is_changed, is_last=is_last)

    def _replace_segments(self, cleaned: Segment, group: Sequence[Segment], *, is_changed: bool, is_last: bool) -> Iterator[None]:
        files = self._files
        first_dirty_offset = self._latest.end_offset if is_last else files.state.first_dirty_offset
        self._cleaned = None
        if is_changed:
            first = next(number for number, segment in enumerate(files.segments) if segment is group[0])
            try:
                files.begin_swap(cleaned, first, first + len(group), first_dirty_offset)
            finally:
                if cleaned not in files.segments:
                    cleaned.close()
            self._oldest = files.segments[0]
            while not files.end_swap(REMOVED_PER_SLICE):
                yield
        else:
            cleaned.remove()
            if is_last:
                files.note_compacted(first_dirty_offset)

    def _batches(self, segment: Segment, position: int, offset: int) -> Iterator[BatchView]:
        self._slice_bytes += SEGMENT_COST
        scan = BatchScan(segment.log, position, offset, end=segment.size, gaps_below=self._files.state.gaps_below)
        for _, view in scan:
            self.bytes_read += view.size
            yield view
        if scan.damage is not None:
            raise CorruptLog(segment.log.path, scan.position, f"{scan.damage}; it was intact before")

    def _slice_is_over(self, size: int) -> bool:
        self._slice_bytes += size
        if self._slice_bytes < SLICE_BYTES:
            return False
        self._slice_bytes = 0
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanable:
    """Result of `cleanable`.

    - `end_offset`: compaction may go up to this offset.
    - `dirty_ratio`: share of bytes that compaction has not processed.
    - `is_overdue`: a record has waited for `max.compaction.lag.ms`.
    - `must_roll`: that record is in the last segment, which must be sealed first.
    - `check_again_ms`: wall time at which the result may change although nothing is written; None for never.
    """

    end_offset: int
    dirty_bytes: int
    dirty_ratio: float
    is_overdue: bool
    must_roll: bool
    check_again_ms: int | None

    def is_due(self, config: LogConfig) -> bool:
        return config.compacts and self.dirty_bytes > 0 and (self.is_overdue or self.dirty_ratio > config.dirty_ratio_min)


def cleanable(segments: Sequence[Segment], state: LogState, config: LogConfig, last_stable_offset: int, wall_ms: int) -> Cleanable:
    """How far a log can be compacted now. Raises StorageError: a segment's first timestamp may have to be read."""
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
