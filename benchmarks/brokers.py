"""Broker processes of benchmarks, with their processor time and memory."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from chaffinch.broker.connection_manager import COMPILED_LOOPS_LOADED

CLOCK_ID_SHIFT, CPUCLOCK_SCHED = 3, 2  # linux/posix-timers.h: the clock id of a process.
QUIET_S, QUIET_CPU_S, QUIET_CHECKS_MAX = 0.05, 0.005, 200
"""A broker is quiet if it used less than `QUIET_CPU_S` of processor time within `QUIET_S`, a tenth of one processor."""


@dataclass(frozen=True, slots=True)
class BrokerProcess:
    """A running broker. `seconds_to_ready`: from its start until it accepts connections. `log`: its log file, if it is one of ours."""

    name: str
    pid: int
    bootstrap_servers: str
    seconds_to_ready: float
    log: Path | None = None

    @property
    def is_at_full_speed(self) -> bool:
        """Whether it has loaded the compiled loops, which it does with the first records. True for a broker without a log."""
        return self.log is None or COMPILED_LOOPS_LOADED in self.log.read_text()

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.bootstrap_servers.split(",")[0].rpartition(":")
        return host, int(port)

    @property
    def cpu_seconds(self) -> float:
        """User and system time of the process, from its CPU clock (clock_getcpuclockid(3)); /proc counts in hundredths of a second only."""
        return time.clock_gettime(~self.pid << CLOCK_ID_SHIFT | CPUCLOCK_SCHED)

    def wait_until_quiet(self) -> None:
        """Wait until the broker is quiet, so that work after a response (such as freeing deleted data) is not measured in the next load."""
        for _ in range(QUIET_CHECKS_MAX):
            cpu = self.cpu_seconds
            time.sleep(QUIET_S)
            if self.cpu_seconds - cpu < QUIET_CPU_S:
                return

    def has_open(self, topic: str) -> bool:
        """Whether it still has open files of this topic, deleted or not."""
        for descriptor in Path(f"/proc/{self.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # Closed in the meantime.
                if descriptor.readlink().parent.name.startswith(f"{topic}-"):
                    return True
        return False

    @property
    def resident_mb(self) -> float:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


@contextmanager
def chaffinch_broker(data_dir: str, topics: Sequence[str] = (), config: Sequence[str] = ()) -> Iterator[BrokerProcess]:
    """Run `chaffinch broker` on a free port. `topics` and `config` are the values of its options."""
    command = [str(Path(sys.executable).with_name("chaffinch")), "broker", "--listen", "127.0.0.1:0", "--data-dir", data_dir]
    for topic in topics:
        command += ["--topic", topic]
    for option in config:
        command += ["--config", option]
    started = time.perf_counter()
    with tempfile.NamedTemporaryFile("r", prefix="chaffinch-log-") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            servers = process.stdout.readline().strip().partition("=")[2]
            if not servers:
                raise RuntimeError(f"the broker did not start: {Path(log.name).read_text()}")
            yield BrokerProcess("chaffinch", process.pid, servers, time.perf_counter() - started, Path(log.name))
        finally:
            process.terminate()
            process.wait()
