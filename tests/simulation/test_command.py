"""`python -m simulation`: replays, tells, and says by its exit status whether promises were kept."""

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
from simulation.report import CRASHES_UNDER_WAY, PRODUCE_ANSWERS_LOST, Report


@pytest.fixture(autouse=True)
def _logging_again() -> Any:
    yield
    logging.disable(logging.NOTSET)


ENOUGH = {"records sent": 150, "rows": 50, CRASHES_UNDER_WAY: 1, PRODUCE_ANSWERS_LOST: 1}


def report(seed: int, *violations: str, keeps_story: bool = False, lacking: Mapping[str, int] = MappingProxyType({})) -> Report:
    story = (f"0 world: seed {seed}",) if keeps_story else ()
    return Report(seed=seed, violations=violations, counters={**ENOUGH, **lacking}, digest="", virtual_ms=5, story=story)


def test_a_world_that_keeps_its_promises(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["3"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert "1 worlds" in said.err
    assert "0 failed, 0 lacked" in said.err


def test_one_line_per_failing_seed_says_how_to_replay(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "run", lambda seed, **_: report(seed, "lost", "and found") if seed == 8 else report(seed))
    assert command.main(["7", "--count", "3", "--processes", "1"]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines() == ["seed 8: lost (and 1 more); replay: python -m simulation 8 --verbose"]
    assert "3 worlds" in said.err
    assert "1 failed, 0 lacked" in said.err


@pytest.mark.parametrize(
    ("counter", "count", "words"),
    [
        ("rows", 49, "199 records, not 200"),
        (CRASHES_UNDER_WAY, 0, "no crash of the broker"),
        (PRODUCE_ANSWERS_LOST, 0, "no lost answer to a Produce"),
    ],
)
def test_a_world_that_lacks_what_each_must_have_has_failed(
    counter: str, count: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = {7: report(7, lacking={counter: count}), 8: report(8, "lost", lacking={counter: count}), 9: report(9)}
    monkeypatch.setattr(command, "run", lambda seed, **_: reports[seed])
    assert command.main(["7", "--processes", "1"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"seed 7: the world lacks what each must have: {words}; replay: python -m simulation 7 --verbose"]
    assert command.main(["7", "--count", "3", "--processes", "1"]) == 1
    said = capsys.readouterr()
    assert [line.partition(";")[0] for line in said.out.splitlines()][1:] == ["seed 8: lost"]
    assert "1 failed, 1 lacked" in said.err


def test_verbose_tells_the_story_and_every_violation(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "run", lambda seed, *, keeps_story: report(seed, "lost", "found", keeps_story=keeps_story))
    assert command.main(["7", "--verbose"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["0 world: seed 7", "violated: lost", "violated: found"]


def test_the_report_is_the_same_from_several_processes(capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for processes in ("1", "2"):
        assert command.main(["3", "--count", "2", "--processes", processes]) == 0
        said.append(capsys.readouterr().err.partition("; ")[2])
    assert said[0] == said[1] != ""


def test_the_command_itself_plays_in_several_processes() -> None:
    """As `make simulate` calls it: what spawned processes need is not in the program's own file."""
    command = [sys.executable, "-m", "simulation", "3", "--count", "2", "--processes", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "2 worlds" in done.stderr


def test_no_process_stays_when_the_command_is_killed() -> None:
    command = [sys.executable, "-m", "simulation", "3", "--count", "1000", "--processes", "2", "--verbose"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline(), "the first world has been played"
        running.kill()
        running.communicate(timeout=60)  # All that have this output have ended.


def test_what_runs_in_the_background_is_ended_by_sigterm_and_says_how_far_it_came() -> None:
    """As by Ctrl-C, which a shell has such commands ignore."""
    command = f"trap '' INT; exec {sys.executable} -m simulation 3 --count 1000 --processes 1 --verbose"
    with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline(), "the first world has been played"
        running.terminate()
        _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert re.match(r"\d+ worlds in .*; 0 failed, 0 lacked ", said), said
