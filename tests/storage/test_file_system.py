"""Common tests of both file systems, and errors that only a disk has."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaffinch.storage import background_io, file_system
from chaffinch.storage.file_system import AlreadyLocked, DiskFileSystem, FileSystem, MemoryFileSystem, StorageError


@pytest.fixture(params=["disk", "disk with one descriptor", "memory"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> FileSystem:
    if request.param == "memory":
        return MemoryFileSystem()
    return DiskFileSystem(tmp_path, descriptors_max=1 if "one" in request.param else 256)


class TestBoth:
    def test_append_returns_its_position_and_reads_return_its_bytes(self, files: FileSystem) -> None:
        file = files.open("a")
        assert file.append((b"one",)) == 0
        assert file.append((b"two", bytearray(b"three"), memoryview(b"xfourx")[1:-1])) == 3
        assert file.size == 15
        assert file.read(0, 100) == b"onetwothreefour"
        assert file.read(3, 3) == b"two"
        assert file.read(15, 1) == b""

    def test_append_of_more_buffers_than_one_system_call_takes(self, files: FileSystem) -> None:
        file = files.open("a")
        file.append([b"%04d" % number for number in range(3000)])
        assert file.size == 12_000
        assert file.read(11_996, 4) == b"2999"

    def test_a_truncated_file_grows_from_its_new_end(self, files: FileSystem) -> None:
        file = files.open("a")
        file.append((b"abcdef",))
        file.truncate(2)
        assert (file.size, file.read(0, 10)) == (2, b"ab")
        assert file.append((b"z",)) == 2
        assert file.read(0, 10) == b"abz"

    def test_reopened_file_has_its_bytes(self, files: FileSystem) -> None:
        file = files.open("a")
        file.append((b"abc",))
        file.sync()
        file.close()
        again = files.open("a", create=False)
        assert (again.size, again.read(1, 2)) == (3, b"bc")
        assert again.append((b"d",)) == 3

    def test_closed_file_is_not_reopened_by_name(self, files: FileSystem) -> None:
        """Another one may have it by now."""
        file = files.open("a")
        file.append((b"abc",))
        file.close()
        files.remove("a")
        files.open("a").append((b"other",))
        for use in (lambda: file.read(0, 3), lambda: file.append((b"d",)), lambda: file.truncate(0), file.sync):
            with pytest.raises(StorageError, match="the file was closed"):
                use()
        file.close()
        assert files.open("a").read(0, 9) == b"other"

    def test_two_files_are_written_alternately(self, files: FileSystem) -> None:
        one, two = files.open("one"), files.open("two")
        for number in range(5):
            one.append((b"%d" % number,))
            two.append((b"%d" % (9 - number),))
            one.write_back(0)
        assert (one.read(0, 9), two.read(0, 9)) == (b"01234", b"98765")

    def test_list_is_sorted_and_exists_agrees(self, files: FileSystem) -> None:
        files.make_directory("d/e")
        files.make_directory("d/e")
        files.open("d/b").close()
        files.open("d/a").close()
        assert files.list("d") == ["a", "b", "e"]
        assert files.list("") == ["d"]
        assert [files.exists(path) for path in ("", "d", "d/a", "d/x", "d/a/x")] == [True, True, True, False, False]

    def test_a_rename_replaces(self, files: FileSystem) -> None:
        for name in ("old", "new"):
            file = files.open(name)
            file.append((name.encode(),))
            file.close()
        files.rename("old", "new")
        files.sync_directory("")
        assert files.list("") == ["new"]
        assert files.open("new").read(0, 9) == b"old"

    def test_removed_files_and_directories_are_gone(self, files: FileSystem) -> None:
        files.make_directory("d/e")
        files.open("d/e/f").close()
        files.open("d/g").close()
        files.remove("d/g")
        assert files.list("d") == ["e"]
        files.remove_tree("d")
        files.remove_tree("d")
        assert files.list("") == []

    @pytest.mark.parametrize(
        ("operation", "call"),
        [
            ("open", lambda files: files.open("absent", create=False)),
            ("open", lambda files: files.open("absent/file")),
            ("list", lambda files: files.list("absent")),
            ("remove", lambda files: files.remove("absent")),
            ("rename", lambda files: files.rename("absent", "b")),
            ("sync", lambda files: files.sync_directory("absent")),
        ],
    )
    def test_errors_name_operation_path_and_reason(self, files: FileSystem, operation: str, call: object) -> None:
        with pytest.raises(StorageError) as caught:
            call(files)  # type: ignore[operator]
        assert caught.value.operation == operation
        assert "absent" in caught.value.path
        assert caught.value.error_number == errno.ENOENT
        assert str(caught.value).startswith(f"cannot {operation} ")

    def test_directory_below_a_file_is_refused(self, files: FileSystem) -> None:
        files.open("f").close()
        with pytest.raises(StorageError):
            files.make_directory("f/d")

    @pytest.mark.parametrize("create", [False, True])
    def test_opening_a_directory_as_file_is_refused(self, files: FileSystem, create: bool) -> None:
        """Its size would be taken for that of a truncated file."""
        files.make_directory("d")
        with pytest.raises(StorageError, match=r"^cannot open \S*d: Is a directory$") as caught:
            files.open("d", create=create)
        assert caught.value.error_number == errno.EISDIR

    def test_lock_is_exclusive(self, files: FileSystem) -> None:
        lock = files.lock("lock")
        with pytest.raises(AlreadyLocked):
            files.lock("lock")
        lock.release()
        lock.release()
        files.lock("lock").release()


class TestDisk:
    def test_the_holder_of_a_lock_is_named(self, tmp_path: Path) -> None:
        lock = DiskFileSystem(tmp_path).lock("lock")
        with pytest.raises(AlreadyLocked, match=f"in use by process {os.getpid()}"):
            DiskFileSystem(tmp_path).lock("lock")
        lock.release()

    def test_killed_holder_releases_its_lock(self, tmp_path: Path) -> None:
        program = "import sys,signal,os;from chaffinch.storage.file_system import DiskFileSystem;"
        program += "lock=DiskFileSystem(sys.argv[1]).lock('lock');os.kill(os.getpid(), signal.SIGKILL)"
        assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False).returncode == -9
        assert (tmp_path / "lock").exists()
        DiskFileSystem(tmp_path).lock("lock").release()

    def test_no_more_descriptors_than_allowed_are_open(self, tmp_path: Path) -> None:
        files = DiskFileSystem(tmp_path, descriptors_max=3)
        opened = [files.open(f"{number}") for number in range(20)]
        for turn in range(3):
            for file in opened:
                file.append((b"%d" % turn,))
                assert _open_below(tmp_path) <= 3
        assert all(file.read(0, 9) == b"012" for file in opened)
        for file in opened:
            file.close()
        assert _open_below(tmp_path) == 0

    def test_partial_write_is_continued(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The system may write less than asked; here seven bytes at most."""
        write, writev = os.write, os.writev
        monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, memoryview(data)[:7]))
        monkeypatch.setattr(os, "writev", lambda descriptor, buffers: writev(descriptor, [b"".join(buffers)[:7]]))
        file = DiskFileSystem(tmp_path).open("a")
        file.append((b"0123456789" * 3,))
        file.append((b"abcde", b"fghijklm", b"nopq", b""))
        assert file.read(0, 100) == b"0123456789" * 3 + b"abcdefghijklmnopq"
        assert file.size == 47

    @pytest.mark.parametrize("buffers", [(b"0123456789",), (b"01234", b"56789")])
    def test_failed_append_is_rolled_back(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buffers: tuple[bytes, ...]) -> None:
        """The disk fills up after six bytes; when there is space again the file goes on."""
        file = DiskFileSystem(tmp_path).open("a")
        file.append((b"before",))
        with monkeypatch.context() as patched:
            _fill_disk(patched, after_bytes=6)
            with pytest.raises(StorageError, match="No space left on device") as caught:
                file.append(buffers)
        assert caught.value.error_number == errno.ENOSPC
        assert (tmp_path / "a").read_bytes() == b"before"
        assert file.append((b" after",)) == 6
        assert file.read(0, 99) == b"before after"

    def test_file_that_cannot_be_truncated_refuses_appends(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        files = DiskFileSystem(tmp_path)
        file = files.open("a")
        with monkeypatch.context() as patched:
            _fill_disk(patched, after_bytes=3)
            patched.setattr(os, "ftruncate", _failing(errno.EIO))
            with pytest.raises(StorageError, match="No space"):
                file.append((b"012345",))
        with pytest.raises(StorageError, match="left part of a write after byte 0"):
            file.append((b"more",))
        assert files.open("a").size == 3

    def test_failed_sync_fails_every_later_sync(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The kernel reports lost pages once: a second sync that succeeds proves nothing."""
        file = DiskFileSystem(tmp_path).open("a")
        file.append((b"abc",))
        with monkeypatch.context() as patched:
            patched.setattr(os, "fdatasync", _failing(errno.EIO))
            with pytest.raises(StorageError, match="Input/output error"):
                file.sync()
        for call in (file.sync, lambda: file.append((b"d",))):
            with pytest.raises(StorageError, match="an earlier sync failed"):
                call()

    def test_partial_reads_are_continued(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = DiskFileSystem(tmp_path).open("a")
        file.append((b"0123456789",))
        pread = os.pread
        monkeypatch.setattr(os, "pread", lambda descriptor, length, position: pread(descriptor, min(length, 3), position))
        assert file.read(1, 8) == b"12345678"
        assert file.read(5, 100) == b"56789"

    def test_interrupted_append_is_rolled_back(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Ctrl-C between two parts of a write must not leave half a batch under a process that lives on."""
        file = DiskFileSystem(tmp_path).open("a")
        _fill_disk(monkeypatch, after_bytes=4, error=KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            file.append((b"0123456789",))
        assert (tmp_path / "a").read_bytes() == b""

    def test_incarnation_is_the_boot_id(self, tmp_path: Path) -> None:
        assert DiskFileSystem(tmp_path).incarnation == DiskFileSystem(tmp_path / "other").incarnation

    def test_incarnation_is_empty_without_a_boot_id(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(file_system, "BOOT_ID", str(tmp_path / "absent"))
        assert DiskFileSystem(tmp_path).incarnation == ""

    def test_lookup_failure_is_an_error(self, tmp_path: Path) -> None:
        """A journal behind an unreadable directory must not look like a journal that was never made."""
        with pytest.raises(StorageError, match="File name too long"):
            DiskFileSystem(tmp_path).exists("x" * 5000)


def _failing(number: int) -> object:
    def fail(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def _fill_disk(patched: pytest.MonkeyPatch, *, after_bytes: int, error: BaseException | None = None) -> None:
    """os.write and os.writev take `after_bytes` bytes together, then fail."""
    write = os.write
    left: Iterator[int] = iter([after_bytes])

    def filling(descriptor: int, data: bytes) -> int:
        kept = next(left, None)
        if kept is None:
            raise error or OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, memoryview(data)[:kept])

    patched.setattr(os, "write", filling)
    patched.setattr(os, "writev", lambda descriptor, buffers: filling(descriptor, b"".join(buffers)))


def _open_below(root: Path) -> int:
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"{root}/")
        except OSError:
            continue
    return count


class TestWriteBack:
    """The system is asked to begin in another thread, for a slow disk holds up who asks."""

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int, int]]:
        """(thread, inode, position, length) of each request."""
        found: list[tuple[str, int, int, int]] = []

        def sync_file_range(descriptor: int, position: int, length: int, flags: int) -> int:
            found.append((threading.current_thread().name, os.fstat(descriptor).st_ino, position, length))
            return 0

        monkeypatch.setattr(background_io, "_sync_file_range", sync_file_range)
        return found

    @pytest.mark.parametrize(
        ("length", "thread"),
        [(background_io.LARGE_BYTES, background_io.THREAD_NAME), (background_io.LARGE_BYTES - 1, "MainThread"), (0, "MainThread")],
    )
    def test_large_write_back_runs_on_the_background_thread(
        self, tmp_path: Path, asked: list[tuple[str, int, int, int]], length: int, thread: str
    ) -> None:
        file = DiskFileSystem(tmp_path).open("a")
        file.append((bytes(3), bytes(length)))
        file.write_back(3)
        file.close()
        join_background_io()
        assert asked == [(thread, (tmp_path / "a").stat().st_ino, 3, length)]

    def test_pending_write_back_keeps_its_file_after_close(self, tmp_path: Path, asked: list[tuple[str, int, int, int]]) -> None:
        gate, files = threading.Event(), DiskFileSystem(tmp_path)
        first = files._background_io.admit(lambda: os.dup(0))
        assert first is not None

        def wait(_: int) -> None:
            gate.wait()

        files._background_io.submit(wait, first)
        file = files.open("a")
        file.append((bytes(background_io.LARGE_BYTES),))
        file.write_back(0)
        file.close()
        files.open("b").append((b"b",))
        gate.set()
        join_background_io()
        assert [inode for _, inode, _, _ in asked] == [(tmp_path / "a").stat().st_ino]

    def test_write_back_is_skipped_when_too_much_is_pending(
        self, tmp_path: Path, asked: list[tuple[str, int, int, int]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(background_io, "PENDING_MAX", 0)
        file = DiskFileSystem(tmp_path).open("a")
        file.append((bytes(background_io.LARGE_BYTES),))
        file.write_back(0)
        join_background_io()
        assert asked == []


def join_background_io() -> None:
    for thread in threading.enumerate():
        if thread.name == background_io.THREAD_NAME:
            thread.join()
