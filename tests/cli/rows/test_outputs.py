"""Files that are replaced when what is written is kept, and those that are written as they are."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
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


@pytest.fixture(params=["held open", "in a folder that takes no other"])
def name(request: pytest.FixtureRequest, path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a file that nobody can replace, or whose replacement nobody would see."""
    with path.open("rb") as file:
        if request.param == "held open":
            yield f"/proc/self/fd/{file.fileno()}"
            return
        monkeypatch.setattr(os, "access", lambda name, mode: (name, mode) != (str(path.parent), os.W_OK))
        yield str(path)


def test_a_file_that_cannot_be_replaced_is_written_as_it_is(path: Path, name: str) -> None:
    before = path.stat().st_ino
    written(name)
    assert (path.stat().st_ino, path.read_bytes()) == (before, b"new")


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
