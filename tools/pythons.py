"""`make pythons`: runs tests with each Python from 3.11 on this machine, from the path and from pyenv.

    python -m tools.pythons --quick            # a run of pytest for each list of arguments, `--` between them, with each Python
    python -m tools.pythons --quick -- tests/spark/test_spark_write.py

The version of `.venv` is tested there; each other version has its own environment in `.interop/`, with the same locked dependencies. One
Python is chosen per minor version: first from the path, then the newest of pyenv, which builds without optimization.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools import setup_environment
from tools.setup_environment import PYTHON_MINIMUM, ROOT, VENV

OWN_VERSION = "{}.{}".format(*sys.version_info)
MINOR_MAX = 30
PROBE = "import sys, venv, ensurepip; print(*sys.version_info[:3], sys.implementation.name)"


def candidates(path: str, pyenv: Path) -> list[str]:
    """Paths of possible interpreters in order of preference; not all exist."""
    names = [f"python3.{minor}" for minor in range(PYTHON_MINIMUM[1], MINOR_MAX)]
    on_path = [str(Path(folder) / name) for folder in path.split(os.pathsep) if "shims" not in folder for name in names]
    built = [folder for folder in pyenv.glob("versions/3.*") if re.fullmatch(r"3(\.\d+){2}", folder.name)]
    newest_first = sorted(built, key=lambda folder: tuple(map(int, folder.name.split("."))), reverse=True)
    return on_path + [str(folder / "bin" / "python") for folder in newest_first]


def version(python: str) -> tuple[int, ...]:
    """The version of a CPython interpreter that can create environments; () if there is none."""
    try:
        probe = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    *numbers, implementation = probe.stdout.split() or ("",)
    return tuple(map(int, numbers)) if implementation == "cpython" else ()


def chosen(interpreters: Sequence[str]) -> dict[str, str]:
    """The chosen interpreter for each minor version, such as "3.12", in order of version."""
    found: dict[tuple[int, ...], str] = {}
    for python in interpreters:
        seen = version(python)[:2]
        if seen >= PYTHON_MINIMUM:
            found.setdefault(seen, python)
    return {".".join(map(str, minor)): found[minor] for minor in sorted(found)}


def runs(arguments: Sequence[str]) -> list[list[str]]:
    """The lists of arguments separated by `--`."""
    return [list(group) for is_dash, group in itertools.groupby(arguments, "--".__eq__) if not is_dash]


def main(arguments: Sequence[str]) -> int:
    failed = []
    for minor, python in chosen(candidates(os.environ.get("PATH", ""), Path.home() / ".pyenv")).items():
        environment = VENV if minor == OWN_VERSION else ROOT / ".interop" / f"python-{minor}"
        setup_environment.set_up(environment, python)
        tested = str(setup_environment.program(environment))
        print(f"Python {'.'.join(map(str, version(tested)))}", flush=True)
        for run in runs(arguments):
            command = [tested, "-m", "pytest", "-p", "no:cacheprovider", *run]
            if subprocess.run(command, cwd=ROOT).returncode:
                failed.append(f"Python {minor}: pytest {' '.join(run)}")
    print("\n".join(["failed:", *failed]) if failed else "passed with each")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
