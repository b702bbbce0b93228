"""Which interpreters of a machine `make pythons` takes, and how its arguments are read."""

from pathlib import Path

import pytest

from tools import pythons


def interpreter(path: Path, printed: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{printed}\n")
    path.chmod(0o755)
    return str(path)


def test_path_interpreter_then_newest_is_chosen_for_each_version(tmp_path: Path) -> None:
    folder, pyenv = tmp_path / "bin", tmp_path / ".pyenv"
    system = interpreter(folder / "python3.11", "echo 3 11 2 cpython")
    interpreter(folder / "python3.13", "exit 1")  # Without the venv module.
    interpreter(pyenv / "shims" / "python3.12", "echo 3 12 0 cpython")
    for release in ("3.10.13", "3.11.7", "3.12.9", "3.12.10", "3.13.0"):
        interpreter(pyenv / "versions" / release / "bin" / "python", f"echo {release.replace('.', ' ')} cpython")
    (pyenv / "versions" / "3.12-dev").mkdir()
    found = pythons.chosen(pythons.candidates(f"{pyenv / 'shims'}:{folder}", pyenv))
    assert found == {"3.11": system, "3.12": str(pyenv / "versions/3.12.10/bin/python"), "3.13": str(pyenv / "versions/3.13.0/bin/python")}


@pytest.mark.parametrize("printed", ["echo 3 11 9 pypy", "exit 1", "echo"])
def test_unusable_interpreter_is_ignored(tmp_path: Path, printed: str) -> None:
    assert pythons.version(interpreter(tmp_path / "python", printed)) == ()


def test_dashes_lie_between_the_runs() -> None:
    assert pythons.runs(["--quick", "--", "tests/spark", "-x"]) == [["--quick"], ["tests/spark", "-x"]]
