"""`make release-check`: builds wheel and sdist, checks them, and runs README's examples from a fresh environment.

1. The wheel holds the files of `src/` in git, its metadata, and nothing else.
2. `twine check --strict` accepts both archives: the README renders on a package index.
3. The wheel installs into an empty environment with the locked versions of its dependencies.
4. The Python blocks of the README run there, outside the checkout.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parents[1]
LOCK: Final = ROOT / "requirements.lock"
EXTRAS: Final = "broker,spark"
_BLOCK: Final = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_PINNED: Final = re.compile(r"^([a-z0-9][a-z0-9._-]*==\S+)((?: ;[^\\]*)?)", re.MULTILINE)


class CheckFailed(Exception):
    """A step of the check failed; the text says what to mend."""


def run(command: Sequence[str | Path], cwd: Path = ROOT) -> str:
    """Standard output of a command. Raises CheckFailed with its last lines."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise CheckFailed(f"{' '.join(map(str, command))} failed with status {done.returncode}:\n{last}")
    return done.stdout


def tracked_files() -> set[str]:
    """The files of `src/` in git, as the wheel names them."""
    return {name.removeprefix("src/") for name in run(["git", "ls-files", "src"]).splitlines()}


def check_contents(names: Iterable[str], expected: set[str]) -> None:
    """Compare the wheel's files with those expected. Raises CheckFailed."""
    found = {name for name in names if ".dist-info/" not in name}
    for what, differing in (("lacks", expected - found), ("holds, although git does not", found - expected)):
        if differing:
            raise CheckFailed(f"the wheel {what}: {', '.join(sorted(differing)[:10])} ({len(differing)} files)")


def readme_blocks(text: str) -> list[str]:
    """The Python blocks of a document."""
    return _BLOCK.findall(text)


def constraints(lock: str) -> str:
    """The versions of a lock file, without hashes, as pip takes them for constraints."""
    return "\n".join(pinned + marker.rstrip() for pinned, marker in _PINNED.findall(lock)) + "\n"


def check(folder: Path) -> None:
    """All steps, with their files below `folder`. Raises CheckFailed."""
    python = Path(sys.executable)
    print("building wheel and sdist")
    run([python, "-m", "hatchling", "build", "-d", folder / "dist"])
    wheel, sdist = next((folder / "dist").glob("*.whl")), next((folder / "dist").glob("*.tar.gz"))
    with zipfile.ZipFile(wheel) as archive:
        check_contents(archive.namelist(), tracked_files())
    print(f"{wheel.name} holds the files of src/; checking metadata and README")
    run([python, "-m", "twine", "check", "--strict", wheel, sdist])
    print("installing into an empty environment")
    venv.create(folder / "env", with_pip=True)
    fresh = folder / "env" / "bin" / "python"
    (folder / "constraints.txt").write_text(constraints(LOCK.read_text(encoding="utf-8")), encoding="utf-8")
    run([fresh, "-m", "pip", "install", "--quiet", "-c", folder / "constraints.txt", f"{wheel}[{EXTRAS}]"])
    blocks = readme_blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    for number, block in enumerate(blocks, 1):
        print(f"running Python block {number} of {len(blocks)} of the README")
        script = folder / f"block_{number}.py"
        script.write_text(block, encoding="utf-8")
        run([fresh, script], cwd=folder)


def main() -> int:
    """The exit status."""
    with tempfile.TemporaryDirectory(prefix="chaffinch-release-") as folder:
        try:
            check(Path(folder))
        except CheckFailed as failed:
            print(f"release-check: {failed}", file=sys.stderr)
            return 1
    print("wheel and sdist can be released")
    return 0


if __name__ == "__main__":
    sys.exit(main())
