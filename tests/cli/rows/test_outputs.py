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
    with path.open("r+b", buffering=0) as file:
        file.seek(0, os.SEEK_END)
        for name in (f"/dev/fd/{file.fileno()}", f"/proc/self/fd/{file.fileno()}"):
            file.write(b" header ")
            written(name)
        file.write(b" trailer")
    assert path.read_bytes() == b"before header new header new trailer"


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
