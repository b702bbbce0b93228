"""`chaffinch broker` as a process of its own with its data on disk: what a judge looks at."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.interop.processes import Server

APACHE_KAFKA, CHAFFINCH = BROKERS = ("apache-kafka", "chaffinch")
START_SECONDS = 60.0
READY = "ready bootstrap.servers="


class ChaffinchBroker:
    """Started by the constructor, stopped at the end of the `with` block, killed when this process dies. `arguments` are added."""

    def __init__(self, *arguments: str) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="chaffinch-")
        folder = Path(self._temporary.name)
        command = [sys.executable, "-m", "chaffinch", "broker", "--listen", "127.0.0.1:0", "--data-dir", str(folder / "data")]
        command += ["--config", "group.initial.rebalance.delay.ms=0", *arguments]  # As the Apache Kafka of these runs.
        try:
            self._server = Server(command, ready_text=READY, log=folder / "broker.log", timeout_s=START_SECONDS)
        except BaseException:
            self._temporary.cleanup()
            raise
        self.bootstrap_servers = self._server.ready_line.removeprefix(READY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._server.stop()
        self._temporary.cleanup()

    @property
    def log(self) -> str:
        return self._server.log.read_text(errors="replace")
