"""Compaction takes its work in slices, however it is spread over segments; what else happens between two of them finds a whole log."""

from __future__ import annotations

import pytest

from chaffinch.storage.compaction import REMOVED_PER_SLICE, Compaction
from chaffinch.storage.file_system import MemoryFileSystem
from chaffinch.storage.partition_log import PartitionLog
from tests.storage.compacted_log import opened, records, rows
from tests.storage.orders_log import DIRECTORY


def test_work_comes_in_slices() -> None:
    log = opened(MemoryFileSystem())
    for number in range(64):
        log.append(records((f"k{number % 2}", "x" * 100_000)), now_ms=0)
    log.roll(0)
    job = Compaction(log, 64, 0, map_bytes_max=1 << 30)
    steps, before = 0, 0
    while not job.step():
        assert job.bytes_read - before <= 1_200_000
        before = job.bytes_read
        steps += 1
        log.append(records(("new", "x")), now_ms=0)
    assert steps >= 12
    assert len(rows(log)) == 2 + steps


def small_segments(files: MemoryFileSystem, count: int) -> PartitionLog:
    """So many of one record each, of two keys, and one more that is written to."""
    log = opened(files, retention_ms=0)
    for number in range(count):
        log.append(records((f"k{number % 2}", "x")), now_ms=0)
        log.roll(0)
    log.append(records(("last", "x")), now_ms=0)
    return log


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
    assert totals["read"] >= 800, "for their keys, and to be written anew"
    assert totals["remove"] == 399, "the new one has taken the name of the first"
    assert keys(log) == [b"k0", b"k1", b"last"]


@pytest.mark.parametrize("happens", ["snapshot", "death", "retention", "abandoned"])
def test_between_two_slices_of_removal_the_new_segment_is_the_one_that_counts(happens: str) -> None:
    files = MemoryFileSystem()
    log = small_segments(files, 200)
    job = Compaction(log, 200, 0, map_bytes_max=1 << 30)
    while len(log.files.segments) > 2:
        assert not job.step()
    assert log.files.state.swap is not None
    left = logs_in(files)
    assert left > 100
    if happens == "retention":
        assert log.expire(10**9) == 2
        assert job.step()
        assert logs_in(files) == 0
        return
    if happens == "snapshot":
        log._checkpoint()
        assert logs_in(files) == left, "not all at once for it"
        while not job.step():
            pass
    if happens == "abandoned":
        job.abandon()
    files.kill()
    log = opened(files)
    assert keys(log) == [b"k0", b"k1", b"last"]
    assert logs_in(files) == 2
