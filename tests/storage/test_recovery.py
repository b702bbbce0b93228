"""Recovery of a partition log: a torn end is cut off, damage is refused."""

import logging
from collections.abc import Callable

import pytest

from chaffinch.identifiers import ProducerIdentity
from chaffinch.records.batch import read_header, views
from chaffinch.records.batch_header import write_crc
from chaffinch.storage.file_system import CorruptLog, Interrupted, MemoryFileSystem, StorageError
from chaffinch.storage.partition_log import LogConfig, PartitionLog
from chaffinch.storage.wall_time import WallTime
from tests.storage.batches import batch
from tests.storage.orders_log import DIRECTORY, FIRST, ONE, SIZE, filled, opened


def change(files: MemoryFileSystem, path: str, position: int, data: bytes) -> None:
    file = files.open(path, create=False)
    rest = file.read(position + len(data), 1 << 20)
    file.truncate(position)
    file.append((data + rest,))


def end_offsets(log: PartitionLog) -> list[int]:
    found = []
    offset = 0
    while data := log.read(offset, 1 << 20):
        found += [view.header.last_offset + 1 for view in views(data[0])]
        offset = found[-1]
    return found


class TestTornEnds:
    @pytest.mark.parametrize("kept", [1, 11, 12, 16, 17, 60, 61, SIZE - 1])
    def test_a_torn_batch_is_cut_off_and_reported(self, kept: int, caplog: pytest.LogCaptureFixture) -> None:
        files = MemoryFileSystem()
        filled(files, 3)
        files.kill()
        files.open(FIRST + ".log").append((bytes(batch(base_offset=3))[:kept],))
        with caplog.at_level(logging.WARNING):
            log = opened(files)
        (cut,) = log.cuts
        assert (cut.path, cut.position, cut.bytes_cut) == (FIRST + ".log", 3 * SIZE, kept)
        assert str(cut) in caplog.text
        assert (log.log_end_offset, log.size_bytes, end_offsets(log)) == (3, 3 * SIZE, [1, 2, 3])
        assert log.append(batch(), steady_ms=0).base_offset == 3
        files.kill()
        assert (opened(files).cuts, end_offsets(opened(files))) == ([], [1, 2, 3, 4])

    @pytest.mark.parametrize("tail", [bytes(1), bytes(5000), b"\xff" * 5000, b"\x02" * 5000], ids=["zero", "zeros", "ones", "magic"])
    def test_tail_that_is_no_batch_is_cut_off(self, tail: bytes) -> None:
        """A file may have grown before its bytes were there."""
        files = MemoryFileSystem()
        filled(files, 3)
        files.kill()
        files.open(FIRST + ".log").append((tail,))
        log = opened(files)
        assert [cut.bytes_cut for cut in log.cuts] == [len(tail)]
        assert end_offsets(log) == [1, 2, 3]

    def test_a_whole_header_over_a_missing_payload_is_a_torn_end(self) -> None:
        files = MemoryFileSystem()
        filled(files, 3)
        change(files, FIRST + ".log", 2 * SIZE + 61, bytes(SIZE - 61))
        files.kill()
        assert end_offsets(opened(files)) == [1, 2]

    def test_batch_inside_a_record_is_not_found(self) -> None:
        """A torn batch whose value holds a whole batch, numbered from 0 as producers do."""
        files = MemoryFileSystem()
        files.make_directory(DIRECTORY)
        outer = bytes(batch(value=bytes(batch())))
        files.open(FIRST + ".log").append((outer[:-1],))
        log = opened(files)
        assert [cut.position for cut in log.cuts] == [0]
        assert log.log_end_offset == 0

    def test_empty_segments_after_a_torn_end_are_removed(self) -> None:
        """A file is made before its first batch is written to it."""
        files = MemoryFileSystem()
        filled(files, 4, segment_bytes=2 * SIZE)
        files.kill()
        files.remove(f"{DIRECTORY}/{2:020d}.snapshot")
        files.open(f"{DIRECTORY}/{2:020d}.log").truncate(SIZE + 5)
        files.open(f"{DIRECTORY}/{4:020d}.log").append((b"",))
        log = opened(files)
        assert [(cut.position, cut.bytes_cut) for cut in log.cuts] == [(SIZE, 5), (0, 0)]
        assert [name for name in files.list(DIRECTORY) if name.endswith(".log")] == [f"{0:020d}.log", f"{2:020d}.log"]
        assert end_offsets(log) == [1, 2, 3]


class TestDamage:
    """Bytes that were acknowledged and are wrong now: an error with file and byte, and not a byte changed."""

    def damaged(self, files: MemoryFileSystem, path: str, position: int, match: str) -> None:
        before = {name: files.open(f"{DIRECTORY}/{name}").read(0, 1 << 20) for name in files.list(DIRECTORY)}
        files.kill()
        with pytest.raises(CorruptLog, match=match) as caught:
            opened(files)
        assert (caught.value.path, caught.value.position) == (path, position)
        assert {name: files.open(f"{DIRECTORY}/{name}").read(0, 1 << 20) for name in files.list(DIRECTORY)} == before

    @pytest.mark.parametrize(
        ("at", "data", "match"),
        [
            (70, b"\xff", "does not match its CRC"),
            (16, b"\x07", "magic 7 where a batch of format 2 is expected"),
            (8, b"\x00\x00\x00\x01", "a batch of length 1"),
            (8, b"\x7f\xff\xff\xff", "ends after"),
            (0, b"\x01", "is where offset 2 is expected"),
        ],
    )
    @pytest.mark.parametrize("is_closed", [False, True])
    def test_damage_in_the_middle_is_refused(self, at: int, data: bytes, match: str, is_closed: bool) -> None:
        files = MemoryFileSystem()
        log = filled(files)
        if is_closed:
            log.close()
        change(files, FIRST + ".log", 2 * SIZE + at, data)
        self.damaged(files, FIRST + ".log", 2 * SIZE, match)

    @pytest.mark.parametrize("is_closed", [False, True])
    def test_every_changed_byte_is_detected(self, is_closed: bool) -> None:
        """Every byte in turn, but for the leader epoch, which no CRC covers and nothing depends on. In the last batch of a log that was
        not closed a change looks like a torn write: that batch goes, and is reported."""
        files = MemoryFileSystem()
        log = filled(files, 4)
        if is_closed:
            log.close()
        file = files.open(FIRST + ".log")
        whole = file.read(0, 4 * SIZE)
        for changed in range(4 * SIZE):
            start, at = changed - changed % SIZE, changed % SIZE
            files.kill()
            file = files.open(FIRST + ".log")
            file.truncate(0)
            file.append((whole[:changed] + bytes([whole[changed] ^ 0x10]) + whole[changed + 1 :],))
            if 12 <= at < 16:
                assert end_offsets(opened(files)) == [1, 2, 3, 4]
            elif is_closed or start < 3 * SIZE:
                with pytest.raises(CorruptLog) as caught:
                    opened(files)
                assert caught.value.position == start
            else:
                log = opened(files)
                assert [(cut.position, cut.bytes_cut) for cut in log.cuts] == [(3 * SIZE, SIZE)]
                assert end_offsets(log) == [1, 2, 3]

    def test_damage_in_the_last_batch_of_a_closed_log_is_refused(self) -> None:
        """Without the snapshot this would be a torn end; with it, it was whole."""
        files = MemoryFileSystem()
        filled(files).close()
        change(files, FIRST + ".log", 6 * SIZE - 1, b"\xff")
        self.damaged(files, FIRST + ".log", 5 * SIZE, "it held the records of offsets 5 to 5")

    @pytest.mark.parametrize("with_snapshots", [True, False])
    def test_damage_at_the_end_of_an_older_segment_is_refused(self, with_snapshots: bool) -> None:
        files = MemoryFileSystem()
        filled(files, segment_bytes=2 * SIZE)
        if not with_snapshots:
            remove_snapshots(files)
        change(files, FIRST + ".log", 2 * SIZE - 1, b"\xff")
        self.damaged(files, FIRST + ".log", SIZE, "does not match its CRC")

    @pytest.mark.parametrize("with_snapshots", [True, False])
    def test_truncated_older_segment_is_refused(self, with_snapshots: bool) -> None:
        files = MemoryFileSystem()
        filled(files, segment_bytes=2 * SIZE)
        if not with_snapshots:
            remove_snapshots(files)
        files.open(FIRST + ".log").truncate(SIZE)
        match = "it held .* bytes of records" if with_snapshots else "offset 1 comes next, but the next file begins at 2, and a whole batch"
        self.damaged(files, FIRST + ".log", SIZE, match)

    def test_truncated_closed_log_is_refused(self) -> None:
        files = MemoryFileSystem()
        filled(files).close()
        files.open(FIRST + ".log").truncate(3 * SIZE)
        self.damaged(files, FIRST + ".log", 3 * SIZE, f"it held {6 * SIZE} bytes")

    def test_closed_log_without_its_file_is_refused(self) -> None:
        files = MemoryFileSystem()
        filled(files).close()
        files.remove(FIRST + ".log")
        self.damaged(files, FIRST + ".log", 0, "the file is missing")

    def test_bytes_added_to_an_older_segment_are_refused(self) -> None:
        files = MemoryFileSystem()
        filled(files, segment_bytes=2 * SIZE).close()
        files.open(FIRST + ".log").append((b"x",))
        self.damaged(files, FIRST + ".log", 2 * SIZE, "bytes were added")

    def test_missing_middle_segment_is_refused(self) -> None:
        files = MemoryFileSystem()
        filled(files, segment_bytes=2 * SIZE)
        remove_snapshots(files)
        files.remove(f"{DIRECTORY}/{2:020d}.log")
        self.damaged(files, FIRST + ".log", 2 * SIZE, "offset 2 comes next, but the next file begins at 4")

    def test_overlapping_segments_are_refused(self) -> None:
        files = MemoryFileSystem()
        filled(files, 3)
        files.open(f"{DIRECTORY}/{2:020d}.log").append((batch(base_offset=2),))
        self.damaged(files, FIRST + ".log", 3 * SIZE, "the next file begins at 2")

    def test_unreadable_marker_is_refused(self) -> None:
        files = MemoryFileSystem()
        log = filled(files, 1)
        log.append_marker(True, ONE, 0, 0)
        marker = bytearray(log.read(1, 1000)[0])
        marker[61 + 4 : 61 + 4 + 1] = b"\x7f"  # The key's length, under a right CRC.
        write_crc(marker)
        change(files, FIRST + ".log", SIZE, bytes(marker))
        self.damaged(files, FIRST + ".log", SIZE, "the marker of offset 1 cannot be read")


def remove_snapshots(files: MemoryFileSystem) -> None:
    for name in files.list(DIRECTORY):
        if name.endswith(".snapshot"):
            files.remove(f"{DIRECTORY}/{name}")


def varied_log(files: MemoryFileSystem, **config: int) -> PartitionLog:
    """Producers, an open transaction, aborted ones, several segments."""
    log = opened(files, **config)
    for turn in range(8):
        log.append(batch(2, timestamps=[turn, turn + 5], identity=ProducerIdentity(5, 0), base_sequence=2 * turn), steady_ms=1000)
        log.append(batch(2, identity=ProducerIdentity(6, turn), base_sequence=0, is_transactional=True), steady_ms=1000)
        log.append_marker(turn % 3 == 0, ProducerIdentity(6, turn), turn, 1000)
    log.append(batch(1, identity=ONE, base_sequence=9, is_transactional=True), steady_ms=1000)
    return log


def state_of(log: PartitionLog) -> object:
    """Everything about a log that its users can see."""
    end = log.log_end_offset
    return (
        (log.log_start_offset, end, log.high_watermark, log.last_stable_offset, log.size_bytes),
        [bytes(log.read(offset, 1, at_least_one=True)[0]) for offset in range(end)],
        log.ongoing_transactions(),
        [log.aborted_transactions(first, last) for first in range(0, end, 3) for last in range(first, end, 3)],
        sorted(log.producers.to_rows(WallTime())),
        [log.offset_for_timestamp(timestamp) for timestamp in range(15)],
    )


SMALL = {"segment_bytes": 7 * SIZE, "index_interval_bytes": 150, "checkpoint_bytes": 5 * SIZE}


def closed(files: MemoryFileSystem, log: PartitionLog) -> None:
    log.close()
    files.kill()


def closed_then_power_lost(files: MemoryFileSystem, log: PartitionLog) -> None:
    log.close()
    files.crash(lambda path, unsynced: 0)


def synced_then_power_lost(files: MemoryFileSystem, log: PartitionLog) -> None:
    log.sync()
    files.crash(lambda path, unsynced: 0)


ENDS: dict[str, Callable[[MemoryFileSystem, PartitionLog], None]] = {
    "closed": closed,
    "closed, then power lost": closed_then_power_lost,
    "killed": lambda files, log: files.kill(),
    "synced, then power lost": synced_then_power_lost,
    "power lost, all kept": lambda files, log: files.crash(lambda path, unsynced: unsynced),
}


@pytest.mark.parametrize("config", [{}, SMALL], ids=["one segment", "many"])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_reopened_log_is_unchanged(end: Callable[[MemoryFileSystem, PartitionLog], None], config: dict[str, int]) -> None:
    files = MemoryFileSystem()
    log = varied_log(files, **config)
    before = state_of(log)
    end(files, log)
    again = opened(files, **config)
    assert again.cuts == []
    assert state_of(again) == before
    assert again.append(batch(), steady_ms=0).base_offset == log.log_end_offset


@pytest.mark.parametrize("suffix", [".index", ".txnindex", ".snapshot"])
@pytest.mark.parametrize("how", ["removed", "emptied", "cut short", "damaged", "longer"])
def test_derived_files_are_rebuilt_from_the_log(suffix: str, how: str) -> None:
    """An index, a list of aborted transactions or a snapshot that is not what was saved is rebuilt from the log."""
    files = MemoryFileSystem()
    log = varied_log(files, **SMALL)
    before = state_of(log)
    log.close()
    names = [name for name in files.list(DIRECTORY) if name.endswith(suffix)]
    assert names
    for name in names:
        file = files.open(f"{DIRECTORY}/{name}")
        match how:
            case "removed":
                files.remove(f"{DIRECTORY}/{name}")
            case "emptied":
                file.truncate(0)
            case "cut short":
                file.truncate(file.size - 1)
            case "damaged":
                change(files, f"{DIRECTORY}/{name}", file.size // 2, b"\xee")
            case "longer":
                file.append((b"\x00" * 100,))
    files.kill()
    again = opened(files, **SMALL)
    assert state_of(again) == before
    again.append(batch(), steady_ms=0)
    again.close()
    files.kill()
    assert opened(files, **SMALL).log_end_offset == log.log_end_offset + 1


def test_records_of_a_killed_process_are_synced_though_checkpointed() -> None:
    files = MemoryFileSystem()
    filled(files, 10, checkpoint_bytes=10 * SIZE)
    files.kill()
    log = opened(files, verify_bytes_max=0)
    assert log.recovery_bytes_read == 0, "the checkpoint is at the log's very end"
    log.sync()
    files.crash(lambda path, unsynced: 0)
    assert opened(files).log_end_offset == 10


def test_snapshot_of_lost_batches_is_not_used_later() -> None:
    """Power is lost with unsynced batches 3 to 5 and their snapshot kept; others take their offsets."""
    files = MemoryFileSystem()
    log = opened(files, checkpoint_bytes=6 * SIZE)
    for sequence in range(6):
        log.append(batch(identity=ONE, base_sequence=sequence), steady_ms=0)
        if sequence == 2:
            log.sync()
    files.crash(lambda path, unsynced: 0 if path.endswith(".log") else unsynced)
    assert f"{6:020d}.snapshot" in files.list(DIRECTORY)
    log = opened(files)
    assert log.log_end_offset == 3
    assert f"{6:020d}.snapshot" not in files.list(DIRECTORY)
    for _ in range(5):
        log.append(batch(), steady_ms=0)
    files.kill()
    log = opened(files)
    assert log.log_end_offset == 8
    assert [log.find_duplicate(read_header(batch(identity=ONE, base_sequence=at))) is not None for at in range(6)] == [True] * 3 + [
        False
    ] * 3


def test_index_is_rebuilt_below_a_torn_end() -> None:
    """The index is lost with the power, the snapshot is not, and a torn batch stands behind what the snapshot vouches for."""
    files = MemoryFileSystem()
    log = filled(files, 3, index_interval_bytes=1)
    log.close()
    files.remove(FIRST + ".index")
    files.open(FIRST + ".log").append((b"\x00" * 20,))
    files.kill()
    log = opened(files)
    assert [cut.position for cut in log.cuts] == [3 * SIZE]
    assert end_offsets(log) == [1, 2, 3]


def test_aborted_index_is_saved_after_a_failed_save() -> None:
    """The disk is full when a segment with an aborted transaction is sealed; there is space again when the log is closed."""
    files = MemoryFileSystem()
    log = opened(files, segment_bytes=3 * SIZE)
    log.append(batch(identity=ONE, base_sequence=0, is_transactional=True), steady_ms=0)
    log.append_marker(False, ONE, 0, 0)

    def hook(operation: str, path: str, size: int) -> None:
        if size and path.endswith(".txnindex"):
            raise StorageError(path, operation, "No space left on device")

    files.hook = hook
    log.append(batch(), steady_ms=0)
    assert len([name for name in files.list(DIRECTORY) if name.endswith(".log")]) == 2
    files.hook = None
    log.close()
    files.kill()
    assert opened(files).aborted_transactions(0, 3) == [(1, 0)]


def test_index_entries_of_lost_batches_are_replaced() -> None:
    """Entries are saved, but neither their snapshot nor the batches they are about; what comes instead is saved in their place."""
    files = MemoryFileSystem()
    log = filled(files, 2, index_interval_bytes=1)
    log.sync()
    log.append(batch(5), steady_ms=0)
    log.append(batch(), steady_ms=0)

    def hook(operation: str, path: str, size: int) -> None:
        if size and path.endswith(".snapshot.new"):
            raise Interrupted

    files.hook = hook
    log.config = LogConfig(checkpoint_bytes=1)
    with pytest.raises(Interrupted):
        log.append(batch(), steady_ms=0)
    files.hook = None
    files.crash(lambda path, unsynced: 0 if path.endswith(".log") else unsynced)
    log = opened(files, index_interval_bytes=1)
    assert end_offsets(log) == [1, 2]
    for _ in range(9):
        log.append(batch(), steady_ms=0)
    log.close()
    files.kill()
    assert files.open(FIRST + ".index").size == 11 * 16
    assert end_offsets(opened(files, verify_bytes_max=0)) == list(range(1, 12))


def test_half_written_snapshots_are_removed() -> None:
    files = MemoryFileSystem()
    filled(files, 3)
    files.kill()
    files.open(f"{DIRECTORY}/{3:020d}.snapshot.new").append((b"half",))
    opened(files)
    assert files.list(DIRECTORY) == [f"{0:020d}.log"]


def test_producers_rebuilt_from_the_log_count_as_just_seen() -> None:
    files = MemoryFileSystem()
    log = opened(files)
    log.append(batch(identity=ONE, base_sequence=0), steady_ms=5)
    files.kill()
    log = opened(files)
    assert log.forget_idle_producers(steady_ms=1099, idle_ms_max=100) == 0
    assert log.forget_idle_producers(steady_ms=1100, idle_ms_max=100) == 1
