"""User programs under type checkers: `python -m tests.typing.check_programs`, as `make types` does.

mypy and pyright must report an error in each line that ends with `# wrong`, and in no other line.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

PROGRAMS: Final = Path(__file__).parent / "programs"
ROOT: Final = PROGRAMS.parents[2]
MARK: Final = "# wrong"
_MYPY_ERROR: Final = re.compile(r"^(?P<path>[^:\n]+):(?P<line>\d+)(?::\d+)?: error: (?P<text>.*)$", re.MULTILINE)

Lines = dict[tuple[str, int], str]
"""Error texts by file name and line."""


def expected() -> set[tuple[str, int]]:
    """File names and numbers of the lines with the mark."""
    return {
        (path.name, number)
        for path in sorted(PROGRAMS.glob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if line.rstrip().endswith(MARK)
    }


def by_mypy() -> Lines:
    """Errors of mypy, strict, as in pyproject.toml."""
    # Named one by one, since the configuration leaves the folder out.
    paths = [str(path) for path in sorted(PROGRAMS.glob("*.py"))]
    command = [sys.executable, "-m", "mypy", "--no-error-summary", *paths]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode > 1 or done.stderr:
        raise RuntimeError(f"mypy failed: {done.stdout}{done.stderr}")
    return {(Path(found["path"]).name, int(found["line"])): found["text"] for found in _MYPY_ERROR.finditer(done.stdout)}


def by_pyright() -> Lines:
    """Errors of pyright in its default mode, `standard`."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "--project", str(PROGRAMS.parent)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode > 1:
        raise RuntimeError(f"pyright failed: {done.stdout}{done.stderr}")
    report = json.loads(done.stdout)
    return {
        (Path(found["file"]).name, found["range"]["start"]["line"] + 1): found["message"]
        for found in report["generalDiagnostics"]
        if found["severity"] == "error"
    }


CHECKERS: Final[Mapping[str, Callable[[], Lines]]] = {"mypy": by_mypy, "pyright": by_pyright}


def differences(marked: set[tuple[str, int]], found: Lines) -> list[str]:
    """Marked lines without an error, and errors in other lines."""
    missed = [f"{name}:{line}: no error, though the line is marked as wrong" for name, line in sorted(marked - found.keys())]
    return missed + [f"{name}:{line}: {text}" for (name, line), text in sorted(found.items()) if (name, line) not in marked]


def main() -> int:
    """Exit status: 1 if a checker differs from the marks."""
    marked, failed = expected(), False
    for checker, check in CHECKERS.items():
        wrong = differences(marked, check())
        failed |= bool(wrong)
        print("\n".join(f"{checker}: {line}" for line in wrong) or f"{checker}: {len(marked)} wrong lines found in user programs, no other")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
