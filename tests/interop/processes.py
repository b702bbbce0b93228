"""Processes that leave nothing behind: each in a group of its own, with a time limit, ended with its parent.

`run` for a command that ends by itself, `Server` for one that says in a line of its output that it is ready and then stays.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

STOP_SECONDS = 20.0
LOG_TAIL_LINES = 15


class NotRun(Exception):
    """This machine lacks a tool, and it cannot be installed here. The text says which, and why."""


class DidNotStart(Exception):
    """A server ended, or stayed silent, before it was ready. The text has the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a command ended; `exit_status` is None when its time was over."""

    exit_status: int | None
    output: str
    errors: str

    @property
    def succeeded(self) -> bool:
        return self.exit_status == 0


def run(
    command: Sequence[str | Path],
    *,
    timeout_s: float,
    stdin: str = "",
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Outcome:
    """Run a command to its end, or kill it and all its children after `timeout_s`."""
    process = _start(command, environment, folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        try:
            output, errors = process.communicate(stdin, timeout=timeout_s)
            return Outcome(exit_status=process.returncode, output=output, errors=errors)
        except subprocess.TimeoutExpired:
            _kill(process)
            output, errors = process.communicate()
            return Outcome(exit_status=None, output=output, errors=f"{errors}\nkilled after {timeout_s:g} s")
        finally:
            _kill(process)


class Server:
    """A process that prints `ready_text` within a line once it accepts; that line is `ready_line`. Everything it prints goes to `log`."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        ready_text: str,
        log: Path,
        timeout_s: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log = log
        self.ready_line = ""
        self._ready_text = ready_text
        self._heard = threading.Event()
        self.process = _start(command, environment, None, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self._listener = threading.Thread(target=self._listen, name=f"log of {log.name}", daemon=True)
        self._listener.start()
        if not self._heard.wait(timeout_s) or not self.ready_line:
            self.stop()
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
            raise DidNotStart(f"{command[0]} was not ready within {timeout_s:g} s; the end of its log:\n{tail}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """SIGTERM, and after `STOP_SECONDS` SIGKILL, for the process and its children."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS)
        _kill(self.process)
        self.process.wait()
        self._listener.join()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines, self.log.open("w") as log:
            for line in lines:
                log.write(line)
                log.flush()
                if not self.ready_line and self._ready_text in line:
                    self.ready_line = line.rstrip("\n")
                    self._heard.set()
        self._heard.set()


def _start(
    command: Sequence[str | Path], environment: Mapping[str, str] | None, folder: Path | None, **streams: int
) -> subprocess.Popen[str]:
    # With setpriv (of every Linux) the child also dies when this process is killed: a forgotten Java machine holds a gigabyte.
    survivor_guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    process: subprocess.Popen[str] = subprocess.Popen(
        [*survivor_guard, *map(str, command)],
        text=True,
        errors="replace",
        cwd=folder,
        env=None if environment is None else {**os.environ, **environment},
        start_new_session=True,
        **streams,  # type: ignore[call-overload]
    )
    return process


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill what is left of the process' group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
