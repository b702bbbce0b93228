"""The judges' processes: what they leave behind, which is nothing."""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

import pytest

from tests.interop.processes import DidNotStart, Server, run

TIMEOUT_S = 60.0
SAYS_AND_STAYS = "import os, signal; print('ready', os.getpid(), flush=True); signal.pause()"
FORKS_AND_STAYS = ["sh", "-c", "sleep 600 >&- 2>&- & echo $! $$; wait"]


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def ends(pid: int) -> bool:
    """Wait until it does: a process that was killed has closed its pipes a moment before."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], TIMEOUT_S)[0])
    finally:
        os.close(process)


def test_finished_command_reports_its_outcome() -> None:
    outcome = run(python("import sys; print(input()); sys.exit('no')"), timeout_s=TIMEOUT_S, stdin="a line\n")
    assert (outcome.exit_status, outcome.output, outcome.errors) == (1, "a line\n", "no\n")
    assert not outcome.succeeded


def test_hanging_command_is_killed_with_its_children() -> None:
    outcome = run(FORKS_AND_STAYS, timeout_s=1.0)
    assert outcome.exit_status is None
    assert "killed after 1 s" in outcome.errors
    assert all(ends(pid) for pid in map(int, outcome.output.split()))
    assert len(outcome.output.split()) == 2


def test_server_is_ready_after_its_line_and_is_stopped(tmp_path: Path) -> None:
    with Server(python(SAYS_AND_STAYS), ready_text="ready", log=tmp_path / "log", timeout_s=TIMEOUT_S) as server:
        assert server.ready_line == f"ready {server.process.pid}"
        os.kill(server.process.pid, 0)
    assert server.process.returncode is not None
    assert (tmp_path / "log").read_text() == f"{server.ready_line}\n"


@pytest.mark.parametrize(("text", "timeout_s"), [("print('no such folder')", TIMEOUT_S), ("import signal; signal.pause()", 0.2)])
def test_server_that_is_never_ready_raises_with_its_log(tmp_path: Path, text: str, timeout_s: float) -> None:
    with pytest.raises(DidNotStart) as caught:
        Server(python(text), ready_text="ready", log=tmp_path / "log", timeout_s=timeout_s)
    assert (tmp_path / "log").read_text().strip() in str(caught.value)
