"""Compaction works in slices, for any distribution over segments; between two slices the log is complete."""

from __future__ import annotations

import pytest

from chaffinch.storage.compaction import REMOVED_PER_SLICE, Compaction
from chaffinch.storage.file_system import MemoryFileSystem, StorageError
from chaffinch.storage.partition_log import PartitionLog
from tests.storage.compacted_log import opened, records, rows
from tests.storage.orders_log import DIRECTORY


def test_compaction_reads_in_slices() -> None:
    log = opened(MemoryFileSystem())
    for number in range(64):
        log.append(records((f"k{number % 2}", "x" * 100_000)), steady_ms=0)
    log.roll(0)
    job = Compaction(log, 64, 0, map_bytes_max=1 << 30)
    steps, before = 0, 0
    while not job.step():
        assert job.bytes_read - before <= 1_200_000
        before = job.bytes_read
        steps += 1
        log.append(records(("new", "x")), steady_ms=0)
    assert steps >= 12
    assert len(rows(log)) == 2 + steps


def small_segments(files: MemoryFileSystem, count: int) -> PartitionLog:
    """`count` segments of one record each, of two keys, and an active one."""
    log = opened(files, retention_ms=0)
    for number in range(count):
        log.append(records((f"k{number % 2}", "x")), steady_ms=0)
        log.roll(0)
    log.append(records(("last", "x")), steady_ms=0)
    return log


def finish(job: Compaction) -> None:
    while not job.step():
        pass


def logs_in(files: MemoryFileSystem) -> int:
    return len([name for name in files.list(DIRECTORY) if name.endswith(".log")])


def keys(log: PartitionLog) -> list[bytes | None]:
    return [key for _, key, _ in rows(log)]


def test_many_small_segments_are_read_and_removed_in_slices() -> None:
    files = MemoryFileSystem()
    log = small_segments(files, 400)
    work = {"read": 0, "remove": 0}

    def count(operation: str, path: str, size: int) -> None:
        if path.endswith(".log") and operation in work:
            work[operation] += 1

    files.hook = count
    job = Compaction(log, 400, 0, map_bytes_max=1 << 30)
    totals = dict.fromkeys(work, 0)
    is_done = False
    while not is_done:
        is_done = job.step()
        assert work["read"] <= 70
        assert work["remove"] <= REMOVED_PER_SLICE
        for operation in work:
            totals[operation] += work[operation]
            work[operation] = 0
    assert totals["read"] >= 800, "for their keys, and to be rewritten"
    assert totals["remove"] == 399, "the new one has taken the name of the first"
    assert keys(log) == [b"k0", b"k1", b"last"]


def test_each_slice_corrects_one_snapshot() -> None:
    """Each may speak of thousands of segments."""
    files = MemoryFileSystem()
    log = small_segments(files, 50)
    for _ in range(2):  # What a checkpoint leaves, and the one before.
        log.append(records(("last", "y")), steady_ms=0)
        log._checkpoint()
    read: list[str] = []
    removed: list[str] = []

    def note(operation: str, path: str, size: int) -> None:
        if operation == "read" and path.endswith(".snapshot"):
            read.append(path)
        if operation == "remove" and path.endswith(".log"):
            removed.append(path)

    job = Compaction(log, 50, 0, map_bytes_max=1 << 30)
    files.hook = note
    seen, is_done = 0, False
    while not is_done:
        is_done = job.step()
        assert len(read) - seen <= (0 if removed else 1), "none where files are removed"
        seen = len(read)
        removed.clear()
    assert seen >= 2
    assert log.files.state.swap is None
    files.hook = None
    files.kill()
    assert keys(opened(files)) == [b"k0", b"k1", b"last", b"last", b"last"]


@pytest.mark.parametrize("happens", ["snapshot", "death", "retention", "abandoned"])
def test_new_segment_is_valid_between_two_slices_of_removal(happens: str) -> None:
    files = MemoryFileSystem()
    log = small_segments(files, 200)
    job = Compaction(log, 200, 0, map_bytes_max=1 << 30)
    while len(log.files.segments) > 2:
        assert not job.step()
    assert log.files.state.swap is not None
    left = logs_in(files)
    assert left > 100
    if happens == "retention":
        assert log.delete_old_segments(10**9) == 2
        assert job.step()
        assert logs_in(files) == left - 2, "not all at once"
        while not log.files.end_swap(REMOVED_PER_SLICE):
            assert logs_in(files) < left - 2
        assert logs_in(files) == 0
        return
    if happens == "snapshot":
        log._checkpoint()
        assert logs_in(files) == left, "not all at once for it"
        finish(job)
    if happens == "abandoned":
        job.abandon()
    files.kill()
    log = opened(files)
    assert keys(log) == [b"k0", b"k1", b"last"]
    assert logs_in(files) == 2


class Refusing:
    """Removals of one log file, of a number of them; counts all that are tried."""

    def __init__(self, files: MemoryFileSystem, base_offset: int) -> None:
        self.times = 1
        self.tried = 0
        self._path = f"{DIRECTORY}/{base_offset:020d}.log"
        files.hook = self

    def __call__(self, operation: str, path: str, size: int) -> None:
        if operation == "remove":
            self.tried += 1
            if path == self._path and self.times:
                self.times -= 1
                raise StorageError(path, operation, "Device or resource busy")


def test_file_that_cannot_be_removed_keeps_no_other_files() -> None:
    files = MemoryFileSystem()
    log = small_segments(files, REMOVED_PER_SLICE)
    refusing = Refusing(files, 1)
    job = Compaction(log, REMOVED_PER_SLICE, 0, map_bytes_max=1 << 30)
    with pytest.raises(StorageError, match="busy"):
        finish(job)
    assert logs_in(files) == 3
    assert log.files.state.swap is not None
    log.files.complete_pending_swap()
    assert (logs_in(files), refusing.times) == (2, 0)
    assert log.files.state.swap is None


def test_files_left_by_an_error_are_removed_in_slices_by_the_next_compaction() -> None:
    files = MemoryFileSystem()
    log = small_segments(files, 400)
    refusing = Refusing(files, 1)
    job = Compaction(log, 400, 0, map_bytes_max=1 << 30)
    with pytest.raises(StorageError, match="busy"):
        finish(job)
    assert logs_in(files) > 300
    log.roll(0)
    log.append(records(("end", "x")), steady_ms=0)
    job = Compaction(log, 401, 0, map_bytes_max=1 << 30)
    is_done = False
    while not is_done:
        refusing.tried = 0
        is_done = job.step()
        assert refusing.tried <= REMOVED_PER_SLICE
    assert keys(log) == [b"k0", b"k1", b"last", b"end"]
    assert logs_in(files) == 2


def test_failed_rename_is_repeated_before_the_next_snapshot() -> None:
    """Without all the rest, which takes long."""
    files = MemoryFileSystem()
    log = small_segments(files, 200)

    def hook(operation: str, path: str, size: int) -> None:
        if operation == "rename" and path.endswith(".cleaned"):
            raise StorageError(path, operation, "Input/output error")

    files.hook = hook
    job = Compaction(log, 200, 0, map_bytes_max=1 << 30)
    with pytest.raises(StorageError, match="Input/output"):
        finish(job)
    files.hook = None
    log._checkpoint()
    assert not [name for name in files.list(DIRECTORY) if name.endswith(".cleaned")]
    assert logs_in(files) == 201
    files.kill()
    log = opened(files)
    assert keys(log) == [b"k0", b"k1", b"last"]
    assert logs_in(files) == 2
