"""Python program for the processes of a local Spark: the driver's interpreter, with PySpark imported from the driver's installation.

Spark puts its `python/lib/pyspark.zip` first on the path of every Python process that it starts. PySpark in an archive without bytecode is
compiled again in each process, which takes 0.9 CPU-seconds instead of 0.2, and the first write of a session starts four.

`chaffinch-spark-python` replaces `python` for these processes. `session` sets it if Spark runs on the driver's machine only, no Python
is configured, and the program is installed next to the interpreter. Spark forks from it, so it imports little that Spark does not import
anyway: the modules that `import chaffinch.spark` loads.
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
"""Variables in which Spark finds the Python of its processes: for the user's functions, and for planning and commits."""


def main() -> None:
    """Run `-m MODULE ...` like `python`, but with the installed PySpark in place of its archive. Other arguments run `python` itself."""
    arguments = sys.argv[1:]
    if len(arguments) < 2 or arguments[0] != "-m":
        os.execv(sys.executable, [sys.executable, *arguments])
    if not sys.flags.safe_path:
        sys.path[:1] = _working_directory()
    sys.path[:] = without_archives(sys.path)
    sys.argv[:] = arguments[1:]
    runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)


def _working_directory() -> list[str]:
    """The path entry that `-m` adds first: none if the directory is deleted."""
    try:
        return [os.getcwd()]
    except OSError:
        return []


def without_archives(path: Sequence[str]) -> list[str]:
    """The path without the archives of Spark, if the same PySpark, and py4j, are found without them; otherwise unchanged.

    The archives cannot move to the end of the path: since Python 3.13 `pkgutil.iter_modules`, with which Spark finds data sources,
    raises KeyError for an archive from which nothing was imported after `importlib.invalidate_caches`, which Spark calls first.
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
    """Set the Python of Spark processes in the environment, unless it is set. A value from an earlier session is overwritten."""
    program = _program()
    ours = (None, "" if program is None else str(program))
    if program is not None and is_one_machine and all(os.environ.get(name) in ours for name in VARIABLES):
        os.environ.update(dict.fromkeys(VARIABLES, str(program)))
        return
    for name in VARIABLES:
        if os.environ.get(name) in ours:
            os.environ[name] = sys.executable


def is_own(python: str) -> bool:
    """Whether `python` has the same packages as this process: it is this interpreter, or its program `chaffinch-spark-python`."""
    return python in (sys.executable, str(_program()))


def _program() -> Path | None:
    """The program next to this interpreter, if it runs with it: environments get moved or copied, and a folder can have several Pythons."""
    program = Path(sys.executable).parent / PROGRAM
    try:
        first_line = program.read_bytes().partition(b"\n")[0]
        interpreter = Path(os.fsdecode(first_line.removeprefix(b"#!").strip()))
        is_ours = interpreter.parent == program.parent and os.path.samefile(interpreter, sys.executable)
    except OSError:
        return None
    return program if is_ours and os.access(program, os.X_OK) else None


__all__ = ["PROGRAM", "VARIABLES", "is_own", "main", "use_python", "without_archives"]
