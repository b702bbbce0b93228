"""Producer state of deleted segments, which only snapshots hold, survives every failure."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from chaffinch.identifiers import ProducerIdentity
from chaffinch.records.batch import read_header
from chaffinch.storage.compaction import Compaction, cleanable
from chaffinch.storage.file_system import Interrupted, MemoryFileSystem, StorageError
from chaffinch.storage.partition_log import LogConfig, PartitionLog
from tests.storage.batches import batch
from tests.storage.orders_log import DIRECTORY, ONE, ORDERS

TWO = ProducerIdentity(2, 0)
BEFORE = batch(identity=ONE, base_sequence=0, is_transactional=True)


def opened(files: MemoryFileSystem, **config: Any) -> PartitionLog:
    return PartitionLog.open(files, DIRECTORY, ORDERS, LogConfig(**config))


def append(log: PartitionLog) -> None:
    log.append(batch(timestamps=[0]), steady_ms=0)


def has_producer(log: PartitionLog) -> bool:
    return log.find_duplicate(read_header(BEFORE)) is not None


def lose_power(files: MemoryFileSystem) -> PartitionLog:
    """All names stay, and of files what was synced; returns the log that is found then."""
    files.crash(lambda path, unsynced: unsynced if path == DIRECTORY else 0)
    return opened(files)


def kill_without_snapshots(files: MemoryFileSystem) -> None:
    files.kill()
    for name in files.list(DIRECTORY):
        if name.endswith(".snapshot"):
            files.remove(f"{DIRECTORY}/{name}")


def refuses(refused: str, part: str, reason: str, *, says: str = "") -> Callable[[str, str, int], None]:
    """A disk that refuses an operation on files with `part` in their path; `says`: as what, where that is another one."""

    def hook(operation: str, path: str, _size: int) -> None:
        if operation == refused and part in path:
            raise StorageError(path, says or operation, reason)

    return hook


no_space_for_snapshots = refuses("append", ".snapshot", "No space left on device")


def with_producer(files: MemoryFileSystem, **config: Any) -> PartitionLog:
    """Its only transaction in a segment of its own."""
    log = opened(files, **config)
    log.append(BEFORE, steady_ms=0)
    log.append_marker(True, ONE, 0, 0)
    log.roll(0)
    return log


def abort(log: PartitionLog) -> None:
    log.append(batch(identity=TWO, base_sequence=0, is_transactional=True), steady_ms=0)
    log.append_marker(False, TWO, 0, 0)
    log.roll(0)
    append(log)


@pytest.fixture
def files() -> MemoryFileSystem:
    return MemoryFileSystem()


@pytest.mark.parametrize("rolls", [0, 2])
@pytest.mark.parametrize("aborts_first", [False, True])
def test_producers_survive_aborted_transactions(files: MemoryFileSystem, aborts_first: bool, rolls: int) -> None:
    """A snapshot that speaks of aborted transactions is of no use without their file."""
    log = with_producer(files)
    append(log)
    if aborts_first:
        abort(log)
    log.delete_records_before(2, 0)
    assert log.delete_old_segments(0) == 1
    if not aborts_first:
        abort(log)
    for _ in range(rolls):  # Snapshots that do not speak of them go.
        log.roll(0)
        append(log)
    log.sync()
    log = lose_power(files)
    assert has_producer(log)
    assert log.aborted_transactions(2, 100) == [(2, 3)]


def test_unchanged_aborted_index_is_not_synced(files: MemoryFileSystem) -> None:
    log = with_producer(files)
    log.delete_records_before(2, 0)
    abort(log)
    synced: list[str] = []
    files.hook = lambda operation, path, _size: synced.append(path) if operation == "sync" else None
    log.roll(0)
    assert [path for path in synced if path.endswith(".txnindex")] == []


@pytest.mark.parametrize(("count", "operations"), [(8, ["sync"] * 8), (9, ["sync all"])])
def test_many_files_of_aborted_transactions_are_synced_at_once(files: MemoryFileSystem, count: int, operations: list[str]) -> None:
    log = with_producer(files)
    append(log)
    for _ in range(count):
        abort(log)
    log.sync()
    synced: list[str] = []

    def note(operation: str, path: str, _size: int) -> None:
        if operation == "sync all" or (operation == "sync" and path.endswith(".txnindex")):
            synced.append(operation)

    files.hook = note
    log.delete_records_before(2, 0)
    assert synced == operations
    assert log.delete_old_segments(0) == 1
    assert synced == operations
    assert has_producer(lose_power(files))


def test_segments_stay_until_their_snapshot_is_durable(files: MemoryFileSystem) -> None:
    """One that was taken between two syncs counts as long as the power is there. Its producers are read again from segments."""
    log = opened(files)
    log.append(BEFORE, steady_ms=0)
    log.append_marker(True, ONE, 0, 0)
    files.hook = no_space_for_snapshots
    log.roll(0)
    files.hook = None
    log.config = LogConfig(checkpoint_bytes=1)
    append(log)
    assert log.delete_records_before(2, 0) == 2
    files.kill()
    log = opened(files)
    assert (log.log_start_offset, log.log_end_offset, has_producer(log)) == (2, 3, True)
    log.sync()
    assert has_producer(lose_power(files))


def test_log_start_moves_only_over_synced_records(files: MemoryFileSystem) -> None:
    """It is to start behind a batch that is not synced: with the power its producer was forgotten. The simulation found it: the batch,
    not acknowledged yet, came again and was stored a second time."""
    log = opened(files)
    log.append(BEFORE, steady_ms=0)
    log.delete_records_before(1, 0)
    log = lose_power(files)
    assert (log.log_start_offset, log.log_end_offset, has_producer(log)) == (1, 1, True)


@pytest.mark.parametrize("steps", range(10))
def test_crash_while_the_start_moves_loses_no_producer(files: MemoryFileSystem, steps: int) -> None:
    """The records are synced before that name is there, not only before the call returns."""
    log = opened(files)
    log.append(BEFORE, steady_ms=0)
    left = iter(range(steps))

    def dies(_operation: str, _path: str, _size: int) -> None:
        if next(left, None) is None:
            raise Interrupted

    files.hook = dies
    with suppress(Interrupted):
        log.delete_records_before(1, 0)
    files.hook = None
    log = lose_power(files)
    assert log.log_end_offset == 0 or has_producer(log)


def test_start_without_descriptors_loses_no_producer(files: MemoryFileSystem) -> None:
    """It is refused. The snapshot that could not be opened stays: nothing is wrong with it, and only it contains them."""
    log = with_producer(files)
    append(log)
    append(log)
    log.delete_records_before(2, 0)
    assert log.delete_old_segments(0) == 1
    log.sync()
    files.hook = refuses("sync", ".snapshot", "Too many open files", says="open")  # Which it does for that.
    with pytest.raises(StorageError, match="Too many open files"):
        log.delete_records_before(3, 0)
    files.hook = None
    files.kill()
    assert has_producer(opened(files))


def test_refused_start_with_a_start_file_loses_no_producer(files: MemoryFileSystem) -> None:
    """The next process takes it for what counts and deletes segments: for a snapshot that was not needed when it was written."""
    log = with_producer(files)
    append(log)
    log.sync()
    files.hook = refuses("sync directory", "", "Too many open files", says="open")
    with pytest.raises(StorageError, match="Too many open files"):
        log.delete_records_before(2, 0)
    files.hook, files.has_failed_sync = None, False
    append(log)
    log.roll(0)
    append(log)
    log.close()
    files.kill()
    log = opened(files)
    assert (log.log_start_offset, has_producer(log)) == (2, True)
    log.sync()
    assert has_producer(lose_power(files))


def test_a_start_before_the_last_segment_syncs_no_records(files: MemoryFileSystem) -> None:
    """All below it is on disk, and gigabytes may not be."""
    log = with_producer(files)
    append(log)
    synced: list[str] = []
    files.hook = lambda operation, path, _size: synced.append(path) if operation == "sync" else None
    log.delete_records_before(2, 0)
    assert [path for path in synced if path.endswith(".log")] == []


def test_batches_in_a_snapshot_are_not_counted_twice(files: MemoryFileSystem) -> None:
    """The last segment is read once more where the log starts at its end. Twice the same batches would drive out earlier ones."""
    log = opened(files)
    sent = [batch(identity=TWO, base_sequence=sequence) for sequence in range(5)]
    for data in sent[:3]:
        log.append(data, steady_ms=0)
    log.roll(0)
    for data in sent[3:]:
        log.append(data, steady_ms=0)
    log.delete_records_before(5, 0)
    log.close()
    log = opened(files)
    assert [log.find_duplicate(read_header(data)) is not None for data in sent] == [True] * 5


@pytest.mark.parametrize("is_removed", [False, True])
def test_damage_below_the_log_start_is_ignored(files: MemoryFileSystem, is_removed: bool) -> None:
    """No reader reads there any more. A transaction that is open before it may have ended in what is lost."""
    log = opened(files)
    log.append(BEFORE, steady_ms=0)
    for _ in range(3):
        log.roll(0)
        append(log)
    log.delete_records_before(3, 0)
    kill_without_snapshots(files)
    damaged = f"{DIRECTORY}/{1:020d}.log"
    if is_removed:
        files.remove(damaged)
    else:
        files.open(damaged).truncate(10)
    log = opened(files)
    assert (log.log_start_offset, log.log_end_offset, log.last_stable_offset) == (3, 4, 4)
    assert [segment.base_offset for segment in log.files.segments] == [2, 3]
    assert not log.has_ongoing_transaction(ONE.producer_id)
    assert read_header(log.read(3, 1000)[0]).base_offset == 3


def test_segments_before_damage_below_the_start_are_removed_after_a_snapshot(files: MemoryFileSystem) -> None:
    log = with_producer(files)
    for _ in range(2):
        append(log)
        log.roll(0)
    append(log)
    log.delete_records_before(4, 0)
    kill_without_snapshots(files)
    files.open(f"{DIRECTORY}/{2:020d}.log").truncate(10)
    assert has_producer(opened(files))
    log = lose_power(files)
    assert has_producer(log)
    log.close()
    assert has_producer(opened(files))
    assert [name for name in files.list(DIRECTORY) if name.endswith(".log")] == [f"{4:020d}.log"]


def test_damaged_aborted_index_loses_no_producer(files: MemoryFileSystem, caplog: pytest.LogCaptureFixture) -> None:
    """All is read again but for what was deleted, and the snapshot with those producers stays as long as it is the only one."""
    log = with_producer(files)
    append(log)
    abort(log)
    log.delete_records_before(2, 0)
    assert log.delete_old_segments(0) == 1
    log.close()
    (name,) = [name for name in files.list(DIRECTORY) if name.endswith(".txnindex")]
    files.open(f"{DIRECTORY}/{name}").truncate(10)
    log = opened(files)
    assert "a list of aborted transactions that it needs is missing or damaged" in caplog.text
    assert log.aborted_transactions(2, 100) == [(2, 3)]
    assert not log.has_ongoing_transaction(TWO.producer_id)
    assert has_producer(log)
    log = lose_power(files)
    assert has_producer(log)


class TestDamagedAbortedIndex:
    @pytest.fixture(autouse=True)
    def damaged(self, files: MemoryFileSystem) -> None:
        log = with_producer(files)
        append(log)
        abort(log)
        log.delete_records_before(2, 0)
        log.delete_old_segments(0)
        log.close()
        (name,) = [name for name in files.list(DIRECTORY) if name.endswith(".txnindex")]
        files.open(f"{DIRECTORY}/{name}").truncate(10)

    def test_damaged_aborted_index_is_rebuilt_by_close(self, files: MemoryFileSystem, caplog: pytest.LogCaptureFixture) -> None:
        opened(files).close()
        caplog.clear()
        log = opened(files)
        assert not caplog.text
        assert log.aborted_transactions(2, 100) == [(2, 3)]
        assert has_producer(log)

    def test_damaged_aborted_index_with_a_torn_end_allows_later_starts(self, files: MemoryFileSystem) -> None:
        """What was cut off is said at the start that does it, and not missed by the next one."""
        last = [name for name in files.list(DIRECTORY) if name.endswith(".log")][-1]
        file = files.open(f"{DIRECTORY}/{last}")
        file.truncate(file.size - 1)
        log = opened(files)
        assert (log.log_end_offset, len(log.cuts)) == (5, 1)
        log.close()
        log = opened(files)
        assert (log.log_end_offset, log.cuts) == (5, [])
        assert has_producer(log)


def dies_in_roll(files: MemoryFileSystem, log: PartitionLog) -> PartitionLog:
    """Between the new segment and its snapshot."""

    def dies(_operation: str, path: str, _size: int) -> None:
        if ".snapshot" in path:
            raise Interrupted

    files.hook = dies
    with pytest.raises(Interrupted):
        log.roll(0)
    files.hook = None
    files.kill()
    return opened(files, compacts=True)


def rolls_on_full_disk(files: MemoryFileSystem, log: PartitionLog) -> PartitionLog:
    files.hook = no_space_for_snapshots
    log.roll(0)
    files.hook = None
    return log


def compact(log: PartitionLog) -> None:
    found = cleanable(log.files.segments, log.files.state, log.config, log.last_stable_offset, 10**6)
    job = Compaction(log, found.end_offset, 10**6, map_bytes_max=1 << 20)
    while not job.step():
        pass


class TestCompaction:
    """Snapshots that end inside the rewritten segments are of no use afterwards: as when a segment was sealed and none was written."""

    @pytest.fixture
    def log(self, files: MemoryFileSystem) -> PartitionLog:
        """The producer's segment is deleted, and both snapshots that are kept end inside the last one."""
        log = with_producer(files, compacts=True)
        append(log)
        append(log)
        log.delete_records_before(2, 0)
        assert log.delete_old_segments(0) == 1
        for _ in range(2):
            append(log)
            log.close()
            files.kill()
            log = opened(files, compacts=True)
        append(log)
        return log

    @pytest.mark.parametrize("rolls", [dies_in_roll, rolls_on_full_disk])
    def test_compaction_loses_no_producer(
        self, files: MemoryFileSystem, log: PartitionLog, rolls: Callable[[MemoryFileSystem, PartitionLog], PartitionLog]
    ) -> None:
        log = rolls(files, log)
        append(log)
        compact(log)
        log.sync()
        files.kill()
        assert has_producer(opened(files, compacts=True))

    def test_compaction_does_not_begin_without_a_snapshot(self, files: MemoryFileSystem, log: PartitionLog) -> None:
        log = dies_in_roll(files, log)
        append(log)
        files.hook = no_space_for_snapshots
        with pytest.raises(StorageError, match="No space left"):
            compact(log)
        files.hook = None
        assert log.files.state.swap is None
        compact(log)
        assert log.files.state.gaps_below > 0


class TestFullDisk:
    @pytest.fixture
    def log(self, files: MemoryFileSystem) -> PartitionLog:
        """Two segments that a snapshot covers, and many that none covers."""
        log = with_producer(files, retention_ms=100)
        append(log)
        log.roll(0)
        files.hook = no_space_for_snapshots
        for _ in range(50):
            append(log)
            log.roll(0)
        return log

    def test_expire_deletes_what_it_can_and_raises_for_the_rest(
        self, log: PartitionLog, files: MemoryFileSystem, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It logs nothing: a thousand partitions would log it at each check."""
        caplog.clear()
        for _ in range(2):
            with pytest.raises(StorageError, match=r"cannot append orders-0/0*53\.snapshot\.new: No space left"):
                log.delete_old_segments(1000)
            assert log.log_start_offset == 3
        assert not [record.message for record in caplog.records if record.levelname == "WARNING"]
        files.hook = None
        assert log.delete_old_segments(1000) == 50

    def test_expire_deletes_what_it_can_when_a_sync_fails(self, log: PartitionLog, files: MemoryFileSystem) -> None:
        append(log)
        files.hook = refuses("sync", ".log", "Input/output error")
        with pytest.raises(StorageError, match="Input/output error"):
            log.delete_old_segments(1000)
        assert log.log_start_offset == 3

    def test_expire_deletes_in_slices_before_the_error(self, log: PartitionLog) -> None:
        assert [log.delete_old_segments(1000, 1), log.log_start_offset, log.files.segments[0].base_offset] == [1, 3, 2]
        with pytest.raises(StorageError):
            log.delete_old_segments(1000, 1)
        assert log.files.segments[0].base_offset == 3


def test_removed_snapshot_is_written_again() -> None:
    files = MemoryFileSystem()
    log = with_producer(files)
    append(log)
    name = [name for name in files.list(DIRECTORY) if name.endswith(".snapshot")][-1]
    files.remove(f"{DIRECTORY}/{name}")
    with pytest.raises(StorageError, match="No such file"):
        log.delete_records_before(2, 0)
    log.delete_records_before(2, 0)
    assert has_producer(lose_power(files))
