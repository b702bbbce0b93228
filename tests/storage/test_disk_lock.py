"""Recorded sync failures: a later process must not read bytes from the page cache that are not on disk."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.records.batch import read_header
from chaffinch.storage.file_system import DiskFileSystem, Lock, StorageError
from chaffinch.storage.partition_log import PartitionLog
from tests.storage.batches import batch
from tests.storage.mounts import on_too_small_device


class Disk:
    """Its syncs fail while `is_failing`; it records the files that the system was asked to drop from its cache."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_failing = False
        self.unreported: set[str] = set()
        """Files with an error that the system has not reported; it reports each once."""
        self.forgotten: set[str] = set()
        monkeypatch.setattr(os, "fdatasync", self.sync)
        monkeypatch.setattr(os, "posix_fadvise", self.forget)

    def sync(self, descriptor: int) -> None:
        name = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
        is_reported, self.unreported = name in self.unreported, self.unreported - {name}
        if self.is_failing or is_reported:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def forget(self, descriptor: int, position: int, length: int, advice: int) -> None:
        assert (position, length, advice) == (0, 0, os.POSIX_FADV_DONTNEED)
        self.forgotten.add(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def started(path: Path) -> DiskFileSystem:
    """A process, up to where it has read the lock; it ends there, and leaves its file as it is."""
    files = DiskFileSystem(path)
    files.lock("lock").release()
    return files


def fail(path: Path, disk: Disk, how: str = "file") -> str:
    """A process of which a sync fails; returns its incarnation."""
    files = DiskFileSystem(path)
    lock = files.lock("lock")
    (path / "logs").mkdir(exist_ok=True)
    disk.is_failing = True
    for name in ("a", "logs/b"):
        file = files.open(name)
        file.append((b"abc",))
        sync = file.sync if how == "file" else partial(files.sync_directory, "")
        with pytest.raises(StorageError):
            sync()
    disk.is_failing = False
    lock.release()
    return files.incarnation


@pytest.mark.parametrize("how", ["file", "directory"])
def test_process_after_a_failed_sync_drops_cached_pages_once(tmp_path: Path, disk: Disk, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        if how == "directory":
            patched.setattr(os, "fsync", lambda descriptor: disk.sync(descriptor))
        before = fail(tmp_path, disk, how)
    assert disk.forgotten == set()
    after = started(tmp_path).incarnation
    assert disk.forgotten == {"a", "b"}
    assert after != before, "snapshots of what was not synced are not trusted"
    disk.forgotten.clear()
    assert started(tmp_path).incarnation == after
    assert disk.forgotten == set()
    assert fail(tmp_path, disk) == after
    assert started(tmp_path).incarnation not in (before, after)
    assert disk.forgotten == {"a", "b"}


def test_start_without_failed_sync_drops_no_cached_pages(tmp_path: Path, disk: Disk) -> None:
    files = started(tmp_path)
    files.open("a").append((b"abc",))
    assert started(tmp_path).incarnation == files.incarnation
    assert disk.forgotten == set()
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_start_is_refused_while_the_disk_fails_earlier_writes(tmp_path: Path, disk: Disk) -> None:
    fail(tmp_path, disk)
    disk.is_failing = True
    for _ in range(2):
        with pytest.raises(StorageError, match="the disk refused bytes of an earlier process"):
            DiskFileSystem(tmp_path).lock("lock")
    disk.is_failing = False
    started(tmp_path)
    assert disk.forgotten == {"a", "b"}


def test_start_is_refused_once_for_all_lost_bytes(tmp_path: Path, disk: Disk) -> None:
    fail(tmp_path, disk)
    disk.unreported = {"a", "b"}
    with pytest.raises(StorageError, match="the next start continues with what is on disk"):
        DiskFileSystem(tmp_path).lock("lock")
    started(tmp_path)
    assert disk.forgotten == {"a", "b"}


def test_failure_that_cannot_be_recorded_is_logged(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = DiskFileSystem(tmp_path)
    lock, file = files.lock("lock"), files.open("a")

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    disk.is_failing = True
    monkeypatch.setattr(os, "pwrite", refuse)
    with caplog.at_level(logging.WARNING), pytest.raises(StorageError, match="Input/output error"):
        file.sync()
    said = "will not know that a sync has failed: No space left on device"
    assert caplog.messages == [f"the next start on {tmp_path} {said}"]
    lock.release()


@pytest.fixture
def too_small_device(tmp_path: Path) -> Iterator[Path]:
    """Without a journal, by which all of it would be refused from then on."""
    with on_too_small_device(tmp_path, "-O", "^has_journal", "-E", "lazy_itable_init=0") as root:
        yield root


def test_batch_missing_on_disk_is_not_a_duplicate(too_small_device: Path) -> None:
    """Else a repetition of it would be acknowledged, and gone with the next loss of power. Skipped where nothing may be mounted."""
    sent = batch(value=b"r" * 300_000, identity=ProducerIdentity(7, 0), base_sequence=0)
    files, lock, log = begun(too_small_device)
    log.append(batch(), steady_ms=0)
    log.sync()
    os.sync()
    filler = too_small_device.parent / "device" / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 16)):
            pass
    log.append(bytearray(sent), steady_ms=0)
    with pytest.raises(StorageError):
        log.sync()
    files.kill()
    lock.release()
    filler.unlink()
    files, lock, log = begun(too_small_device)
    assert log.find_duplicate(read_header(sent)) is None
    assert log.log_end_offset == 1
    log.append(bytearray(sent), steady_ms=0)
    log.sync()
    files.kill()
    lock.release()


def begun(path: Path) -> tuple[DiskFileSystem, Lock, PartitionLog]:
    files = DiskFileSystem(path)
    return files, files.lock("lock"), PartitionLog.open(files, "orders-0", TopicPartition("orders", 0))
