"""Data directories that a broker accepts, and its errors for the others."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from chaffinch.records.checksum import crc32c
from chaffinch.storage.data_directory import META_NAME, DataDirectory, DataDirectoryError
from chaffinch.storage.file_system import AlreadyLocked, DiskFileSystem, Interrupted, MemoryFileSystem, MissingLog, StorageError


def opened(root: Path, cluster_id: str = "other") -> DataDirectory:
    return DataDirectory.open(DiskFileSystem(root), cluster_id=cluster_id)


def snapshot_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_new_directory_takes_the_cluster_id_and_keeps_it(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "data"
    first = opened(root, "first")
    assert (first.cluster_id, first.format_version, first.is_new) == ("first", 3, True)
    first.complete()
    assert not first.is_new
    first.complete()
    first.close()
    again = opened(root, "second")
    assert (again.cluster_id, again.format_version, again.is_new) == ("first", 3, False)
    again.close()


def test_a_directory_in_use_names_the_process(tmp_path: Path) -> None:
    held = opened(tmp_path)
    with pytest.raises(AlreadyLocked, match=f"{tmp_path}: it is in use by process {os.getpid()}") as caught:
        opened(tmp_path)
    assert caught.value.holder == str(os.getpid())
    held.close()
    opened(tmp_path).close()


def test_killed_owner_releases_the_directory(tmp_path: Path) -> None:
    program = "import os,signal,sys;from chaffinch.storage.data_directory import DataDirectory;"
    program += "from chaffinch.storage.file_system import DiskFileSystem;"
    program += "d=DataDirectory.open(DiskFileSystem(sys.argv[1]), cluster_id='first');d.complete();os.kill(os.getpid(), signal.SIGKILL)"
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False).returncode == -9
    directory = opened(tmp_path)
    assert directory.cluster_id == "first"
    directory.close()


def foreign(root: Path) -> None:
    (root / "meta.properties").write_text("version=1\ncluster.id=abc\nnode.id=1\n")
    (root / "orders-0").mkdir()


def made(root: Path) -> None:
    directory = opened(root)
    directory.complete()
    directory.close()


def without_meta(root: Path) -> None:
    made(root)
    (root / "journals").mkdir()
    (root / "journals" / "cluster.journal").write_bytes(b"x")
    (root / META_NAME).unlink()


def meta(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        made(root)
        path = root / META_NAME
        path.write_bytes(change(path.read_bytes()))

    return damage


def newer(data: bytes) -> bytes:
    body = b"format.version=4\ncluster.id=abc\nsomething=new\n"
    return body + b"crc32c=%08x\n" % crc32c(body)


REFUSALS = {
    "another program's": (
        foreign,
        f"it is not empty \\(meta.properties, orders-0\\) and has no {META_NAME}: not a Chaffinch data directory",
    ),
    "ours, without its first file": (without_meta, f"{META_NAME}: the file is missing, though the directory was in use"),
    "a byte changed": (meta(lambda data: data.replace(b"other", b"0ther")), f"{META_NAME}: the file is damaged"),
    "emptied": (meta(lambda data: b""), "the file is damaged"),
    "cut short": (meta(lambda data: data[:-3]), "the file is damaged"),
    "zeros": (meta(lambda data: bytes(len(data))), "the file is damaged"),
    "a newer format": (meta(newer), "format version 4, this Chaffinch supports versions up to 3"),
}


def older(data: bytes) -> bytes:
    body = b"format.version=1\ncluster.id=abc\n"
    return body + b"crc32c=%08x\n" % crc32c(body)


def test_directory_of_the_previous_version_is_upgraded(tmp_path: Path) -> None:
    meta(older)(tmp_path)
    directory = opened(tmp_path)
    assert (directory.cluster_id, directory.format_version, directory.is_new) == ("abc", 2, False)
    directory.close()
    assert (tmp_path / META_NAME).read_bytes().startswith(b"format.version=2\ncluster.id=abc\n")
    assert not (tmp_path / f"{META_NAME}.new").exists()


@pytest.mark.parametrize("operations", range(12))
@pytest.mark.parametrize("loses_power", [False, True])
def test_crash_during_the_upgrade_is_recovered(operations: int, loses_power: bool) -> None:
    files = MemoryFileSystem()
    file = files.open(META_NAME)
    file.append((older(b""),))
    files.sync_all()
    left = operations

    def hook(operation: str, path: str, size: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Interrupted(size // 2)

    files.hook = hook
    with suppress(Interrupted):
        DataDirectory.open(files, cluster_id="other")
    files.hook = None
    if loses_power:
        files.crash(lambda _path, unsynced: unsynced // 2)
    else:
        files.kill()
    directory = DataDirectory.open(files, cluster_id="other")
    assert (directory.cluster_id, directory.format_version, directory.is_new) == ("abc", 2, False)


@pytest.mark.parametrize(("make", "match"), REFUSALS.values(), ids=REFUSALS.keys())
def test_refused_directory_is_unchanged(tmp_path: Path, make: Callable[[Path], None], match: str) -> None:
    make(tmp_path)
    before = snapshot_of(tmp_path)
    with pytest.raises(DataDirectoryError, match=match):
        opened(tmp_path)
    after = snapshot_of(tmp_path)
    after.pop(".lock", None)
    before.pop(".lock", None)
    assert after == before


def test_a_refused_directory_is_not_left_locked(tmp_path: Path) -> None:
    meta(lambda data: b"")(tmp_path)
    for _ in range(2):
        with pytest.raises(DataDirectoryError, match="damaged"):
            opened(tmp_path)


def test_emptied_directory_is_not_taken_for_a_new_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The lock file stays when all other files are removed. It tells apart such a directory and one whose first start was cut short."""
    opened(tmp_path, "begun").close()
    (tmp_path / f"{META_NAME}.new").unlink()
    made(tmp_path)
    for _ in range(2):
        opened(tmp_path, "third").close()
    (tmp_path / META_NAME).unlink()
    for _ in range(2):
        with pytest.raises(MissingLog, match=f"cannot use {tmp_path}: it was emptied: according to its .lock .* data of cluster other"):
            opened(tmp_path, "second")
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    directory = DataDirectory.open(DiskFileSystem(tmp_path), cluster_id="second", accepts_loss=True)
    assert (directory.cluster_id, directory.is_new, caplog.text) == ("second", True, "")
    directory.complete()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"{tmp_path} was emptied: all data of cluster other are lost, and cluster second is created" in caplog.text
    directory.close()
    caplog.clear()
    again = opened(tmp_path, "third")
    assert (again.cluster_id, caplog.text) == ("second", "")
    again.close()


def test_lock_of_an_older_version_gets_the_cluster_id(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / ".lock").write_text("123\n")
    opened(tmp_path).close()
    (tmp_path / META_NAME).unlink()
    with pytest.raises(MissingLog, match="emptied"):
        opened(tmp_path)


@pytest.mark.parametrize("text", ["", "123", "123\n0 0\n", "123\n0 0\noth", "\0" * 13])
def test_lock_with_truncated_note_has_no_cluster_id(tmp_path: Path, text: str) -> None:
    (tmp_path / ".lock").write_text(text)
    directory = opened(tmp_path)
    assert (directory.is_new, directory.lock.cluster_id) == (True, "")
    directory.close()


def test_lock_file_on_a_full_disk_does_not_stop_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    directory = opened(tmp_path)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        directory.complete()
    assert ".lock that its directory is in use: No space left on device" in caplog.text
    directory.close()
    opened(tmp_path).close()


def test_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        opened(tmp_path / "file")


def test_earlier_sync_failure_is_reported() -> None:
    files = MemoryFileSystem()

    def hook(operation: str, path: str, size: int) -> None:
        if operation == "lock":
            raise StorageError("/log", "sync", "the disk refuses what an earlier process has written")

    files.hook = hook
    with pytest.raises(StorageError, match="cannot sync /log: the disk refuses"):
        DataDirectory.open(files, cluster_id="x")


def test_unwritable_directory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    files = MemoryFileSystem()

    def hook(operation: str, path: str, size: int) -> None:
        if operation == "lock":
            raise StorageError(path, operation, "Permission denied")

    files.hook = hook
    with pytest.raises(DataDirectoryError, match="cannot use /: it is not writable: Permission denied"):
        DataDirectory.open(files, cluster_id="x")


def test_lost_and_found_does_not_make_a_directory_foreign(tmp_path: Path) -> None:
    """The top of a freshly made file system."""
    (tmp_path / "lost+found").mkdir()
    opened(tmp_path).close()


def test_incomplete_directory_is_initialized_again(tmp_path: Path) -> None:
    """The process ended while it made its first files: they are no reason to call the directory foreign, nor must any be there."""
    first = opened(tmp_path, "first")
    (tmp_path / "topics.journal").write_bytes(b"")
    first.close()
    second = opened(tmp_path, "second")
    assert (second.cluster_id, second.is_new) == ("second", True)
    second.close()


@pytest.mark.parametrize("power_is_lost", [False, True])
def test_crash_at_any_operation_of_creation_leaves_all_or_nothing(power_is_lost: bool) -> None:
    """Either nothing was made, and the next process makes it, or all was."""
    for stop_at in range(50):
        files = MemoryFileSystem()
        seen: list[str] = []

        def hook(operation: str, path: str, size: int, seen: list[str] = seen, stop_at: int = stop_at) -> None:
            seen.append(operation)
            if len(seen) > stop_at:
                raise Interrupted(size // 2)

        files.hook = hook
        try:
            DataDirectory.open(files, cluster_id="first").complete()
            is_done = True
        except Interrupted:
            is_done = False
        files.hook = None
        if power_is_lost:
            files.crash(lambda path, unsynced: unsynced // 2)
        else:
            files.kill()
        again = DataDirectory.open(files, cluster_id="second")
        assert again.cluster_id in ("first", "second")
        assert again.is_new is (again.cluster_id == "second")
        if is_done:
            assert again.cluster_id == "first"
            assert stop_at >= 6
            return
    raise AssertionError("it was never made")
