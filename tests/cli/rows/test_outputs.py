"""Files that are replaced when what is written is kept, and those that are written as they are."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from chaffinch.cli.rows.outputs import open_replacement


def write(path: str | Path) -> None:
    """One command's output."""
    with open_replacement(str(path), is_followed=False) as out:
        out.file.write(b"new")
        out.file.flush()
        out.publish()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "out").write_bytes(b"before")
    return tmp_path / "out"


def test_file_in_unwritable_directory_is_written_in_place(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda name, mode: (name, mode) != (str(path.parent), os.W_OK))
    before = path.stat().st_ino
    write(path)
    assert (path.stat().st_ino, path.read_bytes()) == (before, b"new")


def test_descriptor_opened_by_shell_is_written_at_its_position(path: Path) -> None:
    """As in `(echo header; chaffinch consume --output /dev/stdout; echo trailer) > file`, and behind `>>`."""
    link, second = path.with_name("link"), path.with_name("second")
    second.symlink_to(link)
    with path.open("r+b", buffering=0) as file:
        file.seek(0, os.SEEK_END)
        number = file.fileno()
        link.symlink_to(f"/dev/fd/{number}")
        folders = ["/dev", "//dev", "/dev/../dev", "/proc/self", "/proc/thread-self", f"/proc/{os.getpid()}"]
        names: list[str | Path] = [*(f"{folder}/fd/{number}" for folder in folders), link, second]
        for name in names:
            file.write(b" header ")
            write(name)
        file.write(b" trailer")
    assert path.read_bytes() == b"before" + 8 * b" header new" + b" trailer"


def test_symlink_to_file_is_kept(path: Path) -> None:
    link = path.with_name("link")
    link.symlink_to("out")
    write(link)
    assert (link.is_symlink(), path.read_bytes(), sorted(os.listdir(path.parent))) == (True, b"new", ["link", "out"])


def test_replacement_is_synced_before_it_is_published(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    really = os.fsync

    def fsync(number: int) -> None:
        really(number)
        synced.append(os.fstat(number).st_ino)

    monkeypatch.setattr(os, "fsync", fsync)
    write(path)
    assert synced == [path.stat().st_ino]

    def refused(*_: str) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(os, "replace", refused)
    write(path)
    assert synced[2:] == [path.stat().st_ino]


def test_read_only_descriptor_is_named_in_error(path: Path) -> None:
    with path.open("rb") as file, pytest.raises(OSError, match=f"Bad file descriptor: '/dev/fd/{file.fileno()}'"):
        write(f"/dev/fd/{file.fileno()}")


def test_file_opened_by_another_process_is_written_in_place(path: Path) -> None:
    before, link = path.stat().st_ino, path.with_name("link")
    with path.open("ab") as file, subprocess.Popen(["sleep", "60"], stdout=file) as other:
        try:
            link.symlink_to(f"/proc/{other.pid}/fd/1")
            for name in (f"/proc/{other.pid}/fd/1", f"//proc/{other.pid}/fd/1", link):
                path.write_bytes(b"longer than what is written")
                write(name)
                assert (path.stat().st_ino, path.read_bytes()) == (before, b"new")
        finally:
            other.kill()


def test_path_through_proc_cwd_is_replaced_like_any_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    before = path.stat().st_ino
    write("/proc/self/cwd/out")
    assert (path.read_bytes(), path.stat().st_ino == before) == (b"new", False)


@pytest.mark.parametrize(("name", "number"), [("/dev/stdout", 1), ("/dev/stderr", 2)])
def test_dev_stdout_writes_to_the_descriptor(name: str, number: int, capfd: pytest.CaptureFixture[str]) -> None:
    os.write(number, b"header ")
    write(name)
    os.write(number, b" trailer")
    assert capfd.readouterr()[number - 1] == "header new trailer"


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EPERM], ids=["mounted by itself", "another user's, in a common folder"])
def test_file_that_cannot_be_replaced_is_overwritten(path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(temporary: str, name: str) -> None:
        raise OSError(number, os.strerror(number), temporary, None, name)

    monkeypatch.setattr(os, "replace", refused)
    path.write_bytes(b"longer than what is written")
    before = path.stat().st_ino
    write(path)
    assert (path.stat().st_ino, path.read_bytes(), os.listdir(path.parent)) == (before, b"new", [path.name])


def test_longest_file_name_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    write(path)
    assert (os.listdir(tmp_path), path.read_bytes()) == ([path.name], b"new")


def test_unwritable_file_is_not_replaced(tmp_path: Path) -> None:
    """Linux refuses to open a running program for writing."""
    path = shutil.copy(shutil.which("sleep") or "", tmp_path / "program")
    with subprocess.Popen([path, "60"]) as running:
        try:
            with pytest.raises(OSError, match="Text file busy"):
                write(path)
        finally:
            running.kill()
    assert os.listdir(tmp_path) == ["program"]
