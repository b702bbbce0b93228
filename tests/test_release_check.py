"""`make release-check`: what its steps find."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import release_check
from tools.release_check import CheckFailed

ROOT = Path(__file__).resolve().parents[1]


def test_equal_contents_pass() -> None:
    release_check.check_contents(["chaffinch/a.py", "chaffinch-0.1.0.dist-info/METADATA"], {"chaffinch/a.py"})


@pytest.mark.parametrize(
    ("names", "expected", "said"),
    [
        (["chaffinch/a.py"], {"chaffinch/a.py", "chaffinch/b.py"}, "lacks: chaffinch/b.py"),
        (["chaffinch/a.py", "tests/x.py"], {"chaffinch/a.py"}, "although git does not: tests/x.py"),
    ],
)
def test_differing_contents_are_named(names: list[str], expected: set[str], said: str) -> None:
    with pytest.raises(CheckFailed, match=re.escape(said)):
        release_check.check_contents(names, expected)


def test_readme_has_python_blocks() -> None:
    blocks = release_check.readme_blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    assert blocks
    for block in blocks:
        compile(block, "README.md", "exec")


def test_constraints_hold_every_package_of_the_lock() -> None:
    lock = release_check.LOCK.read_text(encoding="utf-8")
    found = release_check.constraints(lock).splitlines()
    assert len(found) == len(re.findall(r"^[a-z0-9].*==", lock, re.MULTILINE))
    assert not any("\\" in line or "--hash" in line for line in found)


def test_failed_command_shows_its_last_lines() -> None:
    with pytest.raises(CheckFailed, match="status 3"):
        release_check.run(["sh", "-c", "exit 3"])
