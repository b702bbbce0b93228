"""Snapshots after changes of the segments, and their low cost for old segments."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from chaffinch.storage import snapshot
from chaffinch.storage.file_system import MemoryFileSystem, StorageError
from chaffinch.storage.partition_log import PartitionLog
from chaffinch.storage.segment import Segment, SegmentMark
from chaffinch.storage.snapshot import Snapshot
from tests.storage.compacted_log import compact, opened, records
from tests.storage.orders_log import DIRECTORY


def append(log: PartitionLog, count: int, *, start: int = 0) -> None:
    """A segment for each."""
    for number in range(start, start + count):
        log.append(records((f"k{number % 3}", "v"), (f"only {number}", "v")), steady_ms=0)
        log.roll(0)


def segments_in_snapshot(files: MemoryFileSystem, log: PartitionLog) -> list[SegmentMark]:
    """By a snapshot of this moment."""
    log.append(records(("k", "v")), steady_ms=0)
    log.close()
    found = snapshot.read(files, f"{DIRECTORY}/{snapshot.name_of(log.log_end_offset)}")
    assert found is not None
    return found.segments


def segment_marks(log: PartitionLog) -> list[SegmentMark]:
    return [segment.mark() for segment in log.files.segments]


@pytest.fixture
def files() -> MemoryFileSystem:
    return MemoryFileSystem()


def test_snapshot_is_written_as_plain_json(files: MemoryFileSystem) -> None:
    """In the order in which every version has written it."""
    log = opened(files)
    append(log, 2)
    log.append(records(("k", "v")), steady_ms=0)
    taken = Snapshot(
        incarnation='"one"',
        is_durable=True,
        log_start_offset=1,
        log_end_offset=5,
        segments=segment_marks(log),
        producers=[[1, 0, [(0, 1)]]],
    )
    assert len(taken.segments) == 3
    for segments in (taken.segments, []):
        taken = Snapshot(**{**asdict(taken), "segments": segments})
        snapshot.write(files, DIRECTORY, taken)
        (name,) = [name for name in files.list(DIRECTORY) if name == snapshot.name_of(5)]
        file = files.open(f"{DIRECTORY}/{name}")
        body = file.read(0, file.size).partition(b"\n")[2]
        assert body.decode() == json.dumps({"format": 1, **asdict(taken)}, separators=(",", ":"))


def test_changed_segments_are_written_to_the_next_snapshot(files: MemoryFileSystem) -> None:
    log = opened(files, retention_ms=-1, deletes=True, segment_bytes=300)  # Compacted in groups.
    append(log, 6)
    log.delete_records_before(4, 0)
    assert log.delete_old_segments(0) == 2
    append(log, 2, start=6)
    before = segment_marks(log)
    compact(log)
    assert segment_marks(log) != before
    append(log, 2, start=8)
    expected = segment_marks(log)[:-1]
    assert segments_in_snapshot(files, log)[:-1] == expected


def test_segment_with_failed_save_is_saved_by_the_next_snapshot(files: MemoryFileSystem) -> None:
    log = opened(files, index_interval_bytes=1)

    def hook(operation: str, path: str, size: int) -> None:
        if size and not path.endswith(".log"):
            raise StorageError(path, operation, "No space left on device")

    for _ in range(3):
        log.append(records(("k", "v")), steady_ms=0)
    files.hook = hook
    log.roll(0)
    append(log, 2)
    files.hook = None
    append(log, 1)
    assert segments_in_snapshot(files, log)[0].index_entries == 3


def test_roll_saves_only_changed_segments(files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """With thousands of segments a roll would hold all clients up for as long as a tenth of a second."""
    log = opened(files)
    append(log, 40)
    marks: list[int] = []
    mark = Segment.mark

    def watched(self: Segment) -> SegmentMark:
        marks.append(self.base_offset)
        return mark(self)

    monkeypatch.setattr(Segment, "mark", watched)
    append(log, 1, start=40)
    assert len(marks) <= 2
