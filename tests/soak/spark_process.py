"""The process of a streaming query: started, watched, held at steps of its commits, killed."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from chaffinch.spark.commit.operations import Step
from chaffinch.spark.sink.pause import FILE_VARIABLE, STEP_VARIABLE, go_path

ROOT = Path(__file__).parents[2]
WAIT_S = 600.0
"""For anything the process tells: on a loaded machine Spark alone takes minutes to start."""
DAEMON = "pyspark.daemon"


class QueryProcess:
    """See the module. `folder` is the query's, for all its processes and lives: its input and its checkpoint lie there.

    `name`: of this process among those of the query; `checkpoint`: another one than the query's own.
    """

    def __init__(self, folder: Path, options: Mapping[str, str], *, name: str = "driver", checkpoint: Path | None = None) -> None:
        self._input, self._checkpoint = folder / "input", checkpoint or folder / "checkpoint"
        self._own = folder / name
        self._options = dict(options)
        self._process: subprocess.Popen[bytes] | None = None
        self._told = self._own / "told"
        self._text = b""
        self.lines: list[str] = []
        """All that the process has told in this life."""
        for place in (self._input, self._own):
            place.mkdir(parents=True, exist_ok=True)
        os.mkfifo(self._told)
        # For reading and writing, so that it has no end while nobody writes.
        self._reading = os.open(self._told, os.O_RDWR | os.O_NONBLOCK)

    def add_input(self, number: int, rows: Sequence[Mapping[str, object]]) -> None:
        """The rows of one micro-batch. Spark takes files in the order of their modification times."""
        path = self._input / f"{number:04d}.json"
        path.write_text("\n".join(map(json.dumps, rows)))
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))

    def start(self, pauses: Sequence[tuple[Step, int]] = (), *, has_gate: bool = False) -> None:
        """A new life, whose commits wait after these steps of these batches; see `pause.py`."""
        self.lines.clear()
        (self._own / "gate.go").unlink(missing_ok=True)
        plan = {"input": str(self._input), "checkpoint": str(self._checkpoint), "options": self._options, "has_gate": has_gate}
        (self._own / "query.json").write_text(json.dumps(plan))
        named = ",".join(f"{step.value}@{batch_id}" for step, batch_id in pauses)
        environment = {**os.environ, STEP_VARIABLE: named, FILE_VARIABLE: str(self._told)}
        with (self._own / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.spark_query", str(self._own)],
                cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    def wait_for(self, beginning: str) -> str:
        """The rest of the next line that begins so. Raises RuntimeError with what was told instead, when the process ends or time does."""
        deadline_s = time.monotonic() + WAIT_S
        while True:
            while b"\n" in self._text:
                line, _, self._text = self._text.partition(b"\n")
                self.lines.append(line.decode())
                if self.lines[-1].startswith(beginning):
                    return self.lines[-1].removeprefix(beginning).strip()
            assert self._process is not None
            is_over = self._process.poll() is not None or time.monotonic() > deadline_s
            ready, _, _ = select.select([self._reading], [], [], 0 if is_over else 1.0)
            if ready:
                self._text += os.read(self._reading, 1 << 16)
            elif is_over:
                raise RuntimeError(f"{beginning!r} was not told, but {self.lines}; output: {self.output[-3000:]}")

    def wait_at(self, step: Step, batch_id: int) -> int:
        """The process that stands at a step."""
        return int(self.wait_for(f"{step.value}@{batch_id}"))

    def go(self, step: Step, batch_id: int) -> None:
        """Nobody waits at this step any more."""
        Path(go_path(str(self._told), step, batch_id)).touch()

    def open_gate(self) -> None:
        (self._own / "gate.go").touch()

    def ask_to_stop(self) -> None:
        (self._own / "stop").touch()

    def kill(self) -> None:
        """SIGKILL to the driver and its JVM; Python workers end with it."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.kill()
        os.close(self._reading)
        self._told.unlink()

    @property
    def output(self) -> str:
        return (self._own / "output").read_text(errors="replace")

    def python_workers(self) -> list[int]:
        """All of Spark's Python workers beneath this process: children of its daemons."""
        assert self._process is not None
        return [pid for pid, parent in processes_below(self._process.pid).items() if _is_daemon(pid) and _is_daemon(parent)]


def processes_below(ancestor: int) -> dict[int, int]:
    """pid -> its parent's, of all processes beneath one."""
    parents = {int(path.name): _parent(path) for path in Path("/proc").iterdir() if path.name.isdigit()}
    return {pid: parent for pid, parent in parents.items() if pid != ancestor and _is_below(pid, ancestor, parents)}


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _is_below(pid: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    while pid and pid != ancestor:
        pid = parents.get(pid, 0)
    return pid == ancestor


def _is_daemon(pid: int) -> bool:
    try:
        return DAEMON.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
