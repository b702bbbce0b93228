"""Mounted file systems for tests. Mounting requires root; otherwise such tests are skipped."""

from __future__ import annotations

import os
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


@contextmanager
def on_too_small_device(path: Path, *options: str) -> Iterator[Path]:
    """ext4 of 200 MB, made with these options of mkfs, on a device that takes no more than 40 MB: that is `path / "device"`."""
    device, root = path / "device", path / "root"
    device.mkdir()
    root.mkdir()
    with mounted(device, "-t", "tmpfs", "-o", "size=40m", "tmpfs"):
        image = device / "image"
        image.touch()
        os.truncate(image, 200 << 20)
        made = subprocess.run(["mkfs.ext4", "-q", "-E", "nodiscard", *options, str(image)], capture_output=True, check=False)
        if made.returncode != 0:
            pytest.skip("no ext4 can be made")
        with mounted(root, "-o", "loop", str(image)):
            yield root
