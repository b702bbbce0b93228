"""A client in a process of its own: how the conductor starts, ends and watches one, and how it records the outcomes it got.

A journal is a file of JSON lines. Each line is one write, so what was written before a SIGKILL stays; a torn last line is left out.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PLAIN, COMPACTED, OUTPUT = "plain", "compacted", "output"
PARTITIONS = {PLAIN: 4, COMPACTED: 3, OUTPUT: 3}
TRANSFORMERS_GROUP, READERS_GROUP = "transformers", "readers"
NUMBERS_PER_LIFE = 10**9
"""A sender in its life n numbers its records from n times this on."""
BROKER_RECORD_BYTES_MAX = 60_000
"""`max.message.bytes` of the topics."""
REQUEST_BYTES_MAX = 400_000
"""`max.request.size` of the producers: a record between the two is refused by the broker, one beyond by the producer itself."""
CLIENT_OPTIONS = {"request.timeout.ms": 10_000, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "client.id": "soak"}
SESSION_OPTIONS = {"session.timeout.ms": 1500, "heartbeat.interval.ms": 300}
"""A starting broker gives every member a whole new session: with a longer one than its lives, a dead member would never leave."""
FINISH_SECONDS_MAX = 180.0


class Journal:
    """Where a client writes its actions and their outcomes."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._lock = threading.Lock()

    def write(self, kind: str, *facts: Any) -> None:
        line = json.dumps([kind, *facts], separators=(",", ":")).encode() + b"\n"
        with self._lock:
            self._file.write(line)

    def close(self) -> None:
        self._file.close()


@dataclass(slots=True)
class JournalReader:
    """The entries of a journal that have come since the last look."""

    path: Path
    _read_bytes: int = 0

    def __iter__(self) -> Iterator[list[Any]]:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            for line in file:
                if line.endswith(b"\n"):
                    self._read_bytes += len(line)
                    yield json.loads(line)


@dataclass(slots=True)
class Life:
    """What a client process was started with, and whether it shall end."""

    bootstrap_servers: str
    journal: Journal
    rng: random.Random
    number: int
    stopping: threading.Event

    def options(self, **more: Any) -> dict[str, Any]:
        """Of any client."""
        own = {name.replace("_", "."): value for name, value in more.items()}
        return {"bootstrap.servers": self.bootstrap_servers, **CLIENT_OPTIONS, **own}

    def pause(self, seconds_max: float) -> None:
        self.stopping.wait(self.rng.uniform(0, seconds_max))


def live(run: Callable[[Life], None]) -> None:
    """The whole of a client process: it ends when `run` does, and is asked to when its standard input ends."""
    bootstrap_servers, journal, seed, number = sys.argv[1:]
    stopping = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        stopping.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    run(Life(bootstrap_servers, Journal(Path(journal)), random.Random(f"{seed} {number} {run.__module__}"), int(number), stopping))


@dataclass(slots=True)
class ClientProcess:
    """A role (`tests.soak.clients_<role>`) that is played by one process after the other, all with one journal."""

    role: str
    name: str
    folder: Path
    bootstrap_servers: str
    seed: int
    lives: int = 0
    process: subprocess.Popen[bytes] | None = None
    retired: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """Processes whose successor was started while they ran."""

    @property
    def journal_path(self) -> Path:
        return self.folder / f"{self.name}.journal"

    @property
    def log_text(self) -> str:
        return (self.folder / f"{self.name}.log").read_text()

    def start(self) -> None:
        self.lives += 1
        arguments = [self.bootstrap_servers, str(self.journal_path), str(self.seed), str(self.lives)]
        with (self.folder / f"{self.name}.log").open("a") as log:
            command = [sys.executable, "-m", f"tests.soak.clients_{self.role}", *arguments]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)

    def kill(self) -> None:
        """SIGKILL; the next life begins."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.start()

    def overtake(self) -> None:
        """The next life begins while this one goes on: it shall notice that it was fenced, and end by itself."""
        assert self.process is not None
        self.retired.append(self.process)
        self.start()

    def faults(self) -> list[str]:
        """Of a process that ought to run."""
        code = None if self.process is None else self.process.poll()
        return [] if code is None else [f"{self.name} ended with status {code}: {self.log_text[-3000:]}"]

    def ask_to_end(self) -> None:
        """It ends once it has done what there is to do."""
        assert self.process is not None
        for process in [self.process, *self.retired]:
            assert process.stdin is not None
            process.stdin.close()

    def finish(self) -> list[str]:
        """Ask it to end, and wait; what is wrong with how it did."""
        faults = []
        self.ask_to_end()
        assert self.process is not None
        for process in [self.process, *self.retired]:
            try:
                code = process.wait(FINISH_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                faults.append(f"{self.name} does not end within {FINISH_SECONDS_MAX} s of being asked to: {self.log_text[-2000:]}")
                process.kill()
                process.wait()
                continue
            if code:
                faults.append(f"{self.name} ended with status {code}: {self.log_text[-3000:]}")
        self.process = None
        return faults
