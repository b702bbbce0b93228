"""Where the judges' own parts are kept, and how a missing tool of the machine is got."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.interop.processes import NotRun, run

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".interop"
"""Git-ignored: jars, a Python environment, Node modules, compiled programs. `make clean` removes it."""

INSTALL_SECONDS = 900.0


def system_package(program: str, package: str) -> str:
    """The path of `program`, from Debian's `package` where it is not there. Only root can install. Raises NotRun."""
    found = shutil.which(program)
    if found is not None:
        return found
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise NotRun(f"no {program} on this machine: install it, on Debian with `apt-get install {package}`")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-qq"], timeout_s=INSTALL_SECONDS, environment=quiet)
    done = run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", package], timeout_s=INSTALL_SECONDS, environment=quiet)
    found = shutil.which(program)
    if found is None:
        raise NotRun(f"no {program} on this machine, and `apt-get install {package}` failed: {done.errors.strip()[-300:]}")
    return found
