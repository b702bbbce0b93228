"""Apache Kafka of other versions: what clusters in use run, or soon will.

    with apache_kafka("3.9.1", settings) as kafka: ...     # the face of `ApacheKafka`

Versions before 3.3 are led by a ZooKeeper, a process of its own beside the broker. Raises NotRun as `ApacheKafka` does.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from tests.interop.apache_kafka import JAVA_FOLDER, START_SECONDS, ApacheKafka, fetched_jars, java, kafka_version
from tests.interop.processes import DidNotStart, Server

VERSIONS = ("2.8.2", "3.3.2", "3.6.2", "3.9.1", "4.4.0")
"""The last 2.x, the first with KRaft for production, two in wide use, and the newest, whose tools are not available."""

_POM = JAVA_FOLDER / "other-pom.xml"
_KRAFT_SINCE = (3, 3)
_AS_SINCE_4 = {"log.message.timestamp.after.max.ms": "3600000"}
"""A default of today. Versions before 3.6 do not know the option, and say so in their log."""
_TICK_MS = 1_000
_SESSION_TICKS_LEAST = 2
"""A broker that was killed may come back when its session with ZooKeeper has ended."""


def apache_kafka(version: str, settings: Mapping[str, str]) -> ApacheKafka:
    """One broker of this version, started. `settings` are added to its `server.properties`."""
    if version == kafka_version():
        return ApacheKafka(settings)
    return (OtherKafka if uses_kraft(version) else KafkaWithZooKeeper)(version, settings)


def jars_of(version: str) -> Path:
    """The folder with the jars of its broker and its clients, fetched unless they are there. Raises NotRun."""
    return fetched_jars(version, _POM)


def numbers(version: str) -> tuple[int, ...]:
    """For the order of versions."""
    return tuple(map(int, version.split(".")))


def uses_kraft(version: str) -> bool:
    """Whether it is its own controller (KIP-500); else a ZooKeeper is started with it."""
    return numbers(version) >= _KRAFT_SINCE


class OtherKafka(ApacheKafka):
    """One combined broker and controller of another version."""

    def __init__(self, version: str, settings: Mapping[str, str]) -> None:
        self.version = version
        super().__init__({**({} if numbers(version) >= (4,) else _AS_SINCE_4), **settings})

    def class_path(self) -> str:
        return f"{jars_of(self.version)}/*"

    def logging(self) -> Sequence[str]:
        return ["-Dorg.slf4j.simpleLogger.logFile=System.out"]


class KafkaWithZooKeeper(OtherKafka):
    """One broker, and the ZooKeeper that it stands in. `kill` takes the broker alone."""

    READY_TEXT: ClassVar[str] = "[KafkaServer id=1] started"
    _zookeeper: Server | None = None

    def listener_settings(self, port: int) -> Mapping[str, str]:
        leader = f"127.0.0.1:{self.controller_port}"
        session = {"zookeeper.session.timeout.ms": str(_SESSION_TICKS_LEAST * _TICK_MS)}
        return {"broker.id": "1", "zookeeper.connect": leader, "listeners": f"PLAINTEXT://127.0.0.1:{port}", **session}

    def prepare(self) -> None:
        """Start the ZooKeeper; brokers of these versions format nothing."""
        if self._zookeeper is not None:
            return
        data: Path = self.folder / "zookeeper"
        options = [*self.logging(), "-Xmx256m", "-Dzookeeper.admin.enableServer=false", "-cp", self.class_path()]
        command: list[str | Path] = [
            java(),
            *options,
            "org.apache.zookeeper.server.ZooKeeperServerMain",
            str(self.controller_port),
            data,
            str(_TICK_MS),
        ]
        self._zookeeper = Server(command, ready_text="binding to port", log=self.folder / "zookeeper.log", timeout_s=START_SECONDS)

    def start(self) -> None:
        """Again, where ZooKeeper takes a broker that was killed for alive, until its session has ended."""
        ends_s = time.monotonic() + START_SECONDS
        while True:
            try:
                return super().start()
            except DidNotStart:
                if time.monotonic() > ends_s:
                    raise

    def stop(self) -> None:
        if self._zookeeper is not None:
            # In order a broker goes only with its ZooKeeper's help, and slowly; nothing of this one is wanted any more.
            self.kill()
            self._zookeeper.stop()
            self._zookeeper = None
        super().stop()
