"""Files that no process had open for a while. If the disk refused their bytes then, the system may forget the error: a sync that succeeds
afterwards proves nothing. Lost bytes cannot be read any more either. For errors reported to an earlier process see `test_disk_lock.py`."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from chaffinch.storage.compaction import Compaction
from chaffinch.storage.file_system import DiskFileSystem, FileSystem, MemoryFileSystem, StorageError
from chaffinch.storage.partition_log import PartitionLog
from tests.storage.batches import batch
from tests.storage.compacted_log import opened, records, rows
from tests.storage.orders_log import DIRECTORY
from tests.storage.test_persisted_producers import TWO, abort, append, has_producer, lose_power, with_producer


@pytest.fixture
def files() -> MemoryFileSystem:
    return MemoryFileSystem()


def lose(files: MemoryFileSystem, suffix: str) -> str:
    """What the newest file of this kind holds; returns its path."""
    path = f"{DIRECTORY}/{[name for name in files.list(DIRECTORY) if name.endswith(suffix)][-1]}"
    file = files.open(path)
    size = file.size
    file.truncate(0)
    file.append((bytes(size),))
    return path


class Refusing:
    """Refuses the sync of one file, until a test ends that."""

    def __init__(self, files: MemoryFileSystem, path: str) -> None:
        self.path = path
        files.hook = self

    def __call__(self, operation: str, path: str, size: int) -> None:
        if operation == "sync" and path == self.path:
            raise StorageError(path, operation, "Input/output error")


def with_aborted(files: MemoryFileSystem) -> PartitionLog:
    """A list of aborted transactions that is not synced."""
    log = with_producer(files)
    append(log)
    abort(log)
    log._checkpoint()
    return log


def abort_at(log: PartitionLog, sequence: int) -> None:
    log.append(batch(identity=TWO, base_sequence=sequence, is_transactional=True, timestamps=[0]), steady_ms=0)
    log.append_marker(False, TWO, 0, 0)


class TestAbortedTransactions:
    def kept(self, files: MemoryFileSystem, log: PartitionLog, caplog: pytest.LogCaptureFixture) -> None:
        """Through a loss of power, with the snapshot that speaks of them."""
        log.delete_records_before(2, 0)
        assert log.delete_old_segments(0) == 1
        log = lose_power(files)
        assert "cannot be used" not in caplog.text
        assert log.aborted_transactions(2, 100) == [(2, 3)]
        assert has_producer(log)

    def test_lost_aborted_index_is_written_again(self, files: MemoryFileSystem, caplog: pytest.LogCaptureFixture) -> None:
        log = with_aborted(files)
        lose(files, ".txnindex")
        self.kept(files, log, caplog)

    def test_aborted_index_that_cannot_be_synced_is_written_again(self, files: MemoryFileSystem, caplog: pytest.LogCaptureFixture) -> None:
        log = with_aborted(files)
        (name,) = [name for name in files.list(DIRECTORY) if name.endswith(".txnindex")]
        Refusing(files, f"{DIRECTORY}/{name}")
        self.kept(files, log, caplog)

    def test_retention_continues_after_a_failed_rewrite_of_the_aborted_index(self, files: MemoryFileSystem) -> None:
        """Their file takes nothing any more; there is more to write down by the time there is room."""
        log = with_producer(files)
        abort_at(log, 0)
        log._checkpoint()
        (name,) = [name for name in files.list(DIRECTORY) if name.endswith(".txnindex")]

        def hook(operation: str, path: str, size: int) -> None:
            if (operation, path) in (("sync", f"{DIRECTORY}/{name}"), ("append", f"{DIRECTORY}/{name}.new")):
                raise StorageError(path, operation, "No space left on device")

        files.hook = hook
        log.config = opened(MemoryFileSystem(), retention_ms=0).config
        with pytest.raises(StorageError, match="No space left"):
            log.delete_old_segments(10**9)
        files.hook = None
        abort_at(log, 1)
        assert log.delete_old_segments(10**9) == 2
        assert has_producer(lose_power(files))


class TestSnapshots:
    @pytest.mark.parametrize("how", ["lost", "refused"])
    def test_snapshot_not_known_to_be_durable_deletes_no_segments(self, files: MemoryFileSystem, how: str) -> None:
        log = with_producer(files)
        append(log)
        if how == "lost":
            lose(files, ".snapshot")
        else:
            Refusing(files, f"{DIRECTORY}/{[name for name in files.list(DIRECTORY) if name.endswith('.snapshot')][-1]}")
        with pytest.raises(StorageError):
            log.delete_records_before(2, 0)
        assert log.log_start_offset == 0
        files.hook = None
        log.config = opened(MemoryFileSystem(), retention_ms=0).config
        log.high_watermark = 2
        assert log.delete_old_segments(10**9) == 1
        assert has_producer(lose_power(files))

    @pytest.mark.parametrize("can_go", [True, False])
    def test_snapshot_with_failed_sync_deletes_no_segments_after_a_kill(self, files: MemoryFileSystem, can_go: bool) -> None:
        log = with_producer(files)
        append(log)
        snapshot = f"{DIRECTORY}/{[name for name in files.list(DIRECTORY) if name.endswith('.snapshot')][-1]}"

        def hook(operation: str, path: str, size: int) -> None:
            if path == snapshot and (operation == "sync" or (operation == "remove" and not can_go)):
                raise StorageError(path, operation, "Input/output error")

        files.hook = hook
        for _ in range(1 if can_go else 3):
            with pytest.raises(StorageError):
                log.delete_records_before(2, 0)
        assert log.log_start_offset == 0
        files.hook = None
        if can_go:
            assert log.delete_records_before(2, 0) == 2
        files.kill()
        assert has_producer(opened(files))
        assert has_producer(lose_power(files))


def test_compacted_segment_with_lost_index_is_not_swapped_in(files: MemoryFileSystem) -> None:
    log = opened(files, index_interval_bytes=1)
    for number in range(6):
        log.append(records((f"k{number % 3}", "v")), steady_ms=0)
    log.roll(0)
    before = rows(log)

    def hook(operation: str, path: str, size: int) -> None:
        if operation == "sync" and path.endswith(".index.cleaned"):
            files.hook = None
            lose(files, ".index.cleaned")

    files.hook = hook
    job = Compaction(log, 6, 0, map_bytes_max=1 << 30)
    with pytest.raises(StorageError, match="does not contain what was saved"):
        finish(job)
    assert rows(log) == before
    finish(Compaction(log, 6, 0, map_bytes_max=1 << 30))
    assert len(rows(log)) == 3


def finish(job: Compaction) -> None:
    while not job.step():
        pass


@pytest.mark.parametrize("kind", ["disk", "memory"])
class TestAfterAFailedSync:
    """A file is refused however often it is opened again; another of its name is not."""

    @pytest.fixture
    def refused(self, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> FileSystem:
        """Its file `a` is."""
        files: DiskFileSystem | MemoryFileSystem
        files = DiskFileSystem(tmp_path) if kind == "disk" else MemoryFileSystem()
        file = files.open("a")
        file.append((b"abc",))
        with monkeypatch.context() as patched:
            if isinstance(files, MemoryFileSystem):
                Refusing(files, "a")
            else:
                patched.setattr(os, "fdatasync", fail)
            with pytest.raises(StorageError, match="Input/output error"):
                file.sync()
        if isinstance(files, MemoryFileSystem):
            files.hook = None
        file.close()
        return files

    def refuses(self, files: FileSystem, path: str) -> None:
        file = files.open(path)
        for use in (file.sync, lambda: file.append((b"d",))):
            with pytest.raises(StorageError, match="an earlier sync failed"):
                use()
        assert file.read(0, 9) == b"abc"
        file.close()

    def takes(self, files: FileSystem, path: str) -> None:
        file = files.open(path)
        file.append((b"d",))
        file.sync()
        file.close()

    def test_file_with_failed_sync_is_refused(self, refused: FileSystem) -> None:
        self.refuses(refused, "a")
        self.takes(refused, "b")

    def test_renamed_file_with_failed_sync_is_refused(self, refused: FileSystem) -> None:
        refused.rename("a", "b")
        self.refuses(refused, "b")
        self.takes(refused, "a")

    @pytest.mark.parametrize("how", ["remove", "rename"])
    def test_another_file_of_the_same_name_is_accepted(self, refused: FileSystem, how: str) -> None:
        if how == "remove":
            refused.remove("a")
        else:
            refused.open("b").close()
            refused.rename("b", "a")
        self.takes(refused, "a")


def fail(_descriptor: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))
