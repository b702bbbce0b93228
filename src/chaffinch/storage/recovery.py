"""Recovery of a partition log at start.

0. Finish the swap that `log.state` decided: a compacted segment replaces others (`complete_pending_swap`).
1. Load the newest trusted snapshot. Everything it covers must exist: a missing or short file is an error. Segments below the log's start
   are deleted if the snapshot holds their producer state; otherwise they are read once more first. Without a usable snapshot everything is
   read; a durable one still provides the producers of deleted segments.
2. Check the CRCs of the last bytes that the snapshot covers (`verify_bytes_max`): damage there is an error too.
3. Read later batches one by one: CRC, offsets in order, producers, aborted transactions. Without a snapshot this reads everything.
4. If reading stops before the end and no whole batch follows, it was a torn write: cut it off and log that. If a whole batch follows,
   acknowledged records are damaged: raise an error that names file and byte, and drop nothing.

Offsets must be consecutive over all segments, except for gaps below `LogState.gaps_below`, which compaction may have left, and the ranges
in `LogState.lost`, whose loss was accepted. A log that ends before `Expected.end`, or whose first file is missing, is an error.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace

from chaffinch.identifiers import NO_OFFSET
from chaffinch.records.batch_header import BatchView
from chaffinch.records.control_batch import read_control
from chaffinch.records.errors import CorruptBatch
from chaffinch.storage import log_state, snapshot
from chaffinch.storage.aborted_transactions import AbortedTransaction
from chaffinch.storage.batch_scan import BatchScan
from chaffinch.storage.batch_search import whole_batch_from
from chaffinch.storage.files import NEW_SUFFIX, CorruptLog, FileSystem
from chaffinch.storage.log_config import LogConfig
from chaffinch.storage.log_state import NOTHING_EXPECTED, Expected, LogState
from chaffinch.storage.producer_sequences import CompletedTransaction, ProducerSequences
from chaffinch.storage.segment import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    NAME_DIGITS,
    Segment,
    SegmentMark,
    remove_files,
    rename_cleaned,
    stem_of,
)
from chaffinch.storage.snapshot import Snapshot, SnapshotFiles

LOGGER = logging.getLogger(__name__)
UNFINISHED = "bytes of an unfinished write"
UNREADABLE = "bytes that cannot be read"
"""Descriptions of cut bytes: the tail of a torn write, or bytes that may have been intact before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A cut end: `bytes_cut` bytes of the file from byte `position` on. `what` describes them."""

    path: str
    position: int
    bytes_cut: int
    reason: str
    what: str = UNFINISHED

    def __str__(self) -> str:
        return f"cut {self.bytes_cut} {self.what} off {self.path} at byte {self.position}: {self.reason}"


@dataclass(slots=True, kw_only=True)
class RecoveredLog:
    """A recovered log.

    - `bytes_read`: bytes read during recovery.
    - `snapshot_names`: existing snapshot files, oldest first.
    - `durable_snapshot_offset`: end of the newest durable snapshot; -1 if there is none.
    - `is_durable_usable`: False if that snapshot provides producers only and must be rewritten.
    - `lacks_snapshot`: the producer state of deleted segments is unknown; the current state must be stored.
    """

    segments: list[Segment]
    producers: ProducerSequences
    log_start_offset: int
    log_end_offset: int
    cuts: list[Cut]
    bytes_read: int
    snapshot_names: list[str]
    durable_snapshot_offset: int
    is_durable_usable: bool
    lacks_snapshot: bool
    state: LogState


def note_completed(segment: Segment, completed: CompletedTransaction | None, producers: ProducerSequences) -> None:
    """After a marker: add an aborted transaction with records here to the segment's list, with the current last stable offset."""
    if completed is None or completed.is_commit:
        return
    first_ongoing = producers.first_ongoing_offset
    stable = completed.last_offset + 1 if first_ongoing is None else first_ongoing
    segment.aborted.add(AbortedTransaction(completed.producer_id, completed.first_offset, completed.last_offset, stable))


def recover(
    file_system: FileSystem, directory: str, config: LogConfig, steady_ms: int, expected: Expected = NOTHING_EXPECTED
) -> RecoveredLog:
    """Recover the log in `directory`, so that batches can be appended to it. Raises CorruptLog and StorageError."""
    names = file_system.list(directory)
    for name in names:
        if name.endswith(NEW_SUFFIX):
            file_system.remove(f"{directory}/{name}")
    state = with_start(file_system, directory, log_state.read(file_system, directory, names), expected.start)
    if state.swap is not None or any(state.log_start_offset >= base for base in bases_of(names)[1:]):
        # A killed process may not have synced the name that decides this, and files will be deleted because of it.
        file_system.sync_directory(directory)
    if state.swap is not None or any(name.endswith(CLEANED_SUFFIX) for name in names):
        complete_pending_swap(file_system, directory, state)
        names = file_system.list(directory)
    return Recovery(file_system, directory, config, steady_ms, names, state, expected).run()


def with_start(file_system: FileSystem, directory: str, state: LogState, log_start_offset: int) -> LogState:
    """`state` with a start of at least `log_start_offset`; creates the start file if it is lost. Durable on return."""
    if state.log_start_offset >= log_start_offset:
        return state
    log_state.create_start_file(file_system, directory, log_start_offset)
    file_system.sync_directory(directory)
    return replace(state, log_start_offset=log_start_offset)


def bases_of(names: Iterable[str]) -> list[int]:
    """Base offsets of the segments in a directory, ascending."""
    return sorted(int(name[:NAME_DIGITS]) for name in names if name.endswith(LOG_SUFFIX) and name[:NAME_DIGITS].isdigit())


def complete_pending_swap(file_system: FileSystem, directory: str, state: LogState) -> None:
    """Carry out the pending swap of `state` on disk; a repeated call finishes an interrupted one. Unused compacted files are removed.

    Raises CorruptLog, before any change, if the compacted segment is missing. Below the log's start it may have been deleted since; the
    segments that it replaced are removed anyway.
    """
    swap = state.swap
    if swap is not None:
        stem = stem_of(directory, swap.base_offset)
        is_there = _has_compacted(file_system, stem, swap, may_be_deleted=swap.end_offset <= state.log_start_offset)
        if is_there:
            rename_cleaned(file_system, stem)
        for base in bases_of(file_system.list(directory)):
            if swap.base_offset <= base < swap.end_offset and not (is_there and base == swap.base_offset):
                remove_files(file_system, stem_of(directory, base))
    for name in file_system.list(directory):
        if name.endswith(CLEANED_SUFFIX):
            file_system.remove(f"{directory}/{name}")


def _has_compacted(file_system: FileSystem, stem: str, swap: SegmentMark, *, may_be_deleted: bool) -> bool:
    """Whether the compacted segment exists, under either name. A file with its final name may also be the one it replaces."""
    has_name = not file_system.exists(stem + LOG_SUFFIX + CLEANED_SUFFIX)
    may_be_deleted &= has_name
    if may_be_deleted and not file_system.exists(stem + LOG_SUFFIX):
        return False
    log = file_system.open(stem + LOG_SUFFIX + ("" if has_name else CLEANED_SUFFIX), create=False)
    size, path = log.size, log.path
    log.close()
    if size != swap.size and not may_be_deleted:
        raise CorruptLog(path, min(size, swap.size), f"the compacted segment has {size} bytes; it had {swap.size}", is_loss=True)
    return size == swap.size


class Recovery:
    """One pass over one log; see the module docstring."""

    def __init__(
        self,
        file_system: FileSystem,
        directory: str,
        config: LogConfig,
        steady_ms: int,
        names: list[str],
        state: LogState,
        expected: Expected,
    ) -> None:
        self._file_system = file_system
        self._directory = directory
        self._config = config
        self._steady_ms = steady_ms
        self._bases = bases_of(names)
        self._snapshot_names = [name for name in names if name.endswith(snapshot.SUFFIX)]
        self._state = state
        self._expected = expected
        self._segments: list[Segment] = []
        self._producers = ProducerSequences()
        self._cuts: list[Cut] = []
        self._bytes_read = 0
        self._producers_end = 0  # `_producers` contains all batches below it.

    def run(self) -> RecoveredLog:
        taken = self._take_snapshot()
        durable = self._newest_durable(taken)
        unusable = durable if durable is not None and (taken is None or durable.log_end_offset > taken.log_end_offset) else None
        self._remove_snapshots_above(unusable or taken)
        if taken is not None:
            self._apply_snapshot(taken)
        elif self._expected.end and self._bases and self._bases[0] > self._state.log_start_offset:
            raise self._missing(self._state.log_start_offset, self._bases[0])
        known_end = max(found.log_end_offset if found is not None else 0 for found in (taken, durable))
        first = self._bases[0] if self._bases else self._state.log_start_offset
        if known_end < first and self._expected.end:
            raise self._snapshot_missing(first)
        self._read_on()
        self._check_end(self._segments[-1].end_offset if self._segments else self._state.log_start_offset)
        if unusable is not None:
            self._producers.add_unknown(ProducerSequences.from_rows(unusable.producers, self._steady_ms))
        start = self._log_start(taken)
        end = self._segments[-1].end_offset if self._segments else start
        if unusable is not None and end < unusable.log_end_offset:  # If it became usable again, it would lack what was cut off.
            self._remove_snapshots_above(taken)
            durable, unusable = self._newest_durable(taken), None
        return RecoveredLog(
            segments=self._segments,
            producers=self._producers,
            log_start_offset=start,
            log_end_offset=end,
            cuts=self._cuts,
            bytes_read=self._bytes_read,
            snapshot_names=self._snapshot_names,
            durable_snapshot_offset=durable.log_end_offset if durable is not None else NO_OFFSET,
            is_durable_usable=unusable is None,
            lacks_snapshot=known_end < first,
            state=self._state,
        )

    def _snapshot_missing(self, first: int) -> CorruptLog:
        """The producer state below offset `first` is lost: repeated batches would be stored twice."""
        path = self._file_system.describe(f"{self._directory}/{snapshot.name_of(first)}")
        reason = "the snapshot, or a later one, is missing or damaged; it held the sequences of producers of deleted segments"
        return CorruptLog(path, 0, reason, is_loss=True)

    def _missing(self, first: int, end: int) -> CorruptLog:
        path = self._file_system.describe(stem_of(self._directory, first) + LOG_SUFFIX)
        return CorruptLog(path, 0, f"the file is missing; it held the records of offsets {first} to {end - 1}", is_loss=True)

    def _check_end(self, end: int, damage: str | None = None) -> None:
        """Raise CorruptLog if records are missing at the end of the log, found to be `end`, because of `damage`."""
        if max(end, self._state.log_start_offset) >= self._expected.end:
            return
        if not self._segments:
            raise self._missing(end, self._expected.end)
        last = self._segments[-1]
        following = f"{end:0{NAME_DIGITS}d}{LOG_SUFFIX}"
        reason = f"the records end at offset {end}; they extended to offset {self._expected.end - 1}: it was cut, or {following} is missing"
        if damage is not None:
            reason = f"{damage}; it held the records of offsets {end} to {self._expected.end - 1}"
        raise CorruptLog(last.log.path, last.known_size, reason, is_loss=True)

    def _apply_snapshot(self, taken: Snapshot) -> None:
        """Use a snapshot, so that the part it covers need not be read."""
        self._verify_end(taken.segments)
        self._producers = ProducerSequences.from_rows(taken.producers, self._steady_ms)
        self._producers_end = taken.log_end_offset
        self._remove_below(min(self._state.log_start_offset, taken.log_end_offset))
        if self._bases and self._bases[0] > taken.log_end_offset:
            self._producers.forget_ongoing()

    def _log_start(self, taken: Snapshot | None) -> int:
        """Start offset of the log after reading. Segments that end before it were deleted, and are deleted again if a loss of power
        restored them.
        """
        first = self._segments[0].base_offset if self._segments else 0
        start = max(first if taken is None else taken.log_start_offset, self._state.log_start_offset)
        if self._segments and self._segments[-1].end_offset < start:
            for segment in self._segments:
                segment.remove()
            self._segments = []
        if not self._segments and (taken is None or taken.log_end_offset < start):
            self._producers.forget_ongoing()
        return start

    def _remove_snapshots_above(self, newest: Snapshot | None) -> None:
        """Remove snapshots above `newest`: they are unusable, and the log may end earlier now."""
        for name in [name for name in self._snapshot_names if newest is None or name > snapshot.name_of(newest.log_end_offset)]:
            self._file_system.remove(f"{self._directory}/{name}")
            self._snapshot_names.remove(name)

    def _remove_below(self, offset: int) -> None:
        """Delete segments entirely below `offset`. Afterwards only a snapshot holds their producer state, so it is synced first."""
        durable = self._newest_durable() if len(self._bases) > 1 and self._bases[1] <= offset else None
        if durable is not None:
            end = durable.log_end_offset
            SnapshotFiles(self._file_system, self._directory, self._snapshot_names, end, is_usable=True).sync_durable()
        while len(self._bases) > 1 and self._bases[1] <= offset:
            remove_files(self._file_system, stem_of(self._directory, self._bases.pop(0)))

    def _take_snapshot(self) -> Snapshot | None:
        for name in reversed(self._snapshot_names):
            found = snapshot.read(self._file_system, f"{self._directory}/{name}")
            if found is None or not found.is_trusted(self._file_system.incarnation):
                continue
            if not found.is_durable and self._has_uncovered_segments():
                continue
            found = snapshot.corrected(found, self._state)
            if found is not None and self._restore(found.segments):
                return found
            if found is not None:
                where = self._file_system.describe(f"{self._directory}/{name}")
                LOGGER.warning("%s cannot be used: a list of aborted transactions that it needs is missing or damaged", where)
        return None

    def _has_uncovered_segments(self) -> bool:
        """Whether segments below the log's start hold producers that no durable snapshot contains: they must be read again."""
        below = [end for end in self._bases[1:] if end <= self._state.log_start_offset]
        durable = self._newest_durable()
        return bool(below) and (durable is None or below[-1] > durable.log_end_offset)

    def _newest_durable(self, taken: Snapshot | None = None) -> Snapshot | None:
        """The newest durable snapshot; `taken` is already loaded."""
        for name in reversed(self._snapshot_names):
            is_taken = taken is not None and name == snapshot.name_of(taken.log_end_offset)
            found = taken if is_taken else snapshot.read(self._file_system, f"{self._directory}/{name}")
            if found is not None and found.is_durable:
                return found
        return None

    def _restore(self, marks: Iterable[SegmentMark]) -> bool:
        """Load the segments that a snapshot covers; False if its derived files are missing, so that it is unusable."""
        marks = list(marks)
        segments = []
        for mark in marks:
            path = stem_of(self._directory, mark.base_offset) + LOG_SUFFIX
            if mark.base_offset not in self._bases:
                missing = f"the file is missing; it held {mark.size} bytes of records"
                raise CorruptLog(self._file_system.describe(path), 0, missing, is_loss=True)
            segment = self._opened(mark.base_offset)
            segments.append(segment)
            if segment.size < mark.size or (segment.size > mark.size and mark is not marks[-1]):
                reason = f"the file ends here; it held {mark.size} bytes of records" if segment.size < mark.size else "bytes were added"
                raise CorruptLog(segment.log.path, min(segment.size, mark.size), reason, is_loss=True)
            if not segment.restore(mark):
                for opened in segments:
                    opened.close()
                return False
        self._segments = segments
        return True

    def _opened(self, base: int) -> Segment:
        return Segment(self._file_system, self._directory, base, self._config, create=False, created_ms=self._steady_ms)

    def _verify_end(self, marks: list[SegmentMark]) -> None:
        left = self._config.verify_bytes_max
        for segment, mark in zip(reversed(self._segments), reversed(marks), strict=True):
            if left <= 0:
                return
            offset, position = segment.index.floor_entry(max(0, mark.size - left))
            scan = BatchScan(segment.log, position, offset, end=mark.size, gaps_below=self._state.gaps_below)
            for _ in scan:
                pass
            if scan.damage is not None:
                found = whole_batch_from(segment.log, scan.position + 1, scan.offset + 1)
                if found is not None:
                    raise CorruptLog(segment.log.path, scan.position, f"{scan.damage}, and a whole batch follows at byte {found}")
                held = f"it held the records of offsets {scan.offset} to {segment.end_offset - 1}"
                raise CorruptLog(segment.log.path, scan.position, f"{scan.damage}; {held}", is_loss=True)
            left -= mark.size - position
            self._bytes_read += mark.size - position

    def _read_on(self) -> None:
        """Read everything after the snapshot: the rest of its last segment, and later ones."""
        if self._segments:
            last = self._segments[-1]
            bases = [base for base in self._bases if base > last.base_offset]
            if not self._read_segment(last, bases):
                return
        else:
            bases = self._bases
        for number, base in enumerate(bases):
            segment = self._opened(base)
            if self._segments and base != self._segments[-1].end_offset and (self._segments[-1].end_offset, base) not in self._state.lost:
                end = self._segments[-1]
                damage = f"offset {end.end_offset} comes next, but the next file begins at {base}"
                if not self._handle_damage(end, end.size, damage, bases[number:]):
                    return
            self._segments.append(segment)
            if not self._read_segment(segment, bases[number + 1 :]):
                return

    def _read_segment(self, segment: Segment, later: list[int]) -> bool:
        """Read `segment` from its known end; False if the log ends here, even if later files exist."""
        start = segment.known_size
        scan = BatchScan(segment.log, start, segment.end_offset, gaps_below=self._state.gaps_below)
        for position, view in scan:
            segment.extend(view.header, view.header.base_offset, position)
            if view.header.has_producer_id and view.header.base_offset >= self._producers_end:
                self._note_producer(segment, position, view)
        self._bytes_read += scan.position - start
        if scan.damage is None:
            return True
        return self._handle_damage(segment, scan.position, scan.damage, later)

    def _note_producer(self, segment: Segment, position: int, view: BatchView) -> None:
        header = view.header
        if not header.is_control:
            self._producers.append(header, header.base_offset, self._steady_ms)
            return
        try:
            is_commit, coordinator_epoch = read_control(view)
        except CorruptBatch as error:
            raise CorruptLog(segment.log.path, position, f"the marker of offset {header.base_offset} cannot be read: {error}") from error
        if is_commit is not None:
            completed = self._producers.complete(
                header.identity,
                is_commit=is_commit,
                coordinator_epoch=coordinator_epoch,
                offset=header.base_offset,
                timestamp=header.max_timestamp,
                steady_ms=self._steady_ms,
            )
            note_completed(segment, completed, self._producers)

    def _handle_damage(self, segment: Segment, position: int, damage: str, later: list[int]) -> bool:
        """Handle damage or a gap; False if the log ends here.

        Below the log's start it is not an error: these are remains of files being removed or compacted, and no reader sees them. The next
        start with a snapshot deletes them. Until then they are the only record of their producers.
        """
        if not later or later[0] > self._state.log_start_offset:
            self._cut(segment, position, damage, later)
            return False
        for unread in self._segments:
            unread.close()
        self._segments = []
        self._producers.forget_ongoing()
        return True

    def _cut(self, segment: Segment, position: int, damage: str, later: list[int]) -> None:
        """End the log at `position` of `segment`, unless a whole batch follows."""
        followers = [self._opened(base) for base in later]
        found = whole_batch_from(segment.log, position + 1, segment.end_offset + 1)
        if found is not None:
            raise CorruptLog(segment.log.path, position, f"{damage}, and a whole batch follows at byte {found}")
        for follower in followers:
            found = whole_batch_from(follower.log, 0, follower.base_offset)
            if found is not None:
                reason = f"{damage}, and a whole batch follows at byte {found} of {follower.log.path}"
                raise CorruptLog(segment.log.path, position, reason, is_loss=True)
        self._check_end(segment.end_offset, damage)
        if segment.size > position:
            self._report(Cut(path=segment.log.path, position=position, bytes_cut=segment.size - position, reason=damage))
            segment.log.truncate(position)
        for follower in followers:
            self._report(Cut(path=follower.log.path, position=0, bytes_cut=follower.size, reason=damage))
            follower.remove()

    def _report(self, cut: Cut) -> None:
        LOGGER.warning("%s", cut)
        self._cuts.append(cut)
