"""A process with a Spark of its own, as a rule that of a streaming query: started, watched, held at steps of its commits, killed."""

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
from chaffinch.spark.sink.pause_at_step import FILE_VARIABLE, STEP_VARIABLE, resume_path
from tests.soak.spark_query import Variant, gate_name, opened_path

ROOT = Path(__file__).parents[2]
WAIT_S = 600.0
"""For any line of the process: on a loaded machine Spark alone takes minutes to start."""
DAEMON = "pyspark.daemon"
EXECUTOR = "CoarseGrainedExecutorBackend"


class HeldProcess:
    """A process that starts a Spark of its own, is held where its commits pause, and reports that through a FIFO in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._own = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._events = folder / "events"
        self._text = b""
        self.lines: list[str] = []
        """All lines of the process in this life."""
        folder.mkdir(parents=True, exist_ok=True)
        os.mkfifo(self._events)
        # For reading and writing, so that it has no end of file without a writer.
        self._reading = os.open(self._events, os.O_RDWR | os.O_NONBLOCK)

    def launch(self, command: Sequence[str], pauses: Sequence[tuple[Step, int]] = ()) -> None:
        """A new life, whose commits wait after these steps of these batches; see `pause_at_step.py`."""
        self.lines.clear()
        named = ",".join(f"{step.value}@{batch_id}" for step, batch_id in pauses)
        environment = {**os.environ, STEP_VARIABLE: named, FILE_VARIABLE: str(self._events)}
        with (self._own / "output").open("ab") as output:
            self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True)

    def wait_for(self, beginning: str) -> str:
        """The rest of the next line that begins so. Raises RuntimeError with the lines so far if the process ends or time is up."""
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
                ended = f"exit status {self._process.returncode}"
                raise RuntimeError(f"{beginning!r} was not reported, but {self.lines}; {ended}; output: {self.output[-3000:]}")

    def wait_at(self, step: Step, batch_id: int) -> int:
        """The process that stands at a step."""
        return int(self.wait_for(f"{step.value}@{batch_id}"))

    def go(self, step: Step, batch_id: int) -> None:
        """No process waits at this step any more."""
        Path(resume_path(str(self._events), step, batch_id)).touch()

    def wait(self) -> int:
        """The exit status, when the process has ended by itself."""
        assert self._process is not None
        return self._process.wait(WAIT_S)

    def kill(self) -> None:
        """SIGKILL to the driver and its JVM; Python workers end with it."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.kill()
        os.close(self._reading)
        self._events.unlink()

    @property
    def output(self) -> str:
        return (self._own / "output").read_text(errors="replace")

    def below(self) -> dict[int, int]:
        """pid -> its parent's, of all processes beneath this one."""
        assert self._process is not None
        return processes_below(self._process.pid)


class QueryProcess(HeldProcess):
    """A streaming query. `folder` is the query's, for all its processes and lives: its input and its checkpoint lie there.

    `name`: of this process among those of the query; `checkpoint`: another one than the query's own.
    """

    def __init__(
        self, folder: Path, options: Mapping[str, str], way: Variant, *, name: str = "driver", checkpoint: Path | None = None
    ) -> None:
        super().__init__(folder / name)
        self._input, self._checkpoint = folder / "input", checkpoint or folder / "checkpoint"
        self._options, self._way = dict(options), way
        self._input.mkdir(exist_ok=True)

    def add_input(self, number: int, rows: Sequence[Mapping[str, object]]) -> None:
        """The rows of one micro-batch. Spark takes files in the order of their modification times."""
        path = self._input / f"{number:04d}.json"
        path.write_text("\n".join(map(json.dumps, rows)))
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))

    def start(self, pauses: Sequence[tuple[Step, int]] = (), *, has_gates: bool = False) -> None:
        """A new life, whose commits wait after these steps of these batches."""
        plan = {
            "input": str(self._input), "checkpoint": str(self._checkpoint), "options": self._options, "has_gates": has_gates,
            "way": self._way.planned,
        }  # fmt: skip
        (self._own / "query.json").write_text(json.dumps(plan))
        self.launch([sys.executable, "-m", "tests.soak.spark_query", str(self._own)], pauses)

    def wait_at_gate(self, batch_id: int) -> int:
        """The Python worker whose task has come to the gate in this batch."""
        return int(self.wait_for(gate_name(batch_id)))

    def open_gate(self, batch_id: int) -> None:
        opened_path(self._own, gate_name(batch_id)).touch()

    def ask_to_stop(self) -> None:
        (self._own / "stop").touch()

    def python_workers(self) -> list[int]:
        """All Spark Python workers below this process: children of its daemons."""
        return [pid for pid, parent in self.below().items() if has_in_command(pid, DAEMON) and has_in_command(parent, DAEMON)]

    def executors(self) -> list[int]:
        """The Java machines of executors beneath this process; a shell or two may stand in between."""
        return [pid for pid in self.below() if has_in_command(pid, EXECUTOR) and has_in_command(pid, "java")]

    def executor_of(self, worker: int) -> int:
        """The one whose task this Python worker runs."""
        parents = self.below()
        (found,) = (pid for pid in self.executors() if _is_below(worker, pid, parents))
        return found


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


def has_in_command(pid: int, text: str) -> bool:
    """Whether it stands in a process's command line."""
    try:
        return text.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
