"""Files that are replaced when what is written is kept, and those that are written as they are."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from chaffinch.cli.rows.outputs import open_replacement


def written(path: str | Path) -> None:
    """One command's output."""
    with open_replacement(str(path), is_followed=False) as out:
        out.file.write(b"new")
        out.file.flush()
        out.keep()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "out").write_bytes(b"before")
    return tmp_path / "out"


def test_a_file_in_a_folder_that_takes_no_other_is_written_as_it_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda name, mode: (name, mode) != (str(path.parent), os.W_OK))
    before = path.stat().st_ino
    written(path)
    assert (path.stat().st_ino, path.read_bytes()) == (before, b"new")


def test_what_a_shell_has_opened_is_written_where_it_stands(path: Path) -> None:
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
            written(name)
        file.write(b" trailer")
    assert path.read_bytes() == b"before" + 8 * b" header new" + b" trailer"


def test_a_link_to_a_file_stays_one(path: Path) -> None:
    link = path.with_name("link")
    link.symlink_to("out")
    written(link)
    assert (link.is_symlink(), path.read_bytes(), sorted(os.listdir(path.parent))) == (True, b"new", ["link", "out"])


def test_what_is_replaced_or_copied_into_is_on_the_disk_before_it_counts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    really = os.fsync

    def noted(number: int) -> None:
        really(number)
        synced.append(os.fstat(number).st_ino)

    monkeypatch.setattr(os, "fsync", noted)
    written(path)
    assert synced == [path.stat().st_ino]

    def refused(*_: str) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(os, "replace", refused)
    written(path)
    assert synced[2:] == [path.stat().st_ino]


def test_what_was_opened_to_be_read_is_named(path: Path) -> None:
    with path.open("rb") as file, pytest.raises(OSError, match=f"Bad file descriptor: '/dev/fd/{file.fileno()}'"):
        written(f"/dev/fd/{file.fileno()}")


def test_what_another_process_has_opened_is_not_replaced_behind_its_back(path: Path) -> None:
    before, link = path.stat().st_ino, path.with_name("link")
    with path.open("ab") as file, subprocess.Popen(["sleep", "60"], stdout=file) as other:
        try:
            link.symlink_to(f"/proc/{other.pid}/fd/1")
            for name in (f"/proc/{other.pid}/fd/1", f"//proc/{other.pid}/fd/1", link):
                path.write_bytes(b"longer than what is written")
                written(name)
                assert (path.stat().st_ino, path.read_bytes()) == (before, b"new")
        finally:
            other.kill()


def test_a_file_by_way_of_proc_is_a_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    before = path.stat().st_ino
    written("/proc/self/cwd/out")
    assert (path.read_bytes(), path.stat().st_ino == before) == (b"new", False)


@pytest.mark.parametrize(("name", "number"), [("/dev/stdout", 1), ("/dev/stderr", 2)])
def test_stdout_by_its_name_is_the_descriptor(name: str, number: int, capfd: pytest.CaptureFixture[str]) -> None:
    os.write(number, b"header ")
    written(name)
    os.write(number, b" trailer")
    assert capfd.readouterr()[number - 1] == "header new trailer"


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EPERM], ids=["mounted by itself", "another user's, in a common folder"])
def test_a_file_whose_name_cannot_be_taken_gets_what_is_written(path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(beside: str, name: str) -> None:
        raise OSError(number, os.strerror(number), beside, None, name)

    monkeypatch.setattr(os, "replace", refused)
    path.write_bytes(b"longer than what is written")
    before = path.stat().st_ino
    written(path)
    assert (path.stat().st_ino, path.read_bytes(), os.listdir(path.parent)) == (before, b"new", [path.name])


def test_a_name_may_be_as_long_as_the_system_lets_it(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    written(path)
    assert (os.listdir(tmp_path), path.read_bytes()) == ([path.name], b"new")


def test_who_may_not_write_a_file_may_not_replace_it(tmp_path: Path) -> None:
    """Nobody may write a program that runs."""
    path = shutil.copy(shutil.which("sleep") or "", tmp_path / "program")
    with subprocess.Popen([path, "60"]) as running:
        try:
            with pytest.raises(OSError, match="Text file busy"):
                written(path)
        finally:
            running.kill()
    assert os.listdir(tmp_path) == ["program"]
