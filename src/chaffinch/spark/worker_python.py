"""The Python of a local Spark's processes: the driver's interpreter, which imports PySpark from where the driver imports it.

Spark puts its `python/lib/pyspark.zip` first on the path of every Python process that it starts, and from an archive without bytecode
PySpark is compiled anew in each: 0.9 CPU-seconds instead of 0.2. The first write of a session starts four, one after another.
`chaffinch-spark-python` is `python` for Spark's sake: `session` names it where the driver's machine is the only one, nobody has named a
Python, and it is installed beside the interpreter. Spark forks from what it runs, which imports little that Spark itself
does not: what `import chaffinch.spark` loads.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

PROGRAM: Final = "chaffinch-spark-python"
VARIABLES: Final = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
"""Where Spark looks for the Python of its processes: for functions of the user, and for what it plans and commits."""


def main() -> None:
    """`-m MODULE ...` as `python` runs it, but with the installed PySpark in place of its archive; the rest is handed to `python`."""
    arguments = sys.argv[1:]
    if len(arguments) < 2 or arguments[0] != "-m":
        os.execv(sys.executable, [sys.executable, *arguments])
    if not sys.flags.safe_path:
        sys.path[:1] = _working_directory()
    sys.path[:] = without_archives(sys.path)
    sys.argv[:] = arguments[1:]
    runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)


def _working_directory() -> list[str]:
    """What `-m` puts in front of the path: nothing where the directory is gone."""
    try:
        return [os.getcwd()]
    except OSError:
        return []


def without_archives(path: Sequence[str]) -> list[str]:
    """The path without Spark's archives, if they belong to the very PySpark that is found without them, and py4j is, too; else as it was.

    They cannot stay behind the rest: since Python 3.13 `pkgutil.iter_modules`, with which Spark looks for data sources, raises KeyError
    for an archive from which nothing was imported since `importlib.invalidate_caches`, which Spark calls first.
    """
    archives = [entry for entry in path if Path(entry).suffix == ".zip" and Path(entry).parts[-4:-1] == ("pyspark", "python", "lib")]
    others = [entry for entry in path if entry not in archives]
    found = PathFinder.find_spec("pyspark", others)
    if found is None or found.origin is None or PathFinder.find_spec("py4j", others) is None:
        return list(path)
    package = os.path.realpath(Path(found.origin).parent)
    is_its_own = all(os.path.realpath(Path(archive).parents[2]) == package for archive in archives)
    return others if is_its_own else list(path)


def use_python(*, is_one_machine: bool) -> None:
    """Names the Python of Spark's processes in this process's environment, as far as nobody has; what an earlier session named counts
    as named by nobody."""
    program = _program()
    ours = (None, "" if program is None else str(program))
    if program is not None and is_one_machine and all(os.environ.get(name) in ours for name in VARIABLES):
        os.environ.update(dict.fromkeys(VARIABLES, str(program)))
        return
    for name in VARIABLES:
        if os.environ.get(name) in ours:
            os.environ[name] = sys.executable


def is_own(python: str) -> bool:
    """Whether processes that are started with it have what this one has: it is this interpreter, or the program around it."""
    return python in (sys.executable, str(_program()))


def _program() -> Path | None:
    """The program beside this interpreter, if it runs with it: environments get moved and copied, and some folders have several Pythons."""
    program = Path(sys.executable).parent / PROGRAM
    try:
        first_line = program.read_bytes().partition(b"\n")[0]
        interpreter = Path(os.fsdecode(first_line.removeprefix(b"#!").strip()))
        is_ours = interpreter.parent == program.parent and os.path.samefile(interpreter, sys.executable)
    except OSError:
        return None
    return program if is_ours and os.access(program, os.X_OK) else None


__all__ = ["PROGRAM", "VARIABLES", "is_own", "main", "use_python", "without_archives"]
