"""Recovery of a log with missing records, after the user accepted the loss (`accept.data.loss`).

All remaining records keep their offsets. Offsets of lost records are never reused: a consumer positioned there continues with the next
record and does not skip new ones. A range lost between two segments is listed in `LogState.lost`. One at the beginning moves the log's
start. After one at the end a new segment begins at the log's former end.

Damage is not a loss: a damaged batch followed by a whole batch in the same file is refused as always.
"""

import logging
from contextlib import suppress
from dataclasses import replace

from chaffinch.identifiers import NO_OFFSET
from chaffinch.storage import log_state
from chaffinch.storage.batch_search import whole_batch_from
from chaffinch.storage.files import NEW_SUFFIX, CorruptLog, FileSystem, StorageError
from chaffinch.storage.log_config import NEVER, LogConfig
from chaffinch.storage.log_state import NOTHING_EXPECTED, Expected, LogState
from chaffinch.storage.recovery import UNREADABLE, Cut, RecoveredLog, Recovery, bases_of, complete_pending_swap, with_start
from chaffinch.storage.segment import LOG_SUFFIX, Segment, remove_files, stem_of
from chaffinch.storage.snapshot import Snapshot

LOGGER = logging.getLogger(__name__)


def recover_with_loss(
    file_system: FileSystem, directory: str, config: LogConfig, steady_ms: int, expected: Expected, refusal: CorruptLog
) -> RecoveredLog:
    """Open the log that `recover` refused, and log the loss. The caller takes a snapshot: the older ones are removed.

    Raises CorruptLog for a damaged log, StorageError.
    """
    for name in file_system.list(directory):
        if name.endswith(NEW_SUFFIX):
            file_system.remove(f"{directory}/{name}")
    state = _settled(file_system, directory, with_start(file_system, directory, _state(file_system, directory), expected.start))
    for base in bases_of(file_system.list(directory)):
        if file_system.open(f"{stem_of(directory, base)}{LOG_SUFFIX}", create=False).size == 0:
            remove_files(file_system, stem_of(directory, base))
    names = file_system.list(directory)
    recovery = _LossyRecovery(file_system, directory, config, steady_ms, names, state, NOTHING_EXPECTED)
    recovered = recovery.run_up_to(expected.end)
    where = file_system.describe(directory)
    for first, end in recovery.lost:
        LOGGER.warning("%s: %d offsets are lost, %d to %d: the loss is accepted", where, end - first, first, end - 1)
    if not recovery.lost:
        LOGGER.warning("%s; the log continues without the missing records: the loss is accepted", refusal)
    return recovered


def _state(file_system: FileSystem, directory: str) -> LogState:
    """`log.state`, or without it a state that allows gaps everywhere, since compaction may have left some."""
    names = file_system.list(directory)
    with suppress(CorruptLog):
        if log_state.NAME in names:
            return log_state.read(file_system, directory, names)
    return LogState(log_start_offset=log_state.start_of(names), gaps_below=NEVER)


def _settled(file_system: FileSystem, directory: str, state: LogState) -> LogState:
    """`state` without a pending swap, which is carried out, or abandoned if its files are lost."""
    try:
        complete_pending_swap(file_system, directory, state)
    except StorageError as error:
        complete_pending_swap(file_system, directory, replace(state, swap=None))
        LOGGER.warning("%s; the compacted segment is abandoned: the loss is accepted", error)
    return replace(state, swap=None)


class _LossyRecovery(Recovery):
    """Recovery that accepts losses. `lost`: ranges [first, end) of missing offsets."""

    lost: list[tuple[int, int]]

    def run_up_to(self, expected_end: int) -> RecoveredLog:
        """Recover the remaining records; afterwards the log ends at or after `expected_end`. Durable on return."""
        self.lost = []
        first = self._bases[0] if self._bases else expected_end
        if first > self._state.log_start_offset:
            self._advance_start(first)
        recovered = self.run()
        end = max(expected_end, recovered.log_end_offset)
        segments = recovered.segments
        if recovered.log_end_offset < end:
            if segments and not segments[-1].size:
                segments.pop().remove()
            if segments:
                self.lost.append((segments[-1].end_offset, end))
                segments.append(Segment(self._file_system, self._directory, end, self._config, created_ms=self._steady_ms))
            else:
                self._advance_start(end)
                recovered.log_start_offset = end
        for segment in segments:
            segment.log.sync()
        self._remove_snapshots_above(None)
        recovered.durable_snapshot_offset, recovered.is_durable_usable = NO_OFFSET, True
        recovered.log_end_offset = end
        recovered.state = self._save_state(end)
        return recovered

    def _save_state(self, end: int) -> LogState:
        holes = [(first, stop) for first, stop in self.lost if first > self._state.log_start_offset]
        gaps_below = max([min(self._state.gaps_below, end), *(stop for _, stop in holes)])
        state = replace(self._state, gaps_below=gaps_below, lost=(*self._state.lost, *holes))
        log_state.write(self._file_system, self._directory, state)
        return state

    def _advance_start(self, offset: int) -> None:
        self.lost.append((self._state.log_start_offset, offset))
        self._state = with_start(self._file_system, self._directory, self._state, offset)

    def _take_snapshot(self) -> Snapshot | None:
        return None

    def _report(self, cut: Cut) -> None:
        super()._report(replace(cut, what=UNREADABLE))

    def _handle_damage(self, segment: Segment, position: int, damage: str, later: list[int]) -> bool:
        refusal = f"{damage}: the file is damaged, which is not a loss that can be accepted"
        if _has_reused_offset(segment, position):
            raise CorruptLog(segment.log.path, position, refusal)
        followers = [self._opened(base) for base in later]
        if all(whole_batch_from(follower.log, 0, follower.base_offset) is None for follower in followers):
            return super()._handle_damage(segment, position, damage, later)
        if later[0] < segment.end_offset or whole_batch_from(segment.log, position + 1, segment.end_offset + 1) is not None:
            raise CorruptLog(segment.log.path, position, refusal)
        if position == 0:
            segment.remove()
            self._segments.remove(segment)
            if not self._segments:
                self._advance_start(later[0])
            return True
        if segment.size > position:
            segment.log.truncate(position)
        if (segment.end_offset, later[0]) not in self.lost:
            self.lost.append((segment.end_offset, later[0]))
        return True


def _has_reused_offset(segment: Segment, position: int) -> bool:
    """Whether a whole batch at `position` has an offset already in use.

    Then an earlier batch has a wrong offset, which no CRC covers, and was accepted as one after a gap.
    """
    found = whole_batch_from(segment.log, position, segment.base_offset)
    return found == position and whole_batch_from(segment.log, position, segment.end_offset) != position
