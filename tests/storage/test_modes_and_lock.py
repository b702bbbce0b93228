"""File permissions of a data directory, and its lock against a second process."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from chaffinch.storage.data_directory import LOCK_NAME
from chaffinch.storage.disk_lock import DiskLock
from chaffinch.storage.file_system import AlreadyLocked, DiskFileSystem
from chaffinch.storage.syncfs import Syncfs
from tests.broker.batches import batch_of
from tests.broker.core_client import Cluster


@pytest.fixture(autouse=True)
def _usual_umask() -> object:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_data_directory_is_private_to_its_user(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "data"
    cluster = Cluster({"flush.policy": "always"}, file_system=DiskFileSystem(root))
    cluster.topic("orders", 2, cleanup_policy="compact", segment_ms="1")
    for number in range(4):
        cluster.client().produce("orders", batch_of(b"a", timestamps=[cluster.steady_ms - 100 + 10 * number]))
    cluster.advance(60_000)
    cluster.restart(kill=False)
    cluster.core.close()
    found = [root, *root.rglob("*")]
    assert {mode(path) for path in found if path.is_dir()} == {0o700}
    assert {mode(path) for path in found if path.is_file()} == {0o600}
    assert {".log", ".snapshot", ".journal", ".closed", ".state", ".meta", ""} <= {path.suffix for path in found}
    assert mode(root.parent) == 0o755, "the parents are not ours"


def test_existing_directory_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    Cluster(file_system=DiskFileSystem(tmp_path)).core.close()
    assert mode(tmp_path) == 0o750


class TestLock:
    def test_lock_holds_after_its_file_is_deleted(self, tmp_path: Path) -> None:
        held = DiskFileSystem(tmp_path).lock(LOCK_NAME)
        (tmp_path / LOCK_NAME).unlink()
        with pytest.raises(AlreadyLocked):
            DiskFileSystem(tmp_path).lock(LOCK_NAME)
        assert not (tmp_path / LOCK_NAME).exists()
        held.release()
        DiskFileSystem(tmp_path).lock(LOCK_NAME).release()

    def test_lock_holder_is_named_while_the_file_exists(self, tmp_path: Path) -> None:
        held = DiskFileSystem(tmp_path).lock(LOCK_NAME)
        with pytest.raises(AlreadyLocked) as caught:
            DiskFileSystem(tmp_path).lock(LOCK_NAME)
        assert caught.value.holder == str(os.getpid())
        held.release()

    def test_lock_of_an_earlier_version_on_the_file_alone_is_respected(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import fcntl

        file = os.open(tmp_path / LOCK_NAME, os.O_RDWR | os.O_CREAT)
        os.write(file, b"123\n")
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(AlreadyLocked) as caught:
            DiskFileSystem(tmp_path).lock(LOCK_NAME)
        assert caught.value.holder == "123"
        os.close(file)
        DiskFileSystem(tmp_path).lock(LOCK_NAME).release()

    def test_file_system_without_directory_locks_locks_the_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        import fcntl

        flock = fcntl.flock

        def refused(descriptor: int, operation: int) -> None:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise OSError(9, "Bad file descriptor")
            flock(descriptor, operation)

        monkeypatch.setattr(fcntl, "flock", refused)
        lock = DiskLock(f"{tmp_path}/{LOCK_NAME}", Syncfs(str(tmp_path)))
        assert "cannot be locked (Bad file descriptor): do not delete" in caplog.text
        with pytest.raises(AlreadyLocked):
            DiskFileSystem(tmp_path).lock(LOCK_NAME)
        lock.release()

    def test_refused_lock_leaves_no_descriptor_open(self, tmp_path: Path) -> None:
        held = DiskFileSystem(tmp_path).lock(LOCK_NAME)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            with pytest.raises(AlreadyLocked):
                DiskFileSystem(tmp_path).lock(LOCK_NAME)
        assert len(os.listdir("/proc/self/fd")) == before
        held.release()
