"""The two processes of the main job, started and killed: the broker and the Spark query."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from examples.standard_library.workplace import (
    BATCH_OF_QUERY_KILL,
    DEAD_LETTER_TOPIC,
    MESSAGE_BYTES_MAX,
    PARTITIONS,
    TODAY_TOPIC,
    TOPIC,
    Workplace,
)

REPOSITORY = Path(__file__).resolve().parents[2]
STEP_OF_QUERY_KILL = "end_transaction"
"""The step of the commit protocol behind Kafka's answer to EndTxn: Kafka has committed, Spark does not know yet."""


class Failed(Exception):
    """The main job cannot go on; the text is one line for the user."""


def topic_options() -> list[str]:
    files = f":{PARTITIONS},cleanup.policy=compact,max.message.bytes={MESSAGE_BYTES_MAX}"
    return ["--topic", TOPIC + files, "--topic", TODAY_TOPIC + files, "--topic", f"{DEAD_LETTER_TOPIC}:1"]


class Broker:
    """`chaffinch broker` as a process of its own. Killed and started again, it keeps its port and its data."""

    def __init__(self, workplace: Workplace) -> None:
        self.workplace = workplace
        self.address = "127.0.0.1:0"
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        first = self.process is None
        command = [sys.executable, "-m", "chaffinch", "broker", "--listen", self.address, "--data-dir", str(self.workplace.broker_data)]
        with self.workplace.log("broker").open("a") as log:
            self.process = subprocess.Popen(
                command + (topic_options() if first else []), stdout=subprocess.PIPE, stderr=log, text=True, cwd=REPOSITORY
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("ready bootstrap.servers="):
            raise Failed(f"the broker did not start: {self.workplace.log('broker').read_text()[-500:].strip()}")
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
    """The Spark query in a process group of its own, so that one SIGKILL takes its JVM and its Python workers along."""

    def __init__(self, workplace: Workplace, bootstrap_servers: str, files_per_trigger: int) -> None:
        self.workplace = workplace
        self.arguments = [str(workplace.folder), bootstrap_servers, str(files_per_trigger)]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, pause: bool) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CHAFFINCH_PAUSE")}
        if pause:
            environment["CHAFFINCH_PAUSE_AT_STEP"] = f"{STEP_OF_QUERY_KILL}@{BATCH_OF_QUERY_KILL}"
            environment["CHAFFINCH_PAUSE_FILE"] = str(self.workplace.paused)
        command = [sys.executable, "-m", "examples.standard_library.query", *self.arguments]
        with self.workplace.log("query").open("a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=REPOSITORY, env=environment, start_new_session=True)

    def wait_until(self, reached: Callable[[], bool], look_again: Callable[[], None]) -> None:
        """Call `look_again` (it waits a moment) until `reached`; a query that ends before has failed."""
        assert self.process is not None
        while not reached():
            if self.process.poll() is not None and not reached():
                status = self.process.returncode
                raise Failed(f"the query ended too early, with status {status}, see {self.workplace.log('query')}: {self.last_words()}")
            look_again()

    def wait(self, look_again: Callable[[], None]) -> None:
        assert self.process is not None
        while self.process.poll() is None:
            look_again()
        if self.process.returncode != 0:
            raise Failed(f"the query failed, see {self.workplace.log('query')}: {self.last_words()}")

    def last_words(self) -> str:
        lines = self.workplace.log("query").read_text(errors="replace").splitlines()
        tagged = [line.strip() for line in lines if "KAFKA[" in line]
        return (tagged or [line for line in lines if line.strip()] or ["no output"])[-1][:1000]

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
