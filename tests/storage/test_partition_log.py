"""Appends and reads of one partition log on an intact disk; recovery has its own tests."""

import errno
from typing import Any

import pytest

from chaffinch.errors import codes
from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.records.batch import TimestampType, decode, patch_log_append_time, read_header, views
from chaffinch.records.batch_header import BatchView
from chaffinch.records.control_batch import read_control
from chaffinch.storage.file_system import CorruptLog, Interrupted, MemoryFileSystem, StorageError
from chaffinch.storage.partition_log import AppendResult, LogConfig, OffsetOutOfRange, PartitionLog
from tests.storage.batches import batch

ORDERS = TopicPartition("orders", 0)
ONE = ProducerIdentity(1, 0)
TWO = ProducerIdentity(2, 0)
SIZE = len(batch())


def opened(files: MemoryFileSystem | None = None, **config: Any) -> PartitionLog:
    return PartitionLog.open(files or MemoryFileSystem(), "topics/orders/0", ORDERS, LogConfig(**config), 0)


def offsets(found: list[bytes | bytearray | memoryview]) -> list[tuple[int, int]]:
    return [(view.header.base_offset, view.header.last_offset) for data in found for view in views(data)]


def test_truncated_file_is_reported_as_damaged() -> None:
    files = MemoryFileSystem()
    log = opened(files)
    for _ in range(3):
        log.append(batch(), steady_ms=0)
    found = log.find(0, 10_000)
    assert found is not None
    files.open("topics/orders/0/00000000000000000000.log").truncate(2 * SIZE + 5)
    with pytest.raises(CorruptLog, match="ends here, before a batch that was written"):
        bytes(found.records)


class TestAppend:
    def test_batches_get_consecutive_offsets_and_the_leader_s_epoch(self) -> None:
        log = opened()
        assert log.append(batch(3), steady_ms=0, leader_epoch=4) == AppendResult(0, 2, -1, 0)
        assert log.append(batch(2), steady_ms=0, leader_epoch=5) == AppendResult(3, 4, -1, 0)
        (data,) = log.read(0, 10_000)
        assert [(view.header.base_offset, view.header.leader_epoch, view.crc_is_valid()) for view in views(data)] == [
            (0, 4, True),
            (3, 5, True),
        ]
        assert log.log_end_offset == log.high_watermark == log.last_stable_offset == 5
        assert log.size_bytes == len(data)

    def test_offset_is_patched_into_the_caller_s_buffer(self) -> None:
        log = opened()
        log.append(batch(), steady_ms=0)
        lent = memoryview(batch(2))
        log.append(BatchView(lent, read_header(lent)), steady_ms=0, leader_epoch=9)
        assert read_header(lent)[:3] == (1, len(lent) - 12, 9)

    def test_read_only_bytes_are_copied(self) -> None:
        log = opened()
        log.append(batch(), steady_ms=0)
        fixed = bytes(batch())
        assert log.append(fixed, steady_ms=0).base_offset == 1
        assert read_header(fixed).base_offset == 0

    def test_append_result_has_log_append_time(self) -> None:
        log = opened()
        stamped = batch(2, identity=ONE, base_sequence=0)
        patch_log_append_time(stamped, 0, 777)
        assert read_header(stamped).timestamp_type is TimestampType.LOG_APPEND_TIME
        first = log.append(stamped, steady_ms=777)
        assert first == AppendResult(0, 1, 777, 0)
        assert log.find_duplicate(read_header(stamped)) == first

    def test_check_producer_returns_code_and_message(self) -> None:
        log = opened()
        log.append(batch(identity=ProducerIdentity(1, 5), base_sequence=0), steady_ms=0)
        code, message = log.check_producer(read_header(batch(identity=ONE, base_sequence=1))) or (None, "")
        assert (code, "epoch 5" in message) == (codes.INVALID_PRODUCER_EPOCH, True)
        assert log.check_producer(read_header(batch())) is None
        code, message = log.check_marker(ONE, 0) or (None, "")
        assert (code, "epoch 5" in message) == (codes.INVALID_PRODUCER_EPOCH, True)

    def test_control_batch_is_refused_by_append(self) -> None:
        log = opened()
        log.append_marker(True, ONE, 0, 0)
        (marker,) = log.read(0, 1000)
        with pytest.raises(ValueError, match="append_marker"):
            log.append(marker, steady_ms=0)

    def test_duplicate_is_found_among_the_last_five_batches(self) -> None:
        log = opened()
        for sequence in range(6):
            log.append(batch(identity=ONE, base_sequence=sequence), steady_ms=0)
        headers = [read_header(batch(identity=ONE, base_sequence=sequence)) for sequence in range(7)]
        found = [log.find_duplicate(header) for header in headers]
        assert found == [None, *(AppendResult(at, at, -1, 0) for at in range(1, 6)), None]

    def test_a_failed_append_changes_nothing(self) -> None:
        files = MemoryFileSystem()
        log = opened(files)
        log.append(batch(identity=ONE, base_sequence=0), steady_ms=0)
        files.bytes_free = SIZE - 1
        again = batch(identity=ONE, base_sequence=1, is_transactional=True)
        with pytest.raises(StorageError) as caught:
            log.append(again, steady_ms=0)
        assert caught.value.error_number == errno.ENOSPC
        with pytest.raises(StorageError):
            log.append_marker(True, TWO, 0, 0)
        assert (log.log_end_offset, log.size_bytes, log.ongoing_transactions()) == (1, SIZE, [])
        assert log.find_duplicate(read_header(again)) is None
        files.bytes_free = None
        assert log.append(again, steady_ms=0).base_offset == 1

    def test_failed_checkpoint_refuses_no_records(self, caplog: pytest.LogCaptureFixture) -> None:
        """Space for batches only: everything derived is left out, and said so."""
        files = MemoryFileSystem()
        log = opened(files, segment_bytes=3 * SIZE, checkpoint_bytes=2 * SIZE, index_interval_bytes=1)

        def hook(operation: str, path: str, size: int) -> None:
            if size and not path.endswith(".log"):
                raise StorageError(path, operation, "No space left on device")

        files.hook = hook
        for number in range(20):
            assert log.append(batch(), steady_ms=0).base_offset == number
        assert [record.message.partition(":")[0] for record in caplog.records] == ["no checkpoint of orders-0 at offset 2"]
        assert offsets(log.read(4, 10_000)) == [(4, 4), (5, 5)]
        files.hook = None
        for _ in range(2):
            log.append(batch(), steady_ms=0)
        files.hook = hook
        for _ in range(4):
            log.append(batch(), steady_ms=0)
        assert len(caplog.records) == 2, "one for each time that checkpoints fail"
        assert opened(files).log_end_offset == 26

    def test_full_disk_at_a_new_segment_writes_no_checkpoint(self, caplog: pytest.LogCaptureFixture) -> None:
        """Or each repetition of a producer would cost the disk, and the log, a checkpoint."""
        files = MemoryFileSystem()
        log = opened(files, segment_bytes=2 * SIZE, verify_bytes_max=0)
        for _ in range(2):
            log.append(batch(), steady_ms=0)
        tried: list[str] = []

        def hook(operation: str, path: str, size: int) -> None:
            tried.append(operation)
            if operation == "open":
                raise StorageError(path, operation, "No space left on device")

        files.hook = hook
        for _ in range(10):
            with pytest.raises(StorageError):
                log.append(batch(), steady_ms=0)
        assert [operation for operation in tried if not operation.startswith("sync")] == ["open"] * 10
        assert not caplog.records
        files.hook = None
        assert log.append(batch(), steady_ms=0).base_offset == 2
        files.crash(lambda path, unsynced: unsynced)
        assert opened(files, verify_bytes_max=0).recovery_bytes_read == SIZE, "the checkpoint of what is sealed is durable"


class TestSegments:
    def test_full_segment_is_sealed_and_the_next_starts_at_the_end(self) -> None:
        files = MemoryFileSystem()
        log = opened(files, segment_bytes=2 * SIZE)
        for _ in range(5):
            log.append(batch(), steady_ms=0)
        logs = [name for name in files.list("topics/orders/0") if name.endswith(".log")]
        assert logs == ["00000000000000000000.log", "00000000000000000002.log", "00000000000000000004.log"]
        assert [offsets(log.read(offset, 10_000)) for offset in range(6)] == [
            [(0, 0), (1, 1)],
            [(1, 1)],
            [(2, 2), (3, 3)],
            [(3, 3)],
            [(4, 4)],
            [],
        ]
        assert log.size_bytes == 5 * SIZE

    def test_batch_larger_than_segment_bytes_gets_its_own_segment(self) -> None:
        log = opened(segment_bytes=SIZE)
        for count in (1, 9, 1):
            log.append(batch(count), steady_ms=0)
        assert [offsets(log.read(offset, 10_000)) for offset in (0, 5, 10)] == [[(0, 0)], [(1, 9)], [(10, 10)]]

    def test_segment_is_sealed_before_its_index_overflows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("chaffinch.storage.partition_log.SPAN_MAX", 5)
        log = opened()
        for _ in range(4):
            log.append(batch(2), steady_ms=0)
        assert offsets(log.read(0, 10_000)) == [(0, 1), (2, 3), (4, 5)]

    def test_empty_partition_has_only_its_directory_on_disk(self) -> None:
        files = MemoryFileSystem()
        log = opened(files)
        log.sync()
        log.close()
        assert files.list("topics/orders/0") == []
        assert (log.log_end_offset, log.read(0, 100), log.offset_for_timestamp(0), log.size_bytes) == (0, [], None, 0)

    def test_delete_removes_the_directory(self) -> None:
        files = MemoryFileSystem()
        log = opened(files)
        log.append(batch(), steady_ms=0)
        log.delete()
        assert files.list("topics/orders") == []

    @pytest.mark.parametrize("segment_bytes", [0, 2**31])
    def test_segment_bytes_out_of_range_is_refused(self, segment_bytes: int) -> None:
        with pytest.raises(ValueError, match="segment_bytes"):
            LogConfig(segment_bytes=segment_bytes)


class TestRead:
    # (offset, bytes_max in batches of one record, upper bound, at least one) -> offsets of the batches read; ten batches of one record.
    READS = [  # noqa: RUF012
        (0, 10, None, True, range(0, 10)),
        (0, 3, None, True, range(0, 3)),
        (4, 3.5, None, True, range(4, 7)),
        (4, 0.5, None, True, [4]),
        (4, 0, None, True, [4]),
        (4, 0.5, None, False, []),
        (4, 1, None, False, [4]),
        (9, 5, None, True, [9]),
        (10, 5, None, True, []),
        (0, 10, 4, True, range(0, 4)),
        (3, 10, 4, True, [3]),
        (4, 10, 4, True, []),
        (6, 10, 4, True, []),
        (0, 2, 4, True, range(0, 2)),
        (2, 10, 99, True, range(2, 10)),
    ]

    @pytest.mark.parametrize("interval", [1, 150, 1 << 20], ids=["every batch indexed", "some", "only the first"])
    @pytest.mark.parametrize(("offset", "batches_max", "upper", "at_least_one", "expected"), READS)
    def test_read_returns_whole_batches_within_its_bounds(
        self, offset: int, batches_max: float, upper: int | None, at_least_one: bool, expected: list[int], interval: int
    ) -> None:
        log = opened(index_interval_bytes=interval)
        for _ in range(10):
            log.append(batch(), steady_ms=0)
        found = log.read(offset, int(batches_max * SIZE), upper, at_least_one)
        assert offsets(found) == [(at, at) for at in expected]

    def test_read_starts_with_the_batch_that_contains_the_offset(self) -> None:
        log = opened(index_interval_bytes=1 << 20)
        for _ in range(3):
            log.append(batch(10), steady_ms=0)
        assert offsets(log.read(15, 10_000)) == [(10, 19), (20, 29)]

    def test_large_first_batch_is_returned_whole(self) -> None:
        log = opened()
        log.append(batch(value=b"x" * 100_000), steady_ms=0)
        log.append(batch(), steady_ms=0)
        (data,) = log.read(0, 1000)
        assert [view.crc_is_valid() for view in views(data)] == [True]

    def test_read_scans_headers_over_several_chunks(self) -> None:
        log = opened(index_interval_bytes=1 << 30)
        for number in range(300):
            log.append(batch(value=b"x" * (number * 7)), steady_ms=0)
        assert offsets(log.read(290, 1, at_least_one=True)) == [(290, 290)]

    @pytest.mark.parametrize("offset", [-1, 4])
    def test_read_outside_the_log_is_out_of_range(self, offset: int) -> None:
        log = opened()
        log.append(batch(3), steady_ms=0)
        with pytest.raises(OffsetOutOfRange, match=f"offset {offset} of orders-0 is not between 0 and 3"):
            log.read(offset, 100)

    def test_damage_found_by_a_read_is_an_error(self) -> None:
        files = MemoryFileSystem()
        log = opened(files, index_interval_bytes=1 << 20)
        for _ in range(3):
            log.append(batch(), steady_ms=0)
        file = files.open("topics/orders/0/00000000000000000000.log")
        whole = file.read(0, 3 * SIZE)
        file.truncate(SIZE)
        file.append((b"\xff" * SIZE + whole[2 * SIZE :],))
        with pytest.raises(CorruptLog, match=f"00000.log: at byte {SIZE}: no record batch begins here"):
            log.read(2, 100)

    @pytest.mark.parametrize(
        ("at", "field"),
        [(8, -12), (8, -13), (8, 48), (23, -1)],
        ids=["of no bytes", "of less than none", "of less than a header", "of no offsets"],
    )
    def test_read_over_damaged_headers_ends(self, at: int, field: int) -> None:
        """A batch of no bytes would be walked over for ever."""
        files = MemoryFileSystem()
        log = opened(files, index_interval_bytes=1 << 20)
        for _ in range(3):
            log.append(batch(), steady_ms=0)
        file = files.open("topics/orders/0/00000000000000000000.log")
        whole = bytearray(file.read(0, 3 * SIZE))
        whole[SIZE + at : SIZE + at + 4] = field.to_bytes(4, "big", signed=True)
        file.truncate(0)
        file.append((whole,))
        with pytest.raises(CorruptLog, match=f"00000.log: at byte {SIZE}: no record batch begins here"):
            log.read(2, 100)


class TestTimestamps:
    @pytest.mark.parametrize("interval", [1, 1 << 20])
    @pytest.mark.parametrize(
        ("timestamp", "expected"),
        [(0, (0, 10)), (10, (0, 10)), (11, (1, 30)), (30, (1, 30)), (31, (4, 50)), (50, (4, 50)), (51, (6, 51)), (60, (7, 60)), (61, None)],
    )
    def test_offset_for_timestamp_finds_the_first_record_not_earlier(
        self, timestamp: int, expected: tuple[int, int] | None, interval: int
    ) -> None:
        """Over batches and segments, timestamps out of order."""
        log = opened(index_interval_bytes=interval, segment_bytes=SIZE * 3)
        for timestamps in ([10, 30, 20], [5, 50], [5], [51, 60], [40]):
            log.append(batch(len(timestamps), timestamps=timestamps), steady_ms=0)
        assert log.offset_for_timestamp(timestamp) == expected

    def test_offset_for_timestamp_reads_log_append_time(self) -> None:
        log = opened()
        stamped = batch(3, timestamps=[1, 2, 3])
        patch_log_append_time(stamped, 0, 90)
        log.append(stamped, steady_ms=90)
        assert log.offset_for_timestamp(80) == (0, 90)


class TestTransactions:
    def test_last_stable_offset_is_the_start_of_the_oldest_open_transaction(self) -> None:
        log = opened()
        log.append(batch(2), steady_ms=0)
        log.append(batch(2, identity=ONE, base_sequence=0, is_transactional=True), steady_ms=5)
        log.append(batch(2, identity=TWO, base_sequence=0, is_transactional=True), steady_ms=6)
        assert log.last_stable_offset == 2
        assert [tuple(entry) for entry in log.ongoing_transactions()] == [(1, 0, 2, 5), (2, 0, 4, 6)]
        log.append_marker(True, ONE, 0, 0)
        assert (log.last_stable_offset, log.has_ongoing_transaction(1), log.has_ongoing_transaction(2)) == (4, False, True)
        assert offsets(log.read(0, 10_000, log.last_stable_offset)) == [(0, 1), (2, 3)]
        log.append_marker(True, TWO, 0, 0)
        assert log.last_stable_offset == log.log_end_offset == 8

    def test_a_marker_is_a_control_batch_with_one_offset(self) -> None:
        log = opened()
        assert log.append_marker(False, ProducerIdentity(9, 3), 7, 123, leader_epoch=2) == AppendResult(0, 0, -1, 0)
        (data,) = log.read(0, 1000)
        (view,) = views(data)
        assert (view.header.is_control, view.header.is_transactional, view.header.identity, view.size) == (True, True, (9, 3), 78)
        assert (view.header.leader_epoch, read_control(view)) == (2, (False, 7))

    def test_aborted_transaction_is_listed_with_its_first_offset(self) -> None:
        log = opened()
        for producer in (1, 2, 3):
            log.append(batch(2, identity=ProducerIdentity(producer, 0), base_sequence=0, is_transactional=True), steady_ms=0)
        log.append_marker(False, TWO, 0, 0)  # Offset 6; the oldest open one begins at 0.
        log.append_marker(True, ONE, 0, 0)
        log.append_marker(False, ProducerIdentity(3, 0), 0, 0)  # Offset 8.
        log.append_marker(False, ProducerIdentity(4, 0), 0, 0)  # Nothing of it is here.
        assert log.aborted_transactions(0, 10) == [(2, 2), (3, 4)]
        assert log.aborted_transactions(7, 10) == [(3, 4)]
        assert log.aborted_transactions(9, 10) == []
        assert log.aborted_transactions(0, 4) == [(2, 2)]
        assert log.aborted_transactions(0, 2) == []

    def test_older_transaction_aborted_later_is_listed(self) -> None:
        log = opened()
        log.append(batch(2, identity=ONE, base_sequence=0, is_transactional=True), steady_ms=0)
        log.append(batch(2, identity=TWO, base_sequence=0, is_transactional=True), steady_ms=0)
        log.append_marker(False, TWO, 0, 0)
        log.append_marker(False, ONE, 0, 0)
        assert log.aborted_transactions(0, 2) == [(1, 0)]

    def test_aborts_are_found_in_later_segments(self) -> None:
        log = opened(segment_bytes=SIZE)
        for round_ in range(3):
            log.append(batch(identity=ONE, base_sequence=round_, is_transactional=True), steady_ms=0)
            log.append_marker(False, ONE, 0, 0)
        assert log.aborted_transactions(0, 6) == [(1, 0), (1, 2), (1, 4)]
        assert log.aborted_transactions(2, 3) == [(1, 2)]

    def test_last_stable_offset_stays_below_the_high_watermark(self) -> None:
        """Declared replicas: a transaction whose marker is not yet everywhere is not yet decided for readers."""
        log = opened()
        log.append(batch(), steady_ms=0)
        log.high_watermark = 1
        log.append(batch(2, identity=ONE, base_sequence=0, is_transactional=True), steady_ms=0)
        log.append_marker(True, ONE, 0, 0)
        assert (log.high_watermark, log.last_stable_offset, log.log_end_offset) == (1, 1, 4)
        log.high_watermark = 3
        assert log.last_stable_offset == 1
        log.high_watermark = None
        assert (log.high_watermark, log.last_stable_offset) == (4, 4)
        for wrong in (-1, 5):
            with pytest.raises(ValueError, match="high watermark"):
                log.high_watermark = wrong


class TestSync:
    def test_every_append_needs_a_sync(self) -> None:
        log = opened()
        log.sync()
        assert log.is_synced
        log.append(batch(), steady_ms=0)
        assert not log.is_synced
        log.sync()
        assert log.is_synced
        log.append_marker(True, ONE, 0, 0)
        assert not log.is_synced

    def test_refused_append_needs_no_sync(self) -> None:
        """Nor does retention, which may then take the only segment."""
        files = MemoryFileSystem()
        log = opened(files, retention_ms=0)
        log.append(batch(), steady_ms=0)
        log.close()
        log = opened(files, retention_ms=0)
        files.bytes_free = 0
        with pytest.raises(StorageError):
            log.append(batch(), steady_ms=0)
        assert log.is_synced
        assert log.delete_old_segments(1000) == 1
        log.sync()
        assert log.is_synced

    def test_cut_torn_end_needs_no_later_sync(self) -> None:
        files = MemoryFileSystem()
        log = opened(files)
        log.append(batch(), steady_ms=0)
        log.close()
        log = opened(files)

        def dies(operation: str, path: str, size: int) -> None:
            if operation == "append":
                raise Interrupted(10)

        files.hook = dies
        with pytest.raises(Interrupted):
            log.append(batch(), steady_ms=0)
        files.hook = None
        files.kill()
        log = opened(files, retention_ms=0)
        assert (len(log.cuts), log.is_synced) == (1, False)
        assert log.delete_old_segments(1000) == 1
        log.sync()
        assert log.is_synced

    def test_failed_sync_is_raised_to_the_caller(self) -> None:
        files = MemoryFileSystem()
        log = opened(files)
        log.append(batch(), steady_ms=0)
        log.sync()  # The names are durable: from here on it is the bytes alone.
        log.append(batch(), steady_ms=0)

        def hook(operation: str, path: str, size: int) -> None:
            if operation == "sync":
                raise StorageError(path, operation, "Input/output error")

        files.hook = hook
        for _ in range(2):
            with pytest.raises(StorageError):
                log.sync()
            assert not log.is_synced


def test_read_records_equal_the_appended_ones() -> None:
    log = opened()
    log.append(batch(3, value=b"hello", timestamps=[7, 8, 9]), steady_ms=0)
    (data,) = log.read(0, 1000)
    columns = decode(data)
    assert [(columns.key(at), columns.value(at), int(columns.timestamps[at])) for at in range(3)] == [
        (b"k", b"hello", 7 + at) for at in range(3)
    ]


def test_idle_producers_are_forgotten() -> None:
    log = opened()
    log.append(batch(identity=ONE, base_sequence=0), steady_ms=10)
    assert len(log.producers) == 1
    assert log.forget_idle_producers(steady_ms=20, idle_ms_max=10) == 1
    assert len(log.producers) == 0
