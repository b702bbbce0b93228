"""Bytes read at start, and the snapshots that limit them."""

from unittest import mock

import pytest

from chaffinch.identifiers import TopicPartition
from chaffinch.storage import snapshot
from chaffinch.storage.file_system import MemoryFileSystem
from chaffinch.storage.many_logs import close_many
from chaffinch.storage.partition_log import PartitionLog
from tests.storage.batches import batch
from tests.storage.orders_log import DIRECTORY, SIZE, filled, opened


class TestBytesRead:
    def test_a_closed_log_is_verified_from_its_end_only(self) -> None:
        files = MemoryFileSystem()
        filled(files, 100, index_interval_bytes=1).close()
        files.kill()
        for verified_bytes in (0, 10 * SIZE, 1000 * SIZE):
            log = opened(files, verify_bytes_max=verified_bytes)
            assert log.recovery_bytes_read == min(verified_bytes, 100 * SIZE)

    def test_the_snapshot_of_a_closed_log_is_read_once(self) -> None:
        files = MemoryFileSystem()
        filled(files).close()
        with mock.patch.object(snapshot, "read", wraps=snapshot.read) as read:
            opened(files)
        assert read.call_count == 1

    def test_segments_are_verified_from_the_last_one_backwards(self) -> None:
        files = MemoryFileSystem()
        filled(files, 99, segment_bytes=10 * SIZE, index_interval_bytes=1).close()
        for verified_bytes in (0, 9 * SIZE, 15 * SIZE, 99 * SIZE):
            files.kill()
            assert opened(files, verify_bytes_max=verified_bytes).recovery_bytes_read == verified_bytes

    def test_start_after_a_kill_reads_from_the_last_checkpoint(self) -> None:
        files = MemoryFileSystem()
        filled(files, 99, checkpoint_bytes=10 * SIZE)
        files.kill()
        log = opened(files, verify_bytes_max=0)
        assert (log.recovery_bytes_read, log.log_end_offset) == (9 * SIZE, 99)

    def test_unsynced_checkpoints_are_unused_after_lost_power(self) -> None:
        files = MemoryFileSystem()
        filled(files, 99, checkpoint_bytes=10 * SIZE).sync()
        files.crash(lambda path, unsynced: unsynced)
        log = opened(files, verify_bytes_max=0)
        assert (log.recovery_bytes_read, log.log_end_offset) == (99 * SIZE, 99)

    def test_sealed_segments_are_durable_and_not_read_after_lost_power(self) -> None:
        files = MemoryFileSystem()
        filled(files, 99, segment_bytes=10 * SIZE)
        files.crash(lambda path, unsynced: unsynced)
        log = opened(files, verify_bytes_max=0)
        assert (log.recovery_bytes_read, log.log_end_offset) == (9 * SIZE, 99)

    def test_sealed_segments_are_not_read_after_lost_power_with_later_checkpoints(self) -> None:
        files = MemoryFileSystem()
        filled(files, 99, segment_bytes=60 * SIZE, checkpoint_bytes=10 * SIZE)
        files.crash(lambda path, unsynced: unsynced)
        log = opened(files, segment_bytes=60 * SIZE, checkpoint_bytes=10 * SIZE, verify_bytes_max=0)
        assert (log.recovery_bytes_read, log.log_end_offset) == (39 * SIZE, 99)
        for _ in range(20):
            log.append(batch(), steady_ms=0)
        files.crash(lambda path, unsynced: unsynced)
        log = opened(files, verify_bytes_max=0)
        assert (log.recovery_bytes_read, log.log_end_offset) == (59 * SIZE, 119)

    def test_last_two_snapshots_and_the_newest_durable_one_are_kept(self) -> None:
        files = MemoryFileSystem()
        log = filled(files, 199, segment_bytes=60 * SIZE, checkpoint_bytes=10 * SIZE)
        names = [name for name in files.list(DIRECTORY) if name.endswith(".snapshot")]
        assert names == [f"{offset:020d}.snapshot" for offset in (180, 190)]
        for _ in range(30):
            log.append(batch(), steady_ms=0)
        names = [name for name in files.list(DIRECTORY) if name.endswith(".snapshot")]
        assert names == [f"{offset:020d}.snapshot" for offset in (180, 210, 220)]

    def test_last_two_snapshots_are_kept(self) -> None:
        files = MemoryFileSystem()
        log = filled(files, 50, checkpoint_bytes=10 * SIZE)
        assert [name for name in files.list(DIRECTORY) if name.endswith(".snapshot")] == [f"{40:020d}.snapshot", f"{50:020d}.snapshot"]
        log.close()

    def test_closing_an_unchanged_log_touches_nothing(self) -> None:
        files = MemoryFileSystem()
        filled(files).close()
        files.kill()
        log = opened(files)
        seen = []
        files.hook = lambda operation, path, size: seen.append((operation, path))
        log.close()
        assert seen == []

    @pytest.mark.parametrize("count", [3, 30])
    def test_many_logs_are_closed_with_one_sync(self, count: int) -> None:
        files = MemoryFileSystem()
        logs = [PartitionLog.open(files, f"orders-{number}", TopicPartition("orders", number)) for number in range(count)]
        for log in logs:
            log.append(batch(), steady_ms=0)
        syncs = []
        files.hook = lambda operation, path, size: syncs.append(operation) if "sync" in operation else None
        close_many(logs)
        files.hook = None
        assert syncs == (["sync all"] if count == 30 else ["sync", "sync directory", "sync directory"] * 3)
        files.crash(lambda path, unsynced: 0)
        again = [PartitionLog.open(files, f"orders-{number}", TopicPartition("orders", number)) for number in range(count)]
        assert [log.log_end_offset for log in again] == [1] * count
