"""Corner cases of compaction and of a log's state: interrupted swaps, batches without records or timestamps, unknown markers."""

from __future__ import annotations

import pytest

from chaffinch.identifiers import NO_SEQUENCE
from chaffinch.records.batch import decode, encode, read_header, views
from chaffinch.records.batch_codec import encode_with_attributes
from chaffinch.records.batch_header import ATTRIBUTE_CONTROL, ATTRIBUTE_DELETE_HORIZON, ATTRIBUTE_TRANSACTIONAL, BatchView
from chaffinch.records.columns import RecordColumns
from chaffinch.records.control_batch import read_control
from chaffinch.storage.compaction_rules import AbortedRanges, LatestOffsets, Rules
from chaffinch.storage.file_system import MemoryFileSystem, StorageError
from chaffinch.storage.partition_log import LogConfig, PartitionLog
from tests.storage.batches import batch
from tests.storage.compacted_log import ONE, all_batches, compact, opened, records, rows
from tests.storage.orders_log import DIRECTORY, ORDERS


class AfterRename:
    """Refuses the next sync of names after `log.state` got its new one: it is unknown whether the new name is durable."""

    def __init__(self) -> None:
        self.is_renamed = False
        self.has_refused = False

    def __call__(self, operation: str, path: str, size: int) -> None:
        if operation == "rename" and path.endswith("log.state.new"):
            self.is_renamed = True
        elif operation == "sync directory" and self.is_renamed and not self.has_refused:
            self.has_refused = True
            raise StorageError(path, operation, "Input/output error")


def starts(files: MemoryFileSystem) -> list[int]:
    return [int(name.removesuffix(".start")) for name in files.list(DIRECTORY) if name.endswith(".start")]


@pytest.mark.parametrize("settles", [True, False])
def test_log_state_with_failed_directory_sync_is_written_again(settles: bool) -> None:
    files = MemoryFileSystem()
    log = opened(files)
    for value in "123":
        log.append(records(("a", value)), steady_ms=0)
    log.roll(0)
    files.hook = hook = AfterRename()
    with pytest.raises(StorageError):
        compact(log)
    assert hook.has_refused
    files.hook = None
    if settles:
        log.files.complete_pending_swap()
        assert not [name for name in files.list(DIRECTORY) if name.endswith(".cleaned")]
    files.kill()
    log = opened(files)
    assert [value for _, _, value in rows(log)] == ([b"1", b"2", b"3"] if settles else [b"3"])
    compact(log)
    assert rows(log) == [(2, b"a", b"3")]


class TestStarts:
    def log(self, files: MemoryFileSystem) -> PartitionLog:
        log = PartitionLog.open(files, DIRECTORY, ORDERS, LogConfig(), 0)
        for _ in range(5):
            log.append(batch(timestamps=[0]), steady_ms=0)
        return log

    def test_only_the_last_start_file_stays(self) -> None:
        files = MemoryFileSystem()
        log = self.log(files)
        for offset in (1, 3, 3, 2):
            log.delete_records_before(offset, 0)
            assert starts(files) == [log.log_start_offset]
        assert log.log_start_offset == 3

    def test_start_file_that_could_not_be_removed_is_ignored(self) -> None:
        files = MemoryFileSystem()
        log = self.log(files)
        log.delete_records_before(1, 0)

        def refuse(operation: str, path: str, size: int) -> None:
            if operation == "remove":
                raise StorageError(path, operation, "Input/output error")

        files.hook = refuse
        assert log.delete_records_before(4, 0) == 4
        files.hook = None
        assert starts(files) == [1, 4]
        files.kill()
        assert PartitionLog.open(files, DIRECTORY, ORDERS, LogConfig(), 0).log_start_offset == 4


@pytest.mark.parametrize("jitter_ms", [100, 101, 10**9])
def test_jitter_beyond_segment_ms_does_not_seal_every_segment(jitter_ms: int) -> None:
    files = MemoryFileSystem()
    log = PartitionLog.open(files, DIRECTORY, ORDERS, LogConfig(segment_ms=100, segment_jitter_ms=jitter_ms), 0)
    for _ in range(5):
        log.append(batch(timestamps=[1000]), steady_ms=0)
    assert len(log.files.segments) == 1
    log.append(batch(timestamps=[1101]), steady_ms=0)
    assert len(log.files.segments) == 2


@pytest.mark.parametrize("loses_derived_files", [False, True])
def test_time_of_an_emptied_batch_is_ignored(loses_derived_files: bool) -> None:
    """It stays for its producer's sequence; its record, the newest of all by its time, is gone."""
    files = MemoryFileSystem()
    log = opened(files, index_interval_bytes=1)
    log.append(encode(RecordColumns.from_lists([b"a"], [b"1"], [5000]), identity=ONE, base_sequence=0), steady_ms=0)
    log.append(records(("a", "2")), steady_ms=0)
    log.roll(0)
    compact(log)
    if loses_derived_files:
        files.kill()
        for name in files.list(DIRECTORY):
            if not name.endswith((".log", ".state")):
                files.remove(f"{DIRECTORY}/{name}")
        log = opened(files)
    assert [(view.header.count, view.header.max_timestamp) for view in all_batches(log)] == [(0, 5000), (1, 1000)]
    assert (log.files.segments[0].max_timestamp, log.max_timestamp()) == (1000, 1000)
    assert log.offset_for_timestamp(1000) == (1, 1000)
    assert log.offset_for_timestamp(1001) is None


def test_records_without_timestamps_age_from_segment_creation() -> None:
    """Compaction rewrites the segment, but its records do not become younger or older by it; several become as old as the youngest."""
    log = opened(MemoryFileSystem(), segment_ms=1, retention_ms=100, deletes=True)
    for steady_ms in (1000, 2000, 3000):
        log.append(encode(RecordColumns.from_lists([b"a", b"k%d" % steady_ms], [b"v", b"v"], [-1, -1])), steady_ms=steady_ms)
    assert len(log.files.segments) == 3
    compact(log, 10_000)
    assert [segment.created_ms for segment in log.files.segments] == [2000, 3000]
    assert log.delete_old_segments(2100) == 0
    assert log.delete_old_segments(2101) == 1


def marker_of_type(number: int) -> BatchView:
    columns = RecordColumns.from_lists([bytes((0, 0, 0, number))], [bytes(6)], [1000])
    attributes = ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL
    data = encode_with_attributes(columns, attributes, level=None, identity=ONE, base_sequence=NO_SEQUENCE, base_offset=0)
    return next(views(data))


def test_unknown_markers_are_unchanged() -> None:
    unknown, known = map(marker_of_type, (7, 1))
    assert (read_control(unknown)[0], read_control(known)[0]) == (None, True)
    rules = Rules(LatestOffsets(10), AbortedRanges([]), {}, wall_ms=10**6, delete_retention_ms=0, decompressed_bytes_max=1 << 20)
    for is_last in (True, False):
        assert rules.apply(unknown, is_last=is_last) is unknown.data
    marked = rules.apply(known, is_last=False)
    assert marked is not None
    assert read_header(marked).attributes & ATTRIBUTE_DELETE_HORIZON
    assert decode(next(views(marked))).count == 1
