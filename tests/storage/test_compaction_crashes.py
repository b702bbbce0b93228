"""Compaction over random histories, with a crash or an error in any step: readers and producers find the expected state."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace

import pytest

from chaffinch.storage.file_system import Interrupted, MemoryFileSystem, StorageError
from chaffinch.storage.partition_log import PartitionLog
from tests.storage.compacted_log import busy_log, committed, compact, last_values, live, records
from tests.storage.orders_log import DIRECTORY, ORDERS

pytestmark = pytest.mark.long


@pytest.mark.parametrize("seed", range(40))
def test_compaction_keeps_last_values_and_sequences(seed: int) -> None:
    files = MemoryFileSystem()
    log = busy_log(files, seed)
    before = committed(log)
    end = log.log_end_offset
    duplicates = {number: [tuple(batch) for batch in state.batches] for number, state in log.producers._states.items()}
    steady_ms = 10_000
    for _ in range(4):
        compact(log, steady_ms)
        after = committed(log)
        assert live(last_values(after)) == live(last_values(before))
        assert set(after) <= set(before)
        assert log.log_end_offset == end
        steady_ms += 60
    files.kill()
    log = PartitionLog.open(files, DIRECTORY, ORDERS, log.config, 0)
    assert committed(log) == after
    assert {number: [tuple(batch) for batch in state.batches] for number, state in log.producers._states.items()} == duplicates
    files.kill()
    for name in files.list(DIRECTORY):
        if not name.endswith((".log", ".state")):
            files.remove(f"{DIRECTORY}/{name}")
    log = PartitionLog.open(files, DIRECTORY, ORDERS, log.config, 0)
    assert committed(log) == after
    assert {number: [tuple(batch) for batch in state.batches[-1:]] for number, state in log.producers._states.items()} == {
        number: batches[-1:] for number, batches in duplicates.items()
    }


class Ending:
    """Raises inside operation number `at`, counted from now."""

    def __init__(self, at: int, error: type[BaseException] = Interrupted) -> None:
        self.left = at
        self.error = error

    def __call__(self, operation: str, path: str, size: int) -> None:
        if operation in ("read", "lock"):
            return
        self.left -= 1
        if self.left < 0 and self.error is Interrupted:
            raise Interrupted(size // 2)
        if self.left < 0:
            raise StorageError(path, operation, "No space left on device")


def end_process(files: MemoryFileSystem, seed: int, *, by_power: bool) -> None:
    """Its files as a kill leaves them, or a loss of power."""
    rng = random.Random(seed)
    if by_power:
        files.crash(lambda path, unsynced: rng.choice([0, unsynced, rng.randint(0, unsynced)]))
    else:
        files.kill()


def steps_of_a_compaction() -> int:
    files = MemoryFileSystem()
    log = busy_log(files, 5, count=24)
    log.sync()
    counter = Ending(10**9)
    files.hook = counter
    compact(log, 10_000)
    return 10**9 - counter.left


@pytest.mark.parametrize("ends_by_power", [False, True])
def test_crash_in_any_step_keeps_the_last_values(ends_by_power: bool) -> None:
    steps = steps_of_a_compaction()
    assert steps > 30
    for at in range(steps):
        files = MemoryFileSystem()
        log = busy_log(files, 5, count=24)
        before, end = committed(log), log.log_end_offset
        log.sync()
        files.hook = Ending(at)
        with pytest.raises(Interrupted):
            compact(log, 10_000)
        files.hook = None
        end_process(files, at, by_power=ends_by_power)
        log = PartitionLog.open(files, DIRECTORY, ORDERS, log.config, 0)
        assert log.cuts == []
        assert log.log_end_offset == end
        after = committed(log)
        assert live(last_values(after)) == live(last_values(before)), at
        assert set(after) <= set(before)
        compact(log, 20_000)
        assert live(last_values(committed(log))) == live(last_values(before)), at
        assert not [name for name in files.list(DIRECTORY) if name.endswith((".cleaned", ".new"))]
        log.close()
        files.kill()
        assert committed(PartitionLog.open(files, DIRECTORY, ORDERS, log.config, 0)) == committed(log.open(files, DIRECTORY, ORDERS))


def test_records_read_after_a_kill_survive_a_loss_of_power() -> None:
    """The next process sees names that the one before was killed over before it could sync them."""
    for at in range(steps_of_a_compaction()):
        files = MemoryFileSystem()
        log = busy_log(files, 5, count=24)
        log.sync()
        files.hook = Ending(at)
        with pytest.raises(Interrupted):
            compact(log, 10_000)
        files.hook = None
        files.kill()
        shown = committed(PartitionLog.open(files, DIRECTORY, ORDERS, log.config, 0))
        files.crash(lambda _path, _unsynced: 0)
        assert committed(PartitionLog.open(files, DIRECTORY, ORDERS, log.config, 0)) == shown, at


def test_log_accepts_records_after_an_error_in_any_step() -> None:
    steps = steps_of_a_compaction()
    for at in range(steps):
        files = MemoryFileSystem()
        log = busy_log(files, 5, count=24)
        before = committed(log)
        files.hook = Ending(at, StorageError)
        with pytest.raises(StorageError):
            compact(log, 10_000)
        files.hook = None
        assert live(last_values(committed(log))) == live(last_values(before)), at
        log.append(records(("new", "1")), steady_ms=0)
        if at % 2:
            log.roll(0)
            compact(log, 20_000)
            assert not [name for name in files.list(DIRECTORY) if name.endswith((".cleaned", ".new"))]
        expected = {**live(last_values(before)), b"new": b"1"}
        assert live(last_values(committed(log))) == expected, at
        files.kill()
        log = PartitionLog.open(files, DIRECTORY, ORDERS, log.config, 0)
        assert live(last_values(committed(log))) == expected, at


class TestBelowTheStart:
    """What compaction puts in the place of others may lie below the log's start, when that moves: in the end nothing of either stays."""

    def filled(self, files: MemoryFileSystem) -> PartitionLog:
        """Many segments, which become one."""
        log = busy_log(files, 5, count=24)
        assert len(log.files.segments) == 6
        log.config = replace(log.config, segment_bytes=100_000)
        log.sync()
        return log

    @pytest.mark.parametrize("starts_first", [False, True])
    def test_replaced_segment_below_the_start_is_removed_by_the_next_check(self, starts_first: bool) -> None:
        files = MemoryFileSystem()
        log = self.filled(files)
        continue_after_compaction(log, log.log_end_offset, starts_first=starts_first)
        assert len(log.files.segments) == 1
        assert leftover_files(files, log) == []

    @pytest.mark.parametrize("starts_first", [False, True])
    def test_no_segment_below_the_start_is_left_after_an_error_in_any_step(self, starts_first: bool) -> None:
        for at in range(100):
            files = MemoryFileSystem()
            log = self.filled(files)
            end, known = log.log_end_offset, last_batches(log)
            if starts_first:
                log.delete_records_before(end, 0)
            files.hook = Ending(at, StorageError)
            is_over = False
            with suppress(StorageError):
                compact(log, 10_000)
                is_over = True
            files.hook = None
            log.delete_records_before(end, 0)
            log.delete_old_segments(0)
            log.append(records(("new", "1")), steady_ms=0)
            log.roll(0)
            compact(log, 20_000)
            assert leftover_files(files, log) == [], at
            files.kill()
            log = PartitionLog.open(files, DIRECTORY, ORDERS, log.config, 0)
            assert (log.log_start_offset, log.log_end_offset) == (end, end + 1)
            assert last_batches(log) == known, at
            if is_over:
                assert at > 20
                return
        raise AssertionError("it has no end")

    @pytest.mark.parametrize("ends_by_power", [False, True])
    @pytest.mark.parametrize("starts_first", [False, True])
    def test_no_segment_below_the_start_is_left_after_a_crash_in_any_step(self, starts_first: bool, ends_by_power: bool) -> None:
        for at in range(200):
            files = MemoryFileSystem()
            log = self.filled(files)
            end, known = log.log_end_offset, last_batches(log)
            files.hook = Ending(at)
            is_over = False
            with suppress(Interrupted):
                continue_after_compaction(log, end, starts_first=starts_first)
                is_over = True
            files.hook = None
            end_process(files, at, by_power=ends_by_power)
            log = PartitionLog.open(files, DIRECTORY, ORDERS, log.config, 0)
            assert last_batches(log) == known, at
            continue_after_compaction(log, end, starts_first=starts_first)
            assert leftover_files(files, log) == [], at
            log.close()
            files.kill()
            log = PartitionLog.open(files, DIRECTORY, ORDERS, log.config, 0)
            assert (log.log_start_offset, log.log_end_offset) == (end, end)
            assert last_batches(log) == known, at
            if is_over:
                assert at > 40
                return
        raise AssertionError("it has no end")


def continue_after_compaction(log: PartitionLog, start: int, *, starts_first: bool) -> None:
    """Be compacted and start later, in either order; then old segments are deleted."""
    if starts_first:
        log.delete_records_before(start, 0)
    if log.files.segments:
        compact(log, 10_000)
    log.delete_records_before(start, 0)
    log.delete_old_segments(0)


def leftover_files(files: MemoryFileSystem, log: PartitionLog) -> list[str]:
    """Files of segments that the log does not have, or under names that no code reads."""
    bases = {f"{segment.base_offset:020d}" for segment in log.files.segments}
    names = [name for name in files.list(DIRECTORY) if not name.endswith((".snapshot", ".start", ".state"))]
    return [name for name in names if name[:20] not in bases or name.endswith((".cleaned", ".new"))]


def last_batches(log: PartitionLog) -> dict[int, list[tuple[int, ...]]]:
    return {number: [tuple(batch) for batch in state.batches[-1:]] for number, state in log.producers._states.items()}
