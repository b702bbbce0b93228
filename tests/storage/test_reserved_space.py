"""Preallocation and write-back of a growing log: without them a stream of large batches is a third slower."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from chaffinch.identifiers import TopicPartition
from chaffinch.storage import disk_file, segment
from chaffinch.storage.disk_file import DiskFile
from chaffinch.storage.file_system import DiskFileSystem, MemoryFileSystem, StorageError
from chaffinch.storage.partition_log import LogConfig, PartitionLog
from tests.storage.batches import batch

MB = 1 << 20
fallocate = disk_file._fallocate
ORDERS = TopicPartition("orders", 0)
VALUE = bytes(1000)
SIZE = len(batch(value=VALUE))


def blocks(path: Path) -> int:
    """Bytes that the file takes on the disk."""
    return path.stat().st_blocks * 512


class TestRealDisk:
    """Any file system that can set room aside; those of the tests' machines can."""

    @pytest.fixture
    def file(self, tmp_path: Path) -> DiskFile:
        file = DiskFileSystem(tmp_path).open("a")
        file.append((b"abc",))
        file.reserve(MB)
        return file

    def test_reservation_allocates_blocks_and_keeps_the_size(self, file: DiskFile, tmp_path: Path) -> None:
        found = (tmp_path / "a").stat()
        assert (file.size, found.st_size, file.read(0, 9)) == (3, 3, b"abc")
        assert blocks(tmp_path / "a") >= MB

    def test_appends_use_the_reservation_and_go_beyond(self, file: DiskFile, tmp_path: Path) -> None:
        assert file.append((bytes(MB - 10), b"end")) == 3
        file.reserve(MB)
        file.append((b"more",))
        assert (file.size, file.read(MB - 7, 20)) == (MB, b"endmore")
        assert MB < blocks(tmp_path / "a") <= 2 * MB + 65536

    @pytest.mark.parametrize("how", ["reserve(0)", "close", "truncate"])
    def test_unused_reservation_is_released(self, file: DiskFile, tmp_path: Path, how: str) -> None:
        if how == "truncate":
            file.truncate(2)
        elif how == "close":
            file.close()
        else:
            file.reserve(0)
        assert blocks(tmp_path / "a") <= 65536
        assert (tmp_path / "a").read_bytes() == (b"ab" if how == "truncate" else b"abc")

    def test_file_losing_its_descriptor_releases_its_reservation(self, tmp_path: Path) -> None:
        """Later it could not: it is opened again for appends and reads only."""
        files = DiskFileSystem(tmp_path, descriptors_max=1)
        file = files.open("a")
        file.append((b"abc",))
        file.reserve(MB)
        for name in "bcd":
            files.open(name).append((b"x",))
        assert blocks(tmp_path / "a") <= 65536

    def test_closed_file_is_not_touched_by_name(self, file: DiskFile, tmp_path: Path) -> None:
        """By its name another one could be found."""
        file.close_descriptor()
        (tmp_path / "a").rename(tmp_path / "b")
        (tmp_path / "a").write_bytes(b"another")
        file.reserve(0)
        file.close()
        assert (tmp_path / "a").read_bytes() == b"another"


def half(descriptor: int, mode: int, position: int, length: int) -> int:
    """As on a disk that is nearly full, where the system may give some of it and refuse the rest."""
    assert fallocate is not None
    assert fallocate(descriptor, mode, position, length // 2) == 0
    return -1


@pytest.mark.parametrize("answer", [None, half])
def test_refused_fallocate_has_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Callable[[int, int, int, int], int] | None
) -> None:
    monkeypatch.setattr(disk_file, "_fallocate", answer)
    file = DiskFileSystem(tmp_path).open("a")
    file.append((b"abc",))
    file.reserve(MB)
    assert file.append((b"d",)) == 3
    assert ((tmp_path / "a").read_bytes(), blocks(tmp_path / "a") <= 65536) == (b"abcd", True)


def test_refused_reservation_on_a_full_disk_keeps_earlier_space(small_disk: Path) -> None:
    file = DiskFileSystem(small_disk).open("a")
    file.append((b"abc",))
    file.reserve(MB)
    (small_disk / "b").write_bytes(bytes(120_000))  # It has its place.
    file.reserve(50_000)
    with pytest.raises(OSError, match="No space"):
        (small_disk / "c").write_bytes(bytes(100_000))
    file.append((bytes(40_000),))  # The room was set aside.
    with pytest.raises(StorageError) as caught:
        file.append((bytes(40_000),))
    assert caught.value.error_number == errno.ENOSPC
    assert file.size == 40_003


def test_full_disk_releases_reservations_of_other_files(small_disk: Path) -> None:
    files = DiskFileSystem(small_disk)
    idle, busy = files.open("a"), files.open("b")
    idle.append((b"abc",))
    idle.reserve(120_000)
    for _ in range(15):
        busy.append((bytes(10_000),))
    assert (busy.size, idle.has_reservation) == (150_000, False)
    with pytest.raises(StorageError) as caught:
        busy.append((bytes(100_000),))
    assert caught.value.error_number == errno.ENOSPC
    idle.append((b"d",))
    assert idle.read(0, 9) == b"abcd"


class TestNames:
    """A name takes room, too: a block of the directory, or the file's own entry."""

    MAKES: ClassVar[dict[str, tuple[str, Callable[[DiskFileSystem], object]]]] = {
        "directory": ("mkdir", lambda files: files.make_directory("logs/orders-0")),
        "file": ("open", lambda files: files.open("b")),
        "new name": ("replace", lambda files: files.rename("a", "b")),
    }

    @pytest.fixture
    def files(self, tmp_path: Path) -> DiskFileSystem:
        return DiskFileSystem(tmp_path)

    @pytest.fixture
    def idle(self, files: DiskFileSystem) -> DiskFile:
        idle = files.open("a")
        idle.append((b"abc",))
        idle.reserve(MB)
        return idle

    def fill(self, patched: pytest.MonkeyPatch, call: str, has_reservation: Callable[[], bool]) -> list[str]:
        """`call` of the system finds no block of the disk while `has_reservation`. Returns what it was called for, as it grows."""
        real, calls = getattr(os, call), []

        def full(path: str, *arguments: Any, **options: Any) -> object:
            calls.append(path)
            if has_reservation():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(path, *arguments, **options)

        patched.setattr(os, call, full)
        return calls

    @pytest.mark.parametrize("name", MAKES)
    def test_new_name_on_a_full_disk_releases_reservations(
        self, name: str, files: DiskFileSystem, idle: DiskFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        call, make = self.MAKES[name]
        self.fill(monkeypatch, call, lambda: idle.has_reservation)
        make(files)
        assert not idle.has_reservation
        assert files.exists("logs/orders-0" if name == "directory" else "b")

    @pytest.mark.parametrize("name", MAKES)
    def test_full_disk_without_reservations_is_an_error(
        self, name: str, files: DiskFileSystem, idle: DiskFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        call, make = self.MAKES[name]
        calls = self.fill(monkeypatch, call, lambda: True)
        with pytest.raises(StorageError) as caught:
            make(files)
        assert (caught.value.error_number, len(calls)) == (errno.ENOSPC, 2)


def test_other_write_error_releases_no_reservation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(descriptor: int, data: bytes) -> int:
        raise OSError(errno.EIO, "Input/output error")

    files = DiskFileSystem(tmp_path)
    idle, busy = files.open("a"), files.open("b")
    idle.append((b"abc",))
    idle.reserve(MB)
    monkeypatch.setattr(os, "write", broken)
    with pytest.raises(StorageError, match="Input/output error"):
        busy.append((b"abc",))
    assert idle.has_reservation


class RecordingFile:
    """What a log asks for, in its order: ("reserve", length) at a size, ("write back", from)."""

    def __init__(self, files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, int, int]] = []
        kind = type(files.open("probe"))
        monkeypatch.setattr(kind, "reserve", lambda file, length: self.calls.append(("reserve", file.size, length)))
        monkeypatch.setattr(kind, "write_back", lambda file, position: self.calls.append(("write back", file.size, position)))


class TestLog:
    """Batches of `SIZE` bytes; room is made from `RESERVED_BYTES_MIN` on, here 5 batches."""

    @pytest.fixture
    def files(self) -> MemoryFileSystem:
        return MemoryFileSystem()

    @pytest.fixture
    def calls(self, files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
        monkeypatch.setattr(segment, "RESERVED_BYTES_MIN", 5 * SIZE)
        return RecordingFile(files, monkeypatch).calls

    def log(self, files: MemoryFileSystem, **config: Any) -> PartitionLog:
        return PartitionLog.open(files, "orders-0", ORDERS, LogConfig(**config), 0)

    def fill(self, log: PartitionLog, batches: int) -> None:
        for _ in range(batches):
            log.append(batch(value=VALUE), steady_ms=0)

    def test_small_partition_reserves_nothing(self, files: MemoryFileSystem, calls: list[tuple[str, int, int]]) -> None:
        self.fill(self.log(files), 6)
        assert calls == []

    def test_larger_partition_reserves_ahead(self, files: MemoryFileSystem, calls: list[tuple[str, int, int]]) -> None:
        self.fill(self.log(files), 20)
        assert calls == [("reserve", 6 * SIZE, 5 * SIZE), ("reserve", 12 * SIZE, 5 * SIZE), ("reserve", 18 * SIZE, 5 * SIZE)]

    def test_reservation_grows_with_the_segment_up_to_a_limit(
        self, files: MemoryFileSystem, calls: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(segment, "RESERVED_BYTES_MIN", SIZE)
        monkeypatch.setattr(segment, "RESERVED_BYTES_MAX", 3 * SIZE)
        self.fill(self.log(files), 20)
        assert [(at // SIZE, round(4 * length / SIZE)) for _, at, length in calls] == [
            (2, 4), (4, 4), (6, 6), (8, 8), (11, 11), (14, 12), (18, 12),
        ]  # fmt: skip

    def test_sealed_segment_releases_its_reservation(self, files: MemoryFileSystem, calls: list[tuple[str, int, int]]) -> None:
        self.fill(self.log(files, segment_bytes=7 * SIZE), 8)
        assert calls == [("reserve", 6 * SIZE, SIZE), ("reserve", 7 * SIZE, 0)], "none is asked for beyond its end"

    def test_reopened_log_reserves_again(self, files: MemoryFileSystem, calls: list[tuple[str, int, int]]) -> None:
        log = self.log(files)
        self.fill(log, 6)
        log.close()
        self.fill(self.log(files), 1)
        assert calls == [("reserve", 6 * SIZE, 5 * SIZE)]

    def test_write_back_starts_in_the_middle_of_a_segment(self, files: MemoryFileSystem, calls: list[tuple[str, int, int]]) -> None:
        """All that stands there by then, and after that what has come since."""
        self.fill(self.log(files, segment_bytes=20 * SIZE, checkpoint_bytes=4 * SIZE), 20)
        assert [one for one in calls if one[0] == "write back"] == [
            ("write back", 12 * SIZE, 0),
            ("write back", 16 * SIZE, 12 * SIZE),
            ("write back", 20 * SIZE, 16 * SIZE),
        ]

    def test_write_back_starts_over_in_a_new_segment(self, files: MemoryFileSystem, calls: list[tuple[str, int, int]]) -> None:
        self.fill(self.log(files, segment_bytes=8 * SIZE, checkpoint_bytes=4 * SIZE), 13)
        assert [one for one in calls if one[0] == "write back"] == [
            ("write back", 4 * SIZE, 0),
            ("write back", 8 * SIZE, 4 * SIZE),
            ("write back", 4 * SIZE, 0),
        ]
