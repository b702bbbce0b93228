"""Files of one log: its segments in order, its snapshots, and `log.state`, which decides which of them count.

A change that takes several disk operations is decided by writing `log.state`, atomically, and carried out afterwards. If a crash or an
error interrupts it, the next start or `complete_pending_swap` finishes it.
"""

import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from chaffinch.storage import log_state, recovery
from chaffinch.storage.files import FileSystem, StorageError, try_sync_all
from chaffinch.storage.log_config import LogConfig
from chaffinch.storage.log_state import LogState
from chaffinch.storage.recovery import RecoveredLog
from chaffinch.storage.segment import Segment, SegmentMark
from chaffinch.storage.snapshot import Snapshot, SnapshotFiles

SYNCS_MAX = 8
"""With more files than this, the whole file system is synced once: 5 ms, where one file took 4. If another process has just written 1.5
GB to the same disk, that sync takes a second, so a few files are synced one by one."""


class LogFiles:
    """See the module docstring. `segments`: oldest first; the last one is being written. `state`: the durable state, or the one that
    `complete_pending_swap` makes durable.
    """

    __slots__ = (
        "_base_offsets",
        "_is_state_certain",
        "_pending_removals",
        "_replaced",
        "_sealed_marks",
        "_uncorrected",
        "directory",
        "file_system",
        "segments",
        "snapshots",
        "state",
    )

    def __init__(self, file_system: FileSystem, directory: str, recovered: RecoveredLog) -> None:
        self.file_system = file_system
        self.directory = directory
        self.segments = recovered.segments
        self.snapshots = SnapshotFiles(
            file_system,
            directory,
            recovered.snapshot_names,
            recovered.durable_snapshot_offset,
            is_usable=recovered.is_durable_usable,
        )
        self.state = recovered.state
        self._base_offsets = [segment.base_offset for segment in recovered.segments]
        self._is_state_certain = True
        self._pending_removals: list[Segment] = []  # Removed from the log, but not all of their files are deleted.
        self._replaced: deque[Segment] = deque()  # Replaced by the pending swap; their files still exist.
        self._uncorrected: list[str] | None = None  # Snapshots that may predate the pending swap; None before it is carried out.
        self._sealed_marks: list[SegmentMark] = []  # Of the oldest segments, which neither change nor need saving any more.

    def from_offset(self, offset: int) -> Sequence[Segment]:
        """The segment that holds `offset`, and the later ones."""
        return self.segments[max(0, bisect_right(self._base_offsets, offset) - 1) :]

    def create_segment(self, base_offset: int, config: LogConfig, wall_ms: int) -> Segment:
        """An empty segment, not yet part of the log. Raises StorageError."""
        return Segment(self.file_system, self.directory, base_offset, config, created_ms=wall_ms)

    def add_segment(self, segment: Segment) -> None:
        """Append the segment that is written from now on."""
        self.segments.append(segment)
        self._base_offsets.append(segment.base_offset)

    def replace_segments(self, start: int, stop: int, *replacements: Segment) -> list[Segment]:
        """Replace segments `start` to `stop` - 1, in memory only; returns them."""
        taken = self.segments[start:stop]
        self.segments[start:stop] = replacements
        self._base_offsets[start:stop] = [segment.base_offset for segment in replacements]
        del self._sealed_marks[start : None if replacements else stop]
        return taken

    def remove(self, count: int, *, retries_failed: bool) -> StorageError | None:
        """Delete the oldest segments, and with `retries_failed` those whose deletion failed before. Returns the last error, if a file
        remains.
        """
        segments, failure = self.replace_segments(0, count), None
        if retries_failed:
            segments, self._pending_removals = self._pending_removals + segments, []
        for segment in segments:
            try:
                segment.remove()
            except StorageError as error:
                self._pending_removals.append(segment)
                failure = error
        return failure

    def save(self) -> list[SegmentMark]:
        """Write the derived files of all segments; returns the marks that a snapshot needs to find them. Raises StorageError."""
        sealed = self._sealed_marks
        for segment in self.segments[len(sealed) : -1]:
            sealed.append(segment.save())
        return [*sealed, *(segment.save() for segment in self.segments[-1:])]

    def create_start_file(self, log_start_offset: int) -> None:
        """Create the file whose name is the log's start offset.

        It counts at once if the process is killed, and permanently once the caller has synced the directory. Raises StorageError; needs no
        disk space.
        """
        log_state.create_start_file(self.file_system, self.directory, log_start_offset)

    def note_start(self, log_start_offset: int) -> None:
        """Record that the start file is durable."""
        before = self.state.log_start_offset
        self.state = replace(self.state, log_start_offset=log_start_offset)
        with suppress(StorageError):  # The largest start counts.
            log_state.remove_start_file(self.file_system, self.directory, before)

    def write_state(self, state: LogState) -> None:
        """Durable on return. After StorageError either state may be on disk, until `complete_pending_swap`."""
        self._is_state_certain = False
        log_state.write(self.file_system, self.directory, state)
        self._is_state_certain = True
        self.state = state

    def complete_pending_swap(self) -> None:
        """Finish a swap that an error interrupted: afterwards none is pending, and no unused compacted file exists. Raises StorageError."""
        if not self._is_state_certain:
            self.write_state(self.state)
        if self.state.swap is not None:
            while not self.end_swap():
                pass
        else:
            recovery.complete_pending_swap(self.file_system, self.directory, self.state)

    def begin_swap(self, cleaned: Segment, first: int, stop: int, first_dirty_offset: int) -> None:
        """Replace segments `first` to `stop` - 1 with `cleaned`, whose files are synced. Renaming `log.state` makes this atomic.

        `end_swap` removes the old files. Until then the log can be used normally. The next start, or `complete_pending_swap`, finishes an
        interrupted swap. Raises StorageError, after which the log is as before or as intended; see `complete_pending_swap`.
        """
        mark = cleaned.mark()
        gaps_below = max(self.state.gaps_below, mark.end_offset)
        self.write_state(replace(self.state, swap=mark, gaps_below=gaps_below, first_dirty_offset=first_dirty_offset))
        taken = self.replace_segments(first, stop, cleaned)
        for segment in taken:
            segment.close()
        self._replaced.extend(taken[1:])  # The first segment's files are overwritten by the new ones.
        cleaned.adopt_final_names()

    def end_swap(self, count_max: int = sys.maxsize) -> bool:
        """Remove the files of at most `count_max` replaced segments; once they are gone, carry out one more step. True once no swap is
        pending.

        Raises StorageError after trying all of them. Files that could not be removed come last in later calls.
        """
        failure: StorageError | None = None
        count = min(count_max, len(self._replaced))
        for _ in range(count):
            segment = self._replaced.popleft()
            try:
                segment.remove()
            except StorageError as error:
                self._replaced.append(segment)
                failure = error
        if failure is not None:
            raise failure
        return not count and (self.state.swap is None or self._complete_swap())

    def note_compacted(self, first_dirty_offset: int) -> None:
        """Record that compaction found nothing to remove below `first_dirty_offset`. Raises StorageError."""
        self.write_state(replace(self.state, first_dirty_offset=first_dirty_offset))

    def _complete_swap(self) -> bool:
        """Rename the files, then correct the snapshots, one per call: with 12,000 segments a snapshot takes 50 ms. True when nothing
        refers to the old files.
        """
        if self._uncorrected is None:
            self._rename_segments()
            recovery.complete_pending_swap(self.file_system, self.directory, self.state)
            self.file_system.sync_directory(self.directory)
            self._uncorrected = self.snapshots.names()
        if self._uncorrected:
            self.snapshots.correct(self._uncorrected[-1], self.state)
            self._uncorrected.pop()
            return False
        self.write_state(replace(self.state, swap=None))  # Renamed after the segments' files, so it is durable only if they are.
        self._uncorrected = None
        return True

    def _rename_segments(self) -> None:
        for segment in self.segments:
            segment.adopt_final_names()

    def add_snapshot(self, taken: Snapshot) -> None:
        """Raises StorageError."""
        if self.state.swap is not None:
            self._rename_segments()  # Otherwise it would refer to names that do not exist yet.
        if taken.is_needed:
            self._sync_aborted()
        self.snapshots.add(taken)

    def sync_snapshot(self) -> None:
        """Sync the newest durable snapshot and the lists of aborted transactions that it needs, but not their names. Raises
        StorageError.
        """
        self._sync_aborted()
        self.snapshots.sync_durable()

    def _sync_aborted(self) -> None:
        unsynced = [segment for segment in self.segments if segment.has_unsynced_aborted]
        if len(unsynced) > SYNCS_MAX and try_sync_all(self.file_system):
            self.note_aborted_synced()
            return
        for segment in unsynced:
            segment.sync_aborted()

    def note_aborted_synced(self) -> None:
        """The whole file system was synced since the last `save`."""
        for segment in self.segments:
            segment.note_aborted_synced()
