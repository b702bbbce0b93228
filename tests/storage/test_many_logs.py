"""Operations on many logs have the same guarantees after a loss of power as on each log."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from chaffinch.identifiers import TopicPartition
from chaffinch.records.batch import read_header
from chaffinch.storage.file_system import Interrupted, MemoryFileSystem, StorageError
from chaffinch.storage.many_logs import delete_records_many, sync_many
from chaffinch.storage.partition_log import OffsetOutOfRange, PartitionLog
from tests.storage.batches import batch
from tests.storage.orders_log import ONE

COUNT = 10
BEFORE = batch(identity=ONE, base_sequence=0)


def opened(files: MemoryFileSystem, count: int = COUNT) -> list[PartitionLog]:
    return [PartitionLog.open(files, f"logs/orders-{number}", TopicPartition("orders", number)) for number in range(count)]


def filled(files: MemoryFileSystem, count: int = COUNT) -> list[PartitionLog]:
    """Each with a producer whose only batch has a segment of its own, and two records behind it."""
    logs = opened(files, count)
    for log in logs:
        log.append(bytearray(BEFORE), steady_ms=0)
        log.roll(0)
        for _ in range(2):
            log.append(batch(), steady_ms=0)
    return logs


def nothing(_path: str, _unsynced: int) -> int:
    return 0


class Syncs:
    """Counts them; `refused` ones fail: an operation, or the beginning of a path."""

    def __init__(self, files: MemoryFileSystem, *refused: str) -> None:
        self.seen: Counter[str] = Counter()
        self._refused = refused
        files.hook = self._hook

    def _hook(self, operation: str, path: str, size: int) -> None:
        if "sync" in operation:
            self.seen[operation] += 1
            if any(operation == refused or path.startswith(refused) for refused in self._refused):
                raise StorageError(path, operation, "Input/output error")


class TestSync:
    @pytest.mark.parametrize(("count", "seen"), [(8, {"sync": 8}), (9, {"sync all": 1})])
    def test_nine_or_more_logs_are_synced_at_once(self, count: int, seen: dict[str, int]) -> None:
        files = MemoryFileSystem()
        logs = filled(files, count)
        sync_many(logs)
        for log in logs:
            log.append(batch(), steady_ms=0)
        syncs = Syncs(files)
        sync_many(logs)
        sync_many(logs)
        assert syncs.seen == seen
        files.hook = None
        files.crash(nothing)
        assert [log.log_end_offset for log in opened(files, count)] == [4] * count

    def test_each_log_is_synced_after_a_failed_sync_of_all(self) -> None:
        files = MemoryFileSystem()
        logs = filled(files)
        Syncs(files, "sync all")
        sync_many(logs)
        files.hook = None
        files.crash(nothing)
        assert [log.log_end_offset for log in opened(files)] == [3] * COUNT

    def test_log_with_failed_sync_is_never_reported_as_synced(self) -> None:
        """The system has reported its lost bytes: a sync of everything would succeed without them."""
        files = MemoryFileSystem()
        logs = filled(files)
        syncs = Syncs(files, "sync all", "logs/orders-3/")
        with pytest.raises(StorageError, match="orders-3"):
            sync_many(logs)
        files.hook = None
        for _ in range(2):
            for log in logs[:3] + logs[4:]:
                log.append(batch(), steady_ms=0)
            with pytest.raises(StorageError, match="an earlier sync failed"):
                sync_many(logs)
        assert syncs.seen["sync all"] == 1
        assert not logs[3].is_synced


class TestStart:
    @pytest.mark.parametrize(("count", "at_once"), [(8, 0), (9, 2)])
    def test_nine_or_more_logs_move_their_start_with_two_syncs(self, count: int, at_once: int) -> None:
        files = MemoryFileSystem()
        logs = filled(files, count)
        for log in logs:
            log.sync()
        syncs = Syncs(files)
        assert delete_records_many(dict.fromkeys(logs, 2), 0) == {}
        assert syncs.seen["sync all"] == at_once
        assert bool(syncs.seen["sync directory"]) == (at_once == 0)
        assert [log.log_start_offset for log in logs] == [2] * count
        assert [log.delete_old_segments(0) for log in logs] == [1] * count
        files.hook = None
        files.crash(nothing)
        for log in opened(files, count):
            assert (log.log_start_offset, log.log_end_offset) == (2, 3)
            assert log.find_duplicate(read_header(BEFORE)) is not None

    def test_start_file_is_written_only_for_moved_logs(self) -> None:
        files = MemoryFileSystem()
        logs = filled(files)
        delete_records_many(dict.fromkeys(logs, 2), 0)
        syncs = Syncs(files)
        assert delete_records_many({log: number % 3 for number, log in enumerate(logs)}, 0) == {}
        assert not syncs.seen
        assert [name for name in files.list(logs[0].directory) if name.endswith(".start")] == [f"{2:020d}.start"]

    def test_failure_is_returned_per_log(self) -> None:
        files = MemoryFileSystem()
        logs = filled(files)
        sync_many(logs)
        Syncs(files, "sync all", "logs/orders-3")
        failed = delete_records_many(dict.fromkeys(logs, 2), 0)
        assert list(failed) == [logs[3]]
        assert [log.log_start_offset for log in logs] == [2] * 3 + [0] + [2] * 6
        files.hook = None
        assert delete_records_many({logs[3]: 2}, 0) == {}
        files.crash(nothing)
        assert [log.log_start_offset for log in opened(files)] == [2] * COUNT

    def test_start_stays_within_records_that_could_be_synced(self) -> None:
        """Nor later: the disk reports the lost bytes only once."""
        files = MemoryFileSystem()
        logs = filled(files)
        Syncs(files, "sync all", f"{logs[3].directory}/{1:020d}.log")
        assert list(delete_records_many(dict.fromkeys(logs, 2), 0)) == [logs[3]]
        files.hook = None
        assert list(delete_records_many({logs[3]: 2}, 0)) == [logs[3]]
        files.crash(nothing)
        assert [log.log_start_offset for log in opened(files)] == [2] * 3 + [0] + [2] * 6

    def test_start_above_the_high_watermark_is_refused(self) -> None:
        logs = filled(MemoryFileSystem())
        logs[5].high_watermark = 1
        with pytest.raises(OffsetOutOfRange):
            delete_records_many(dict.fromkeys(logs, 2), 0)
        assert logs[5].log_start_offset == 0

    @pytest.mark.parametrize("loses_power", [False, True])
    @pytest.mark.parametrize("seed", range(3))
    def test_crash_in_any_step_keeps_starts_and_producers(self, loses_power: bool, seed: int) -> None:
        """And then one of power, after the next start has deleted what lies below the starts that it found."""
        rng = random.Random(seed)
        for steps in range(100):
            files = MemoryFileSystem()
            logs = filled(files)
            for log in logs:
                log.sync()  # The records, and no snapshot.
            if not has_died(files, logs, steps):
                assert steps == COUNT + 2
                return
            if loses_power:
                files.crash(lambda _path, unsynced: rng.randint(0, unsynced))
            else:
                files.kill()
            starts = [log.log_start_offset for log in opened(files)]
            assert set(starts) <= {0, 2}
            files.crash(lambda _path, unsynced: rng.randint(0, unsynced))
            for log, start in zip(opened(files), starts, strict=True):
                assert log.log_start_offset == start or not loses_power
                assert log.log_end_offset == 3
                assert log.find_duplicate(read_header(BEFORE)) is not None
        raise AssertionError("it has no end")


def has_died(files: MemoryFileSystem, logs: list[PartitionLog], steps: int) -> bool:
    """Kill the system after `steps` steps of a deletion; whether it died."""
    left = [steps]

    def hook(operation: str, path: str, size: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Interrupted

    files.hook = hook
    try:
        assert delete_records_many(dict.fromkeys(logs, 2), 0) == {}
    except Interrupted:
        return True
    finally:
        files.hook = None
    return False
