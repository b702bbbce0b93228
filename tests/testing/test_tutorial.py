"""`docs/tutorials/testing.md`: its files and commands, run in a project of their own, have the documented outcomes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

PAGE = (Path(__file__).parents[2] / "docs" / "tutorials" / "testing.md").read_text(encoding="utf-8")
FILE = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
RUN = re.compile(r"^```console\n\$ pytest ([^\n]*)\n.*?(\d+) passed.*?^```$", re.DOTALL | re.MULTILINE)
FIRST = re.compile(r"^```python\n(def test_.*?)^```$", re.DOTALL | re.MULTILINE)


def test_tutorial_has_the_documented_outcomes(pytester: pytest.Pytester) -> None:
    files = {name.removesuffix(".py"): body for name, body in FILE.findall(PAGE)}
    assert len(files) == 7
    files["test_first"] = FIRST.findall(PAGE)[0]
    pytester.makepyfile(**files)
    runs = RUN.findall(PAGE)
    assert len(runs) == 5
    everything, passed = runs[-1]
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-W", "ignore", *everything.split())
    result.assert_outcomes(passed=int(passed) + 1)
    of_single_files = {arguments.split()[0]: int(passed) for arguments, passed in runs[:-1]}
    for name, expected in of_single_files.items():
        assert len(re.findall(r"^def test_", files[name.removesuffix(".py")], re.MULTILINE)) == expected
