"""Rolling by time; deletion by time, by size and on demand. Deleted records stay deleted after any end of the process."""

from __future__ import annotations

import random
from typing import Any

import pytest

from chaffinch.identifiers import ProducerIdentity
from chaffinch.records.batch import read_header
from chaffinch.storage.file_system import Interrupted, MemoryFileSystem, StorageError
from chaffinch.storage.partition_log import LogConfig, OffsetOutOfRange, PartitionLog
from tests.storage.batches import batch
from tests.storage.orders_log import DIRECTORY, ONE, ORDERS, SIZE

HOUR = 3_600_000


def opened(files: MemoryFileSystem, steady_ms: int = 0, **config: Any) -> PartitionLog:
    return PartitionLog.open(files, DIRECTORY, ORDERS, LogConfig(**config), steady_ms)


def append(log: PartitionLog, *timestamps: int, steady_ms: int = 0) -> None:
    for timestamp in timestamps:
        log.append(batch(timestamps=[timestamp]), steady_ms=steady_ms)


def bases(files: MemoryFileSystem) -> list[int]:
    return [int(name[:20]) for name in files.list(DIRECTORY) if name.endswith(".log")]


BEFORE = batch(identity=ONE, base_sequence=0, is_transactional=True, timestamps=[0])


def no_space_for_snapshots(operation: str, path: str, _size: int) -> None:
    if operation == "append" and ".snapshot" in path:
        raise StorageError(path, operation, "No space left on device")


def with_transaction(files: MemoryFileSystem, *, rolls_behind: bool) -> PartitionLog:
    """Its data, and a snapshot of that; its marker and a batch of the next one behind it, in one segment or in two."""
    log = opened(files, retention_ms=100)
    log.append(BEFORE, steady_ms=0)
    log.roll(0)
    log.append_marker(True, ONE, 0, 0)
    if rolls_behind:
        log.roll(0)
    log.append(batch(identity=ONE, base_sequence=1, timestamps=[300]), steady_ms=0)
    log.sync()
    return log


class TestRolling:
    def test_segment_rolls_segment_ms_after_its_first_timestamp(self) -> None:
        files = MemoryFileSystem()
        log = opened(files, segment_ms=100)
        append(log, 1000, 900, 1100, 1101, 1200, 1202)
        assert bases(files) == [0, 3, 5]

    def test_first_timestamp_is_kept_over_a_restart(self) -> None:
        files = MemoryFileSystem()
        append(opened(files, segment_ms=100), 1000, 1050)
        files.kill()
        append(opened(files, segment_ms=100), 1100, 1101)
        assert bases(files) == [0, 3]

    def test_segment_without_timestamps_rolls_by_the_clock(self) -> None:
        files = MemoryFileSystem()
        log = opened(files, segment_ms=100)
        for steady_ms in (5000, 5100, 5101):
            append(log, -1, steady_ms=steady_ms)
        assert bases(files) == [0, 2]

    def test_jitter_spreads_the_rolls_of_different_logs(self) -> None:
        ends = set()
        for number in range(20):
            files = MemoryFileSystem()
            config = LogConfig(segment_ms=1000, segment_jitter_ms=500)
            log = PartitionLog.open(files, f"log-{number}", ORDERS, config, 0)
            append(log, *range(0, 1002))
            ends.add(log.files.segments[0].end_offset)
        assert len(ends) > 10
        assert min(ends) > 500
        assert max(ends) <= 1001

    @pytest.mark.parametrize(("compacts", "expected"), [(True, [0, 1]), (False, [0])])
    def test_compacted_log_rolls_at_max_compaction_lag(self, compacts: bool, expected: list[int]) -> None:
        files = MemoryFileSystem()
        append(opened(files, compaction_lag_max_ms=10, compacts=compacts), 0, 11)
        assert bases(files) == expected

    def test_new_config_applies_at_once(self) -> None:
        files = MemoryFileSystem()
        log = opened(files)
        append(log, 0, 500)
        log.config = LogConfig(segment_ms=100)
        append(log, 501)
        assert bases(files) == [0, 2]


class TestByTime:
    def test_segment_is_deleted_once_its_newest_record_expires(self) -> None:
        files = MemoryFileSystem()
        log = opened(files, segment_bytes=2 * SIZE, retention_ms=100)
        append(log, 0, 50, 20, 30, 200, 210)
        assert log.delete_old_segments(150) == 0
        assert log.delete_old_segments(151) == 2  # The second is younger than the first, and too old as well.
        assert (log.log_start_offset, bases(files)) == (4, [4])
        assert [header.base_offset for header in map(read_header, log.read(4, 1000))] == [4]
        with pytest.raises(OffsetOutOfRange):
            log.read(3, 1000)

    def test_unexpired_segment_keeps_older_records_after_it(self) -> None:
        log = opened(MemoryFileSystem(), segment_bytes=SIZE, retention_ms=100)
        append(log, 1000, 0, 0)
        assert log.delete_old_segments(1100) == 0
        assert log.delete_old_segments(1101) == 3

    def test_fully_expired_log_continues_at_its_end(self) -> None:
        files = MemoryFileSystem()
        log = opened(files, retention_ms=100)
        log.append(batch(3, identity=ONE, base_sequence=0), steady_ms=0)
        assert log.delete_old_segments(500) == 1
        assert (log.log_start_offset, log.log_end_offset, log.size_bytes, bases(files)) == (3, 3, 0, [])
        assert log.read(3, 1000) == []
        log.sync()
        files.kill()
        log = opened(files, retention_ms=100)
        assert (log.log_start_offset, log.log_end_offset) == (3, 3)
        assert log.find_duplicate(read_header(batch(3, identity=ONE, base_sequence=0))) is not None
        assert log.append(batch(identity=ONE, base_sequence=3), steady_ms=0).base_offset == 3
        log.close()
        assert bases(files) == [3]

    def test_producers_survive_deletion_of_their_records(self) -> None:
        """A loss of power takes bytes that were not synced, and the segments with the producers are gone by then."""
        files = MemoryFileSystem()
        log = with_transaction(files, rolls_behind=False)
        assert (log.delete_old_segments(500), bases(files)) == (2, [])
        files.crash(lambda path, unsynced: unsynced if path == DIRECTORY else 0)
        log = opened(files)
        assert list(log.producers.ongoing()) == []
        assert log.find_duplicate(read_header(batch(identity=ONE, base_sequence=1, timestamps=[300]))) is not None

    @pytest.mark.parametrize(("goes_at_ms", "left"), [(150, [2]), (500, [])])
    def test_transaction_with_deleted_marker_is_not_open(self, goes_at_ms: int, left: list[int]) -> None:
        """As when the disk was too full to write down what the producers were in the end."""
        files = MemoryFileSystem()
        log = with_transaction(files, rolls_behind=bool(left))
        log.delete_old_segments(goes_at_ms)
        assert bases(files) == left
        files.kill()
        for name in files.list(DIRECTORY):
            if name.endswith(".snapshot") and int(name[:20]) > 1:
                files.remove(f"{DIRECTORY}/{name}")
        log = opened(files)
        assert list(log.producers.ongoing()) == []
        assert log.last_stable_offset == log.log_end_offset == 3

    def test_an_empty_last_segment_stays(self) -> None:
        files = MemoryFileSystem()
        log = opened(files, retention_ms=100)
        append(log, 0)
        log.roll(0)
        log.roll(0)
        assert bases(files) == [0, 1]
        assert log.delete_old_segments(500) == 1
        assert log.delete_old_segments(500) == 0
        assert bases(files) == [1]

    def test_records_without_timestamps_age_from_their_append(self) -> None:
        files = MemoryFileSystem()
        log = opened(files, retention_ms=100)
        append(log, -1, steady_ms=1000)
        assert log.delete_old_segments(1100) == 0
        files.kill()
        log = opened(files, 5000, retention_ms=100)
        assert log.delete_old_segments(5100) == 0
        assert log.delete_old_segments(5101) == 1

    def test_records_above_the_high_watermark_stay(self) -> None:
        log = opened(MemoryFileSystem(), segment_bytes=SIZE, retention_ms=100)
        append(log, 0, 0, 0)
        log.high_watermark = 2
        assert log.delete_old_segments(500) == 2
        assert log.log_start_offset == 2

    @pytest.mark.parametrize("config", [{"retention_ms": -1}, {"retention_ms": 0, "deletes": False}])
    def test_log_without_time_retention_keeps_everything(self, config: dict[str, int]) -> None:
        log = opened(MemoryFileSystem(), segment_bytes=SIZE, **config)
        append(log, 0, 0, 0)
        assert log.delete_old_segments(10**15) == 0


@pytest.mark.parametrize(
    ("retention_bytes", "left"), [(-1, 5), (5 * SIZE, 5), (4 * SIZE + 1, 5), (4 * SIZE, 4), (2 * SIZE, 2), (1, 1), (0, 0)]
)
def test_oldest_segments_are_deleted_above_retention_bytes(retention_bytes: int, left: int) -> None:
    log = opened(MemoryFileSystem(), segment_bytes=SIZE, retention_bytes=retention_bytes)
    append(log, 0, 0, 0, 0, 0)
    assert log.delete_old_segments(0) == 5 - left
    assert (log.log_start_offset, log.size_bytes) == (5 - left, left * SIZE)


class TestOnDemand:
    def test_delete_records_moves_the_log_start(self) -> None:
        files = MemoryFileSystem()
        log = opened(files, segment_bytes=2 * SIZE, deletes=False)
        append(log, 5, 4, 3, 2, 1)
        assert log.delete_records_before(3, 0) == 3
        assert log.delete_records_before(1, 0) == 3
        assert log.offset_for_timestamp(2) == (3, 2)
        with pytest.raises(OffsetOutOfRange):
            log.delete_records_before(6, 0)
        log.high_watermark = 4
        with pytest.raises(OffsetOutOfRange):
            log.delete_records_before(5, 0)
        assert bases(files) == [0, 2, 4]
        assert log.delete_old_segments(0) == 1
        assert bases(files) == [2, 4]

    def test_delete_records_up_to_the_end_empties_the_log(self) -> None:
        files = MemoryFileSystem()
        log = opened(files)
        append(log, 0, 0)
        assert log.delete_records_before(2, 0) == 2
        assert (log.read(2, 100), log.log_start_offset, log.log_end_offset) == ([], 2, 2)
        append(log, 0)
        assert read_header(log.read(2, 1000)[0]).base_offset == 2

    def test_last_stable_offset_is_never_below_the_log_start(self) -> None:
        log = opened(MemoryFileSystem())
        log.append(batch(identity=ONE, base_sequence=0, is_transactional=True), steady_ms=0)
        append(log, 0)
        assert log.last_stable_offset == 0
        log.delete_records_before(2, 0)
        assert log.last_stable_offset == 2
        assert log.has_ongoing_transaction(1)

    @pytest.mark.parametrize("seed", range(30))
    def test_log_start_survives_a_loss_of_power(self, seed: int) -> None:
        """Even of the records themselves, when they were never synced."""
        rng = random.Random(seed)
        files = MemoryFileSystem()
        log = opened(files, segment_bytes=2 * SIZE)
        append(log, 0)
        log.sync()
        append(log, *[0] * rng.randrange(6))
        start = log.delete_records_before(rng.randint(1, log.log_end_offset), 0)
        if rng.random() < 0.5:
            log.delete_old_segments(0)
        files.crash(lambda path, unsynced: rng.choice([0, unsynced, rng.randint(0, unsynced)]))
        log = opened(files, segment_bytes=2 * SIZE)
        assert log.log_start_offset == start
        assert log.append(batch(), steady_ms=0).base_offset >= start

    def test_producers_survive_deleted_segments(self) -> None:
        """The next start does not read the segments below the log's: the snapshot with their producers has to be there."""
        files = MemoryFileSystem()
        log = with_transaction(files, rolls_behind=True)
        assert log.delete_records_before(2, 0) == 2
        files.crash(lambda _path, _unsynced: 0)
        log = opened(files)
        assert bases(files) == [2]
        assert log.find_duplicate(read_header(BEFORE)) is not None

    def test_producers_survive_later_snapshots(self) -> None:
        """The synced snapshot is removed once there are newer ones. Those have to be on the disk by then."""
        files = MemoryFileSystem()
        log = with_transaction(files, rolls_behind=True)
        log.delete_records_before(2, 0)
        log.delete_old_segments(0)
        for _ in range(4):
            append(log, 400)
            log.roll(0)
        files.crash(lambda path, unsynced: unsynced if path == DIRECTORY else 0)
        log = opened(files)
        assert log.find_duplicate(read_header(BEFORE)) is not None

    @pytest.mark.parametrize("removes", [False, True])
    @pytest.mark.parametrize("is_partly_known", [False, True])
    def test_producers_survive_a_disk_too_full_for_snapshots(self, removes: bool, is_partly_known: bool) -> None:
        files = MemoryFileSystem()
        log = opened(files, checkpoint_bytes=1 if is_partly_known else 1 << 20)
        log.append(BEFORE, steady_ms=0)
        files.hook = no_space_for_snapshots
        log.append_marker(True, ONE, 0, 0)
        log.append(batch(identity=ONE, base_sequence=1), steady_ms=0)
        log.roll(0)
        append(log, 0)
        assert log.delete_records_before(3, 0) == 3
        if removes:
            with pytest.raises(StorageError):
                log.delete_old_segments(0)
            assert log.log_start_offset == 3
        files.hook = None
        files.kill()
        log = opened(files)
        assert (log.log_start_offset, log.log_end_offset, log.last_stable_offset) == (3, 4, 4)
        for repeated in (BEFORE, batch(identity=ONE, base_sequence=1)):
            assert log.find_duplicate(read_header(repeated)) is not None
        assert log.delete_old_segments(0) == 1
        files.crash(lambda path, unsynced: unsynced if path == DIRECTORY else 0)
        log = opened(files)
        assert bases(files) == [3]
        assert log.find_duplicate(read_header(batch(identity=ONE, base_sequence=1))) is not None

    def test_repeated_delete_records_after_a_kill_is_durable(self) -> None:
        files = MemoryFileSystem()
        log = opened(files)
        append(log, 0, 0)
        log.close()

        def dies(operation: str, _path: str, _size: int) -> None:
            if operation == "sync directory":
                raise Interrupted(0)

        log = opened(files)
        files.hook = dies
        with pytest.raises(Interrupted):
            log.delete_records_before(1, 0)
        files.hook = None
        files.kill()
        assert opened(files).delete_records_before(1, 0) == 1
        files.crash(lambda _path, _unsynced: 0)
        assert opened(files).log_start_offset == 1

    def test_start_moved_by_a_killed_process_stays_deleted(self) -> None:
        files = MemoryFileSystem()
        log = opened(files, segment_bytes=SIZE)
        append(log, 0, 0, 0)
        log.close()

        def dies(operation: str, path: str, _size: int) -> None:
            if operation == "sync directory" and any(name.endswith(".start") for name in files.list(path)):
                raise Interrupted(0)

        log = opened(files, segment_bytes=SIZE)
        files.hook = dies
        with pytest.raises(Interrupted):
            log.delete_records_before(2, 0)
        files.hook = None
        files.kill()
        assert opened(files, segment_bytes=SIZE).log_start_offset == 2
        files.crash(lambda _path, _unsynced: 0)
        assert opened(files, segment_bytes=SIZE).log_start_offset == 2

    def test_full_disk_does_not_stop_retention(self) -> None:
        """But for the last segment: what its producers were could not be written down."""
        files = MemoryFileSystem()
        log = opened(files, segment_bytes=SIZE, retention_ms=0)
        append(log, 0, 0, 0, 0)
        files.bytes_free = 0
        assert log.delete_records_before(1, 0) == 1
        for _ in range(2):
            with pytest.raises(StorageError):
                log.delete_old_segments(10)
        assert (log.log_start_offset, len(log.files.segments)) == (3, 1)
        files.bytes_free = None
        assert log.delete_old_segments(10) == 1

    def test_many_segments_are_deleted_in_slices(self) -> None:
        """Where the log starts is said at once; a death between two of them leaves the rest to the next start."""
        for killed_after in range(4):
            files = MemoryFileSystem()
            log = opened(files, segment_bytes=SIZE, retention_ms=0)
            append(log, *[0] * 7)
            assert [log.delete_old_segments(10, 2) for _ in range(killed_after)] == [2] * killed_after
            assert bases(files) == list(range(2 * killed_after, 7))
            assert log.log_start_offset == (7 if killed_after else 0)
            files.kill()
            log = opened(files, segment_bytes=SIZE, retention_ms=0)
            assert (log.log_start_offset, log.log_end_offset) == ((7, 7) if killed_after else (0, 7))
            while log.delete_old_segments(10, 2) == 2:
                pass
            assert bases(files) == []
            append(log, 0)
            assert (log.log_start_offset, log.log_end_offset) == (7, 8)

    def test_read_only_disk_deletes_nothing(self) -> None:
        files = MemoryFileSystem()
        log = opened(files, segment_bytes=SIZE, retention_ms=0)
        append(log, 0, 0, 0)

        def hook(operation: str, path: str, size: int) -> None:
            if operation not in ("read", "sync"):
                raise StorageError(path, operation, "Read-only file system")

        files.hook = hook
        with pytest.raises(StorageError):
            log.delete_records_before(1, 0)
        with pytest.raises(StorageError):
            log.delete_old_segments(10)
        assert (log.log_start_offset, len(log.files.segments)) == (0, 3)
        files.hook = None
        assert log.delete_old_segments(10) == 3

    @pytest.mark.parametrize("suffix", [".log", ".index"])
    @pytest.mark.parametrize("slices", [1, 3])
    def test_file_that_cannot_be_removed_is_retried_and_keeps_no_others(self, slices: int, suffix: str) -> None:
        files = MemoryFileSystem()
        log = opened(files, segment_bytes=3 * SIZE, retention_ms=0, index_interval_bytes=1)
        append(log, *[0] * 18)

        def hook(operation: str, path: str, _size: int) -> None:
            if operation == "remove" and path in (f"{DIRECTORY}/{base:020d}{suffix}" for base in (0, 3)):
                raise StorageError(path, operation, "Operation not permitted")

        files.hook = hook
        assert [log.delete_old_segments(10, 6 // slices) for _ in range(1, slices)] == [6 // slices] * (slices - 1)
        for _ in range(2):
            with pytest.raises(StorageError, match="Operation not permitted"):
                log.delete_old_segments(10, 6 // slices)
            left = {name[:20] for name in files.list(DIRECTORY) if name.endswith((".log", ".index"))}
            assert left == {f"{base:020d}" for base in (0, 3)}
            assert (log.log_start_offset, log.log_end_offset) == (18, 18)
        append(log, 1000)
        files.hook = None
        assert log.delete_old_segments(10) == 0
        assert [name for name in files.list(DIRECTORY) if name.endswith((".log", ".index"))] == [f"{18:020d}.log"]
        files.hook = hook
        assert log.delete_old_segments(10) == 0

    def test_damaged_state_is_an_error(self) -> None:
        files = MemoryFileSystem()
        log = opened(files)
        append(log, 0, 0)
        log.files.note_compacted(1)
        files.kill()
        assert opened(files).files.state.first_dirty_offset == 1
        state = files.open(f"{DIRECTORY}/log.state")
        data = bytearray(state.read(0, 1000))
        data[-3] ^= 1
        state.truncate(0)
        state.append((data,))
        with pytest.raises(StorageError, match=r"log\.state: at byte 0: the CRC"):
            opened(files)


@pytest.mark.parametrize("operations", range(25))
@pytest.mark.parametrize("ends_by_power", [False, True])
def test_crash_in_any_step_of_deletion_keeps_a_valid_start(operations: int, ends_by_power: bool) -> None:
    """The log starts where it did or where it should, and holds everything from there on."""
    files = MemoryFileSystem()
    log = opened(files, segment_bytes=2 * SIZE, index_interval_bytes=1)
    for sequence in range(9):
        log.append(batch(identity=ProducerIdentity(7, 0), base_sequence=sequence), steady_ms=0)
    log.sync()
    left = operations

    def hook(operation: str, path: str, size: int) -> None:
        nonlocal left
        left -= 1
        if left < 0 and operation != "read":
            raise Interrupted(size // 2)

    files.hook = hook
    try:
        log.delete_records_before(5, 0)
        log.delete_old_segments(0)
        log.delete_records_before(9, 0)
        is_done = True
    except Interrupted:
        is_done = False
    files.hook = None
    rng = random.Random(operations)
    if ends_by_power:
        files.crash(lambda path, unsynced: rng.randint(0, unsynced))
    else:
        files.kill()
    log = opened(files, segment_bytes=2 * SIZE, index_interval_bytes=1)
    assert log.log_start_offset in ((9,) if is_done else (0, 5, 9))
    assert log.log_end_offset == 9
    offset = log.log_start_offset
    while offset < 9:
        header = read_header(log.read(offset, 1)[0])
        assert header.base_offset == offset
        offset += 1
    assert log.find_duplicate(read_header(batch(identity=ProducerIdentity(7, 0), base_sequence=8))) is not None
