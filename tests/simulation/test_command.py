"""`python -m simulation`: replays worlds, prints violations, and sets the exit status."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from simulation import __main__ as command
from simulation.report import CRASHES_UNDER_FAULTS, PRODUCE_RESPONSES_LOST, Report


@pytest.fixture(autouse=True)
def _logging_again() -> Any:
    yield
    logging.disable(logging.NOTSET)


ENOUGH = {"records sent": 150, "rows": 50, CRASHES_UNDER_FAULTS: 1, PRODUCE_RESPONSES_LOST: 1}


def report(seed: int, *violations: str, keeps_trace: bool = False, missing: Mapping[str, int] = MappingProxyType({})) -> Report:
    trace = (f"0 world: seed {seed}",) if keeps_trace else ()
    return Report(seed=seed, violations=violations, counters={**ENOUGH, **missing}, digest="", virtual_ms=5, trace=trace)


def test_world_without_violations_exits_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["3"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "1 worlds" in captured.err
    assert "0 failed, 0 lacked" in captured.err


def test_each_failing_seed_prints_a_replay_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "run", lambda seed, **_: report(seed, "lost", "and found") if seed == 8 else report(seed))
    assert command.main(["7", "--count", "3", "--processes", "1"]) == 1
    captured = capsys.readouterr()
    assert captured.out.splitlines() == ["seed 8: lost (and 1 more); replay: python -m simulation 8 --verbose"]
    assert "3 worlds" in captured.err
    assert "1 failed, 0 lacked" in captured.err


@pytest.mark.parametrize(
    ("counter", "count", "words"),
    [
        ("rows", 49, "199 records, not 200"),
        (CRASHES_UNDER_FAULTS, 0, "no crash of the broker"),
        (PRODUCE_RESPONSES_LOST, 0, "no lost response to a Produce"),
    ],
)
def test_world_without_required_events_fails(
    counter: str, count: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = {7: report(7, missing={counter: count}), 8: report(8, "lost", missing={counter: count}), 9: report(9)}
    monkeypatch.setattr(command, "run", lambda seed, **_: reports[seed])
    assert command.main(["7", "--processes", "1"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"seed 7: the world lacks required events: {words}; replay: python -m simulation 7 --verbose"]
    assert command.main(["7", "--count", "3", "--processes", "1"]) == 1
    captured = capsys.readouterr()
    assert [line.partition(";")[0] for line in captured.out.splitlines()][1:] == ["seed 8: lost"]
    assert "1 failed, 1 lacked" in captured.err


def test_verbose_prints_trace_and_violations(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "run", lambda seed, *, keeps_trace: report(seed, "lost", "found", keeps_trace=keeps_trace))
    assert command.main(["7", "--verbose"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["0 world: seed 7", "violated: lost", "violated: found"]


def test_report_does_not_depend_on_process_count(capsys: pytest.CaptureFixture[str]) -> None:
    captured = []
    for processes in ("1", "2"):
        assert command.main(["3", "--count", "2", "--processes", processes]) == 0
        captured.append(capsys.readouterr().err.partition("; ")[2])
    assert captured[0] == captured[1] != ""


def test_command_runs_in_several_processes() -> None:
    """As `make simulate` calls it: what spawned processes need is not in the program's own file."""
    command = [sys.executable, "-m", "simulation", "3", "--count", "2", "--processes", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "2 worlds" in done.stderr


def test_killed_command_leaves_no_process() -> None:
    command = [sys.executable, "-m", "simulation", "3", "--count", "1000", "--processes", "2", "--verbose"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline(), "the first world has been played"
        running.kill()
        running.communicate(timeout=60)  # All that have this output have ended.


def test_sigterm_ends_background_run_with_totals() -> None:
    """As by Ctrl-C, which a shell has such commands ignore."""
    command = f"trap '' INT; exec {sys.executable} -m simulation 3 --count 1000 --processes 1 --verbose"
    with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline(), "the first world has been played"
        running.terminate()
        _, captured = running.communicate(timeout=60)
    assert running.returncode == 130
    assert re.match(r"\d+ worlds in .*; 0 failed, 0 lacked ", captured), captured
