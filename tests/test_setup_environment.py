"""Which Python `.venv` is made of: the one that `make` found, or the system's where that one was built without optimization."""

import sys
import sysconfig
from pathlib import Path

import pytest

from tools import setup_environment

BUILT = "'--prefix=/home/user/.pyenv/versions/3.11.7'"
OPTIMIZED = f"{BUILT} '--enable-optimizations' '--with-lto'"


@pytest.mark.parametrize(
    ("configured", "system_fits", "is_chosen"),
    [
        (BUILT, True, True),
        (BUILT, False, False),
        (OPTIMIZED, True, False),
        (None, True, True),  # Not said.
    ],
)
def test_unoptimized_python_is_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, configured: str | None, system_fits: bool, is_chosen: bool
) -> None:
    system = tmp_path / "python3"
    system.write_text(f"#!/bin/sh\nexit {0 if system_fits else 1}\n")
    system.chmod(0o755)
    monkeypatch.setattr(setup_environment, "SYSTEM_PYTHON", str(system))
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: {"CONFIG_ARGS": configured}[name])
    assert setup_environment.fastest_python() == (str(system) if is_chosen else sys.executable)


def test_system_python_without_alternative_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    system = tmp_path / "python3"
    system.symlink_to(sys.executable)
    monkeypatch.setattr(setup_environment, "SYSTEM_PYTHON", str(system))
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: BUILT)
    assert setup_environment.fastest_python() == sys.executable
    assert capsys.readouterr().out == ""


def test_environment_of_another_python_is_recreated(monkeypatch: pytest.MonkeyPatch) -> None:
    assert setup_environment.is_usable(sys.executable)
    assert not setup_environment.is_usable("/nowhere/python3")
    monkeypatch.setattr(sys, "version_info", (3, 99))
    assert not setup_environment.is_usable(sys.executable), "what is locked may not be there for another version"
