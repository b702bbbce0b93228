"""Large files, whose blocks are freed on a background thread."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaffinch.storage import background_io, disk_reads
from chaffinch.storage.file_system import DiskFileSystem, StorageError
from tests.storage.test_file_system import join_background_io


class TestLargeFiles:
    """What they take is freed in another thread, once their names are gone."""

    @pytest.fixture
    def freed(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int]]]:
        """(thread, bytes) of each file that is freed; at the end no descriptor is left."""
        found: list[tuple[str, int]] = []

        def free(descriptor: int) -> None:
            real(descriptor)
            found.append((threading.current_thread().name, os.fstat(descriptor).st_size))

        real = background_io.free
        monkeypatch.setattr(background_io, "free", free)
        before = os.listdir("/proc/self/fd")
        yield found
        join_background_io()
        assert len(os.listdir("/proc/self/fd")) == len(before)

    def make(self, path: Path, size: int = 2 * background_io.LARGE_BYTES + 10) -> Path:
        path.parent.mkdir(exist_ok=True)
        path.touch()
        os.truncate(path, size)
        return path

    @pytest.mark.parametrize("way", ["remove", "rename", "remove_tree"])
    def test_large_file_is_unlinked_at_once_and_freed_in_the_background(
        self, tmp_path: Path, freed: list[tuple[str, int]], way: str
    ) -> None:
        files = DiskFileSystem(tmp_path)
        self.make(tmp_path / "d" / "large")
        if way == "remove":
            files.remove("d/large")
        elif way == "remove_tree":
            files.remove_tree("d")
        else:
            self.make(tmp_path / "new", 3)
            files.rename("new", "d/large")
        assert files.exists("d/large") == (way == "rename")
        join_background_io()
        assert freed == [(background_io.THREAD_NAME, background_io.LARGE_BYTES)]

    def test_small_files_and_renames_use_no_thread(self, tmp_path: Path, freed: list[tuple[str, int]]) -> None:
        files = DiskFileSystem(tmp_path)
        self.make(tmp_path / "small", background_io.LARGE_BYTES - 1)
        files.remove("small")
        self.make(tmp_path / "large")
        files.rename("large", "elsewhere")
        join_background_io()
        assert freed == []
        assert (tmp_path / "elsewhere").stat().st_size > background_io.LARGE_BYTES

    def test_hard_link_keeps_the_content(self, tmp_path: Path, freed: list[tuple[str, int]]) -> None:
        large = self.make(tmp_path / "large")
        os.link(large, tmp_path / "backup")
        DiskFileSystem(tmp_path).remove("large")
        join_background_io()
        assert len(freed) == 1
        assert (tmp_path / "backup").stat().st_size == 2 * background_io.LARGE_BYTES + 10

    def test_removing_a_missing_file_is_an_error(self, tmp_path: Path, freed: list[tuple[str, int]]) -> None:
        with pytest.raises(StorageError, match="cannot remove"):
            DiskFileSystem(tmp_path).remove("missing")
        assert freed == []

    def test_pending_removals_hold_a_limited_number_of_descriptors(
        self, tmp_path: Path, freed: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(background_io, "PENDING_MAX", 4)
        gate, counting, sizes = threading.Event(), background_io.free, []

        def free(descriptor: int) -> None:
            gate.wait()
            sizes.append(os.fstat(descriptor).st_size)
            counting(descriptor)

        monkeypatch.setattr(background_io, "free", free)
        files = DiskFileSystem(tmp_path)
        for number in range(7):
            self.make(tmp_path / str(number), background_io.LARGE_BYTES + number)
            files.remove(str(number))
            assert not files.exists(str(number))
        assert [thread.name for thread in threading.enumerate()].count(background_io.THREAD_NAME) == 1
        gate.set()
        join_background_io()
        assert sizes == [background_io.LARGE_BYTES + number for number in range(4)]
        self.make(tmp_path / "later")
        files.remove("later")
        join_background_io()
        assert len(freed) == 5

    def test_removals_of_files_being_read_hold_a_limited_number_of_descriptors(
        self, tmp_path: Path, freed: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(background_io, "PENDING_MAX", 4)
        files, readers = DiskFileSystem(tmp_path), []
        before = len(os.listdir("/proc/self/fd"))
        for number in range(7):
            self.make(tmp_path / str(number))
            file = files.open(str(number))
            readers.append(file.held())
            file.close()
            files.remove(str(number))
        assert len(os.listdir("/proc/self/fd")) == before + 7 + 4
        for reader in readers:
            assert reader is not None
            reader.close()
        join_background_io()
        assert len(freed) == 4
        self.make(tmp_path / "later")
        files.remove("later")
        join_background_io()
        assert len(freed) == 5

    def test_file_that_cannot_be_opened_takes_no_pending_slot(
        self, tmp_path: Path, freed: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(background_io, "PENDING_MAX", 1)
        files = DiskFileSystem(tmp_path)

        def fail(*_: object) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        for name in ("1", "2", "3"):
            self.make(tmp_path / name)
            with monkeypatch.context() as patched:
                if name != "3":
                    patched.setattr(os, "open", fail)
                files.remove(name)
        join_background_io()
        assert len(freed) == 1

    def test_failure_to_free_one_file_keeps_no_other(
        self, tmp_path: Path, freed: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gate, counting, calls = threading.Event(), background_io.free, []

        def free(descriptor: int) -> None:
            gate.wait()
            calls.append(descriptor)
            if len(calls) == 1:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            counting(descriptor)

        monkeypatch.setattr(background_io, "free", free)
        for name in ("d/1", "d/2"):
            self.make(tmp_path / name)
        DiskFileSystem(tmp_path).remove_tree("d")
        gate.set()
        join_background_io()
        assert (len(calls), len(freed)) == (2, 1)

    def test_large_file_is_truncated_at_page_boundaries(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        sizes: list[int] = []
        monkeypatch.setattr(os, "ftruncate", lambda _, size: sizes.append(size))
        self.make(tmp_path / "large", 2 * background_io.LARGE_BYTES + 10)
        DiskFileSystem(tmp_path).remove("large")
        join_background_io()
        assert sizes == [2 * background_io.LARGE_BYTES, background_io.LARGE_BYTES]

    @pytest.mark.parametrize("way", ["remove", "rename", "remove_tree"])
    def test_held_file_is_freed_after_the_last_release(self, tmp_path: Path, freed: list[tuple[str, int]], way: str) -> None:
        files = DiskFileSystem(tmp_path)
        self.make(tmp_path / "d" / "large")
        file = files.open("d/large")
        first, second = file.held(), file.held()
        assert first is not None
        assert second is not None
        file.close()
        if way == "remove":
            files.remove("d/large")
        elif way == "remove_tree":
            files.remove_tree("d")
        else:
            (tmp_path / "new").write_bytes(b"new")
            files.rename("new", "d/large")
        first.close()
        join_background_io()
        assert freed == []
        assert second.read(2 * background_io.LARGE_BYTES, 100) == bytes(10)
        second.close()
        join_background_io()
        assert freed == [(background_io.THREAD_NAME, background_io.LARGE_BYTES)]

    def test_unheld_file_is_freed_though_its_successor_is_held(self, tmp_path: Path, freed: list[tuple[str, int]]) -> None:
        """Readers of a log that is compacted again and again: there is always one, of the newest file."""
        files = DiskFileSystem(tmp_path)
        self.make(tmp_path / "large")
        file = files.open("large")
        held = file.held()
        assert held is not None
        for number in range(6):
            self.make(tmp_path / "new")
            files.rename("new", "large")
            file.close()
            file, before = files.open("large"), held
            held = file.held()
            assert held is not None
            join_background_io()
            assert len(freed) == number
            before.close()
            join_background_io()
            assert len(freed) == number + 1
        held.close()
        file.close()

    def test_holders_of_one_file_share_one_descriptor(self, tmp_path: Path, freed: list[tuple[str, int]]) -> None:
        files = DiskFileSystem(tmp_path)
        self.make(tmp_path / "large")
        file = files.open("large")
        one = file.held()
        assert one is not None
        before = len(os.listdir("/proc/self/fd"))
        others = [holder.held() for holder in (file, one) for _ in range(20)]
        assert len(os.listdir("/proc/self/fd")) == before
        for held in (one, *others):
            assert held is not None
            assert held.read(0, 1) == b"\0"
            held.close()
        file.close()

    def test_replaced_file_is_held_separately(self, tmp_path: Path, freed: list[tuple[str, int]]) -> None:
        files = DiskFileSystem(tmp_path)
        found = []
        for content in (b"old", b"new"):
            (tmp_path / "made").write_bytes(content)
            files.rename("made", "name")
            file = files.open("name")
            found.append(file.held())
            file.close()
        assert [held.read(0, 10) for held in found if held is not None] == [b"old", b"new"]
        for held in found:
            assert held is not None
            held.close()

    def test_number_of_held_files_is_limited(self, tmp_path: Path, freed: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(disk_reads, "HELD_MAX", 2)
        files = DiskFileSystem(tmp_path)
        opened = [files.open(name) for name in "abc"]
        first, second, third = (file.held() for file in opened)
        assert first is not None
        assert second is not None
        assert third is None
        again = opened[0].held()
        assert again is not None
        second.close()
        third = opened[2].held()
        assert third is not None
        for held in (again, first, third):
            held.close()
        for open_file in opened:
            open_file.close()

    def test_without_descriptors_nothing_is_held(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(_: int) -> int:
            raise OSError(errno.EMFILE, "Too many open files")

        files = DiskFileSystem(tmp_path)
        self.make(tmp_path / "large")
        file = files.open("large")
        monkeypatch.setattr(os, "dup", refuse)
        assert file.held() is None
        file.close()

    def test_large_file_is_freed_inline_without_a_thread(
        self, tmp_path: Path, freed: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        self.make(tmp_path / "large")
        DiskFileSystem(tmp_path).remove("large")
        assert freed == [(threading.current_thread().name, background_io.LARGE_BYTES)]
