"""File systems of a test's own. Root may mount them; where nobody may, what needs one is skipped."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(path: Path, *arguments: str) -> Iterator[Path]:
    """`mount` with these arguments, on `path`."""
    done = subprocess.run(["mount", *arguments, str(path)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"what a real disk does is not tried: no right to mount one, which root has ({done.stderr.strip()})")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
