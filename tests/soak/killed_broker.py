"""A broker on one port and one data directory, killed and started again as often as wanted: `chaffinch broker`, or Apache Kafka."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka.admin import AdminClient, NewTopic

from tests.interop.apache_kafka import ApacheKafka


class KilledBroker:
    """A broker process. Clients may keep `bootstrap_servers`: the port stays the same from start to start."""

    def __init__(self, data_dir: Path, *, flush_policy: str, topics: list[str], config: tuple[str, ...] = ()) -> None:
        self._data_dir = data_dir
        self._arguments = ["--config", f"flush.policy={flush_policy}"]
        for option in config:
            self._arguments += ["--config", option]
        for topic in topics:
            self._arguments += ["--topic", topic]
        self._listen = "127.0.0.1:0"
        self._process: subprocess.Popen[str] | None = None
        self._log = (data_dir.parent / f"{data_dir.name}.log").open("a")
        self.bootstrap_servers = ""
        self.seconds_to_ready = 0.0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.kill()
        self._log.close()

    @property
    def log_text(self) -> str:
        return Path(self._log.name).read_text()

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker runs"
        return self._process.pid

    def start(self) -> None:
        """Returns once the broker accepts. Raises RuntimeError with the end of its log when it does not."""
        command = [str(Path(sys.executable).with_name("chaffinch")), "broker", "--listen", self._listen, "--data-dir", str(self._data_dir)]
        started = time.perf_counter()
        self._process = subprocess.Popen(command + self._arguments, stdout=subprocess.PIPE, stderr=self._log, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        self.seconds_to_ready = time.perf_counter() - started
        if not line.startswith("ready "):
            raise RuntimeError(f"the broker did not start: {self.log_text[-2000:]}")
        self.bootstrap_servers = self._listen = line.partition("=")[2]

    def kill(self) -> None:
        """SIGKILL: the process gets no chance to write anything more."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class KilledApacheKafka(ApacheKafka):
    """Apache Kafka in its place."""

    def __init__(self, data_dir: Path, *, topics: list[str], config: tuple[str, ...] = ()) -> None:
        super().__init__(dict(option.split("=", 1) for option in config), data_dir=data_dir)
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        for made in admin.create_topics([_new_topic(topic) for topic in topics]).values():
            made.result()

    @property
    def log_text(self) -> str:
        return self.log


def killed_broker(data_dir: Path, topics: list[str], config: tuple[str, ...] = (), *, on_apache: bool) -> KilledBroker | KilledApacheKafka:
    """One of the two; ours leaves it to the system when to write to the disk, as Apache Kafka does."""
    if on_apache:
        return KilledApacheKafka(data_dir, topics=topics, config=config)
    return KilledBroker(data_dir, flush_policy="os", topics=topics, config=config)


def _new_topic(text: str) -> NewTopic:
    """Of NAME:PARTITIONS[,OPTION=VALUE...], as `chaffinch broker --topic` has it."""
    name, *options = text.split(",")
    name, _, partitions = name.partition(":")
    return NewTopic(name, int(partitions), 1, config=dict(option.split("=", 1) for option in options))
