"""Fixture: a real disk that is full."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.mounts import mounted


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Of 200 KiB."""
    with mounted(tmp_path, "-t", "tmpfs", "-o", "size=200k", "tmpfs") as path:
        yield path
