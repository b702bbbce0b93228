"""One sync for many files fails whenever the sync of one of them would fail."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaffinch.identifiers import TopicPartition
from chaffinch.storage import syncfs, system_calls
from chaffinch.storage.file_system import DiskFileSystem, StorageError
from chaffinch.storage.journal import Journal
from chaffinch.storage.many_logs import sync_many
from chaffinch.storage.partition_log import PartitionLog
from tests.storage.batches import batch
from tests.storage.mounts import mounted, on_too_small_device

FUSE, OVERLAY, NFS, UNKNOWN = 0x65735546, 0x794C7630, 0x6969, 0
COUNT = 10


class System:
    """As Linux reports lost bytes: once to each descriptor, and not to one that was opened after another had the report."""

    def __init__(self) -> None:
        self.failures = 0
        self.was_reported = True
        self.reported_failures: dict[int, int] = {}
        self.calls = 0
        self._open = os.open

    def fail(self) -> None:
        self.failures += 1
        self.was_reported = False

    def open(self, *arguments: object) -> int:
        descriptor = self._open(*arguments)  # type: ignore[arg-type]
        self.reported_failures[descriptor] = self.failures if self.was_reported else self.failures - 1
        return descriptor

    def syncfs(self, descriptor: int) -> int:
        self.calls += 1
        if self.reported_failures[descriptor] == self.failures:
            return 0
        self.reported_failures[descriptor] = self.failures
        self.was_reported = True
        ctypes.set_errno(errno.EIO)
        return -1


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    made = System()
    monkeypatch.setattr(os, "open", made.open)
    monkeypatch.setattr(syncfs, "_syncfs", made.syncfs)
    monkeypatch.setattr(system_calls, "file_system_type", lambda descriptor: 0xEF53)
    return made


def another_on(root: Path) -> DiskFileSystem:
    """That of a second broker on the same disk."""
    other = DiskFileSystem(root / "other")
    other.make_directory("")
    return other


class TestFailure:
    def test_failure_is_reported_to_every_process(self, tmp_path: Path, system: System) -> None:
        files, other = DiskFileSystem(tmp_path), another_on(tmp_path)
        lock, others_lock = files.lock("lock"), other.lock("lock")
        files.sync_all()
        system.fail()
        for disk in (other, files):
            with pytest.raises(StorageError, match=f"cannot sync {disk.root}: Input/output error"):
                disk.sync_all()
        lock.release()
        others_lock.release()

    def test_failure_before_the_start_is_ignored(self, tmp_path: Path, system: System) -> None:
        system.fail()
        system.was_reported = True
        files = DiskFileSystem(tmp_path)
        lock = files.lock("lock")
        files.sync_all()
        lock.release()

    def test_files_are_synced_one_by_one_after_a_failure(self, tmp_path: Path, system: System, caplog: pytest.LogCaptureFixture) -> None:
        files = DiskFileSystem(tmp_path)
        lock = files.lock("lock")
        logs = filled(files)
        system.fail()
        for _ in range(2):
            with caplog.at_level(logging.WARNING):
                sync_many(logs)
            assert all(log.is_synced for log in logs)
            for log in logs:
                log.append(batch(), steady_ms=0)
        assert system.calls == 1
        assert caplog.messages == [f"files in {tmp_path} are synced one by one from now on: Input/output error"]
        lock.release()

    @pytest.mark.parametrize("synced", ["nothing", "file", "all"])
    def test_file_reopened_after_a_failure_cannot_be_synced(self, tmp_path: Path, system: System, synced: str) -> None:
        """Linux forgets the error of a file's bytes, once no process has the file open."""
        files = DiskFileSystem(tmp_path, descriptors_max=1)
        lock, file, other = files.lock("lock"), files.open("a"), files.open("b")
        file.append((b"1",))
        {"nothing": lambda: None, "file": file.sync, "all": files.sync_all}[synced]()
        if synced == "all":
            other.append((b"0",))
            files.sync_all()
        for _ in range(2):  # By then it has lost its descriptor.
            other.append((b"1",))
        system.fail()
        with pytest.raises(StorageError):
            files.sync_all()
        other.sync()
        for _ in range(2):
            if synced == "nothing":
                with pytest.raises(StorageError, match="an earlier sync failed, and this file was not open all the time"):
                    file.sync()
            else:
                file.sync()
        lock.release()

    @pytest.mark.parametrize("truncated", [False, True])
    def test_reopened_file_is_checked_by_a_sync_of_all(self, tmp_path: Path, system: System, truncated: bool) -> None:
        """Its own sync would succeed: that of the whole disk fails. A file of the size that was synced need not be what was."""
        files = DiskFileSystem(tmp_path, descriptors_max=1)
        lock, file = files.lock("lock"), files.open("a")
        file.append((b"1",))
        if truncated:
            file.sync()
            file.truncate(0)
            file.append((b"2",))
        others_take_its_descriptor(files)
        system.fail()
        with pytest.raises(StorageError, match="an earlier sync failed, and this file was not open all the time"):
            file.sync()
        lock.release()

    @pytest.mark.parametrize("kind", ["log", "journal"])
    @pytest.mark.parametrize("is_open", [False, True])
    def test_file_of_a_killed_process_is_checked_by_a_sync_of_all(self, tmp_path: Path, system: System, kind: str, is_open: bool) -> None:
        """The killed process may have got the error already, and while no process had the file open none got it."""
        killed = DiskFileSystem(tmp_path)
        log, journal = filled(killed)[0], Journal.open(killed, "meta", "topics")
        journal.put({b"key": b"value"})
        killed.kill()
        files = DiskFileSystem(tmp_path, descriptors_max=1)
        lock = files.lock("lock")
        found = PartitionLog.open(files, "orders-0", log.topic_partition) if kind == "log" else Journal.open(files, "meta", "topics")
        if not is_open:
            others_take_its_descriptor(files)
        system.fail()
        with pytest.raises(StorageError, match="an earlier sync failed, and this file was not open all the time"):
            found.sync()
        assert not found.is_synced
        lock.release()

    def test_cleanly_closed_files_need_no_sync_of_all(self, tmp_path: Path, system: System) -> None:
        files = DiskFileSystem(tmp_path)
        lock, logs, journal = files.lock("lock"), filled(files), Journal.open(files, "meta", "topics")
        journal.put({b"key": b"value"})
        for log in logs:
            log.close()
        journal.close()
        calls = system.calls
        for log in logs:
            again = PartitionLog.open(files, log.directory, log.topic_partition)
            again.append(batch(), steady_ms=0)
            again.sync()
        journal = Journal.open(files, "meta", "topics")
        journal.sync()
        assert system.calls == calls
        lock.release()

    def test_reopened_files_share_one_sync_of_all(self, tmp_path: Path, system: System) -> None:
        files = DiskFileSystem(tmp_path, descriptors_max=2)
        lock, logs = files.lock("lock"), filled(files)
        others_take_its_descriptor(files)
        for log in logs:
            log.sync()
        assert system.calls == 1
        lock.release()

    def test_logs_synced_together_stay_synced_after_reopening(self, tmp_path: Path, system: System) -> None:
        files = DiskFileSystem(tmp_path, descriptors_max=2)
        lock, logs = files.lock("lock"), filled(files)
        sync_many(logs)
        others_take_its_descriptor(files)
        system.fail()
        with pytest.raises(StorageError):
            files.sync_all()
        for log in logs:
            log.append(batch(), steady_ms=0)
            log.sync()
        lock.release()

    @pytest.mark.parametrize("failing", ["fdatasync", "fsync"])
    def test_failure_of_one_file_or_directory_fails_sync_all(
        self, tmp_path: Path, system: System, monkeypatch: pytest.MonkeyPatch, failing: str
    ) -> None:
        """The system may have reported lost bytes already: only single files can be known to be on disk."""
        files = DiskFileSystem(tmp_path)
        lock, file = files.lock("lock"), files.open("a")
        files.sync_all()
        with monkeypatch.context() as patched:
            patched.setattr(os, failing, fail)
            with pytest.raises(StorageError):
                file.sync() if failing == "fdatasync" else files.sync_directory("")
        with pytest.raises(StorageError, match="an earlier sync failed"):
            files.sync_all()
        files.open("b").sync()
        lock.release()

    def test_failed_fsync_of_the_journal_fails_sync_all(self, tmp_path: Path, system: System, monkeypatch: pytest.MonkeyPatch) -> None:
        files = DiskFileSystem(tmp_path)
        lock = files.lock("lock")
        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(StorageError, match="Input/output error"):
            files.sync_all()
        lock.release()


class TestUnreliableSyncfs:
    @pytest.mark.parametrize("kind", [FUSE, OVERLAY, NFS, UNKNOWN])
    def test_unreliable_file_system_does_not_use_syncfs(
        self, tmp_path: Path, system: System, monkeypatch: pytest.MonkeyPatch, kind: int
    ) -> None:
        monkeypatch.setattr(system_calls, "file_system_type", lambda descriptor: kind)
        files = DiskFileSystem(tmp_path)
        lock = files.lock("lock")
        refused_but_synced(files)
        assert system.calls == 0
        lock.release()

    def test_system_without_syncfs_syncs_each_file(self, tmp_path: Path, system: System, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(syncfs, "_syncfs", None)
        files = DiskFileSystem(tmp_path)
        lock = files.lock("lock")
        refused_but_synced(files)
        lock.release()

    def test_file_system_without_lock_does_not_use_syncfs(self, tmp_path: Path, system: System) -> None:
        files = DiskFileSystem(tmp_path)
        refused_but_synced(files)
        files.lock("lock").release()
        refused_but_synced(files)
        assert system.calls == 0

    @pytest.mark.parametrize(
        ("release", "is_reported"), [("5.7.19-generic", False), ("5.8.0", True), ("6.18.44", True), ("4.18.0-553", False)]
    )
    def test_old_kernels_do_not_report_lost_bytes(self, release: str, is_reported: bool) -> None:
        assert syncfs.reports_lost_bytes(release) is is_reported


class TestRealDisks:
    """What Linux itself does; skipped where file systems may not be mounted."""

    def test_lost_bytes_of_a_full_device_are_reported(self, too_small_device: Path) -> None:
        files, other = DiskFileSystem(too_small_device), another_on(too_small_device)
        lock, others_lock = files.lock("lock"), other.lock("lock")
        file = files.open("a")
        for _ in range(60):
            file.append((b"x" * (1 << 20),))
        with pytest.raises(StorageError):
            other.sync_all()
        with pytest.raises(StorageError):
            files.sync_all()
        with pytest.raises(StorageError):
            file.sync()
        file.close()
        lock.release()
        others_lock.release()

    def test_logs_with_lost_bytes_are_not_synced(self, too_small_device: Path) -> None:
        files, other = DiskFileSystem(too_small_device), another_on(too_small_device)
        lock, others_lock = files.lock("lock"), other.lock("lock")
        logs = filled(files)
        for _ in range(6):
            for log in logs:
                log.append(batch(value=b"x" * (1 << 20)), steady_ms=0)
        with pytest.raises(StorageError):
            other.sync_all()
        with pytest.raises(StorageError):
            sync_many(logs)
        assert not all(log.is_synced for log in logs)
        for log in logs:
            log.files.segments[-1].close()
        lock.release()
        others_lock.release()

    def test_overlay_does_not_use_syncfs(self, overlay: Path) -> None:
        files = DiskFileSystem(overlay)
        lock = files.lock("lock")
        refused_but_synced(files)
        lock.release()


@pytest.fixture
def overlay(tmp_path: Path) -> Iterator[Path]:
    lower, upper, work, root = (tmp_path / name for name in ("lower", "upper", "work", "root"))
    for path in (lower, upper, work, root):
        path.mkdir()
    with mounted(root, "-t", "overlay", "-o", f"lowerdir={lower},upperdir={upper},workdir={work}", "overlay"):
        yield root


@pytest.fixture
def too_small_device(tmp_path: Path) -> Iterator[Path]:
    with on_too_small_device(tmp_path) as root:
        yield root


def filled(files: DiskFileSystem) -> list[PartitionLog]:
    logs = [PartitionLog.open(files, f"orders-{number}", TopicPartition("orders", number)) for number in range(COUNT)]
    for log in logs:
        log.append(batch(), steady_ms=0)
    return logs


def others_take_its_descriptor(files: DiskFileSystem) -> None:
    for name in "uvwxyz":
        files.open(name)


def refused_but_synced(files: DiskFileSystem) -> None:
    with pytest.raises(StorageError, match="would not report"):
        files.sync_all()
    logs = filled(files)
    sync_many(logs)
    assert all(log.is_synced for log in logs)
    for log in logs:
        log.close()


def fail(_descriptor: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))
