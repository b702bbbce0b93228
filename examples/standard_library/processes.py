"""The two processes of the demo, which are started and killed: the broker and the Spark query."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from examples.standard_library.workspace import (
    BASELINE_TOPIC,
    DEAD_LETTER_TOPIC,
    MESSAGE_BYTES_MAX,
    PARTITIONS,
    QUERY_KILL_BATCH,
    TOPIC,
    Workspace,
)

REPOSITORY = Path(__file__).resolve().parents[2]
QUERY_KILL_STEP = "end_transaction"
"""The step of the commit protocol after the EndTxn response: Kafka has committed, Spark has not."""


class JobFailed(Exception):
    """The demo cannot continue; the text is one line for the user."""


def topic_options() -> list[str]:
    files = f":{PARTITIONS},cleanup.policy=compact,max.message.bytes={MESSAGE_BYTES_MAX}"
    return ["--topic", TOPIC + files, "--topic", BASELINE_TOPIC + files, "--topic", f"{DEAD_LETTER_TOPIC}:1"]


class Broker:
    """A `chaffinch broker` process. After a kill and restart it has the same port and data."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.address = "127.0.0.1:0"
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        first = self.process is None
        command = [sys.executable, "-m", "chaffinch", "broker", "--listen", self.address, "--data-dir", str(self.workspace.broker_data)]
        with self.workspace.log("broker").open("a") as log:
            self.process = subprocess.Popen(
                command + (topic_options() if first else []), stdout=subprocess.PIPE, stderr=log, text=True, cwd=REPOSITORY
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("ready bootstrap.servers="):
            raise JobFailed(f"the broker did not start: {self.workspace.log('broker').read_text()[-500:].strip()}")
        self.address = line.strip().partition("=")[2]

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(timeout=30)


class Query:
    """The Spark query in its own process group, so that one SIGKILL also ends its JVM and Python workers."""

    def __init__(self, workspace: Workspace, bootstrap_servers: str, files_per_trigger: int) -> None:
        self.workspace = workspace
        self.arguments = [str(workspace.folder), bootstrap_servers, str(files_per_trigger)]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, pause: bool) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CHAFFINCH_PAUSE")}
        if pause:
            environment["CHAFFINCH_PAUSE_AT_STEP"] = f"{QUERY_KILL_STEP}@{QUERY_KILL_BATCH}"
            environment["CHAFFINCH_PAUSE_FILE"] = str(self.workspace.paused)
        command = [sys.executable, "-m", "examples.standard_library.query", *self.arguments]
        with self.workspace.log("query").open("a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=REPOSITORY, env=environment, start_new_session=True)

    def wait_until(self, reached: Callable[[], bool], poll: Callable[[], None]) -> None:
        """Call `poll`, which sleeps, until `reached()`. Raises JobFailed if the query ends before."""
        assert self.process is not None
        while not reached():
            if self.process.poll() is not None and not reached():
                status = self.process.returncode
                raise JobFailed(f"the query ended too early, with status {status}, see {self.workspace.log('query')}: {self.last_output()}")
            poll()

    def wait(self, poll: Callable[[], None]) -> None:
        assert self.process is not None
        while self.process.poll() is None:
            poll()
        if self.process.returncode != 0:
            raise JobFailed(f"the query failed, see {self.workspace.log('query')}: {self.last_output()}")

    def last_output(self) -> str:
        lines = self.workspace.log("query").read_text(errors="replace").splitlines()
        tagged = [line.strip() for line in lines if "KAFKA[" in line]
        return (tagged or [line for line in lines if line.strip()] or ["no output"])[-1][:1000]

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
