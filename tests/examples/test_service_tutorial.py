"""docs/tutorials/service.md: each command prints what the page shows, with a broker on a free port."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tutorials" / "service.md").read_text(encoding="utf-8")
INTERRUPT = "^C"
LIMIT_S = 60


class Step(NamedTuple):
    """A command, and the lines of output below it."""

    command: str
    output: list[str]


def steps() -> list[Step]:
    found: list[Step] = []
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Step(line[2:], []))
            else:
                found[-1].output.append(line)
    return found


def matches(expected: str, printed: str) -> bool:
    """`...` stands for any text."""
    return re.fullmatch(".*".join(map(re.escape, expected.split("..."))), printed) is not None


class Terminal:
    """Runs commands of the page in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"}

    def start(self, command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-c", command if "|" in command else f"exec env {command}"],
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, step: Step) -> list[str]:
        """The lines that a command prints; it gets SIGINT where the page has `^C`."""
        process = self.start(step.command)
        assert process.stdout is not None
        printed: list[str] = []
        limit = threading.Timer(LIMIT_S, process.terminate)
        limit.start()
        if INTERRUPT in step.output:
            printed += [process.stdout.readline().rstrip("\n") for _ in range(step.output.index(INTERRUPT))]
            printed.append(INTERRUPT)
            process.send_signal(signal.SIGINT)
        printed += process.communicate()[0].splitlines()
        limit.cancel()
        if process.returncode == -signal.SIGKILL:
            printed.append("Killed")  # An interactive shell prints it.
        return printed


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    for name, text in re.findall(r"Save .*? as (\w+\.\w+):\n\n```\w+\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / name).write_text(text, encoding="utf-8")
    terminal = Terminal(tmp_path)
    first = steps()[0]
    broker = terminal.start(f"{first.command} --listen 127.0.0.1:0")
    assert broker.stdout is not None
    ready = broker.stdout.readline().strip()
    assert ready.startswith(first.output[0].rpartition(":")[0])
    terminal.environment["CHAFFINCH_BOOTSTRAP_SERVER"] = ready.partition("=")[2]
    yield terminal
    broker.send_signal(signal.SIGINT)
    broker.communicate(timeout=LIMIT_S)


def test_commands_print_what_the_page_shows(terminal: Terminal) -> None:
    for step in steps()[1:]:
        printed = terminal.run(step)
        assert len(printed) == len(step.output), (step, printed)
        assert all(map(matches, step.output, printed)), (step, printed)


@pytest.mark.parametrize(
    ("expected", "printed", "is_match"), [("a ... c", "a b c", True), ("a ... c", "a b", False), ("a.c", "abc", False)]
)
def test_dots_stand_for_any_text(expected: str, printed: str, is_match: bool) -> None:
    assert matches(expected, printed) is is_match
