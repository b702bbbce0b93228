"""A real Apache Kafka of one node, and its command line tools, from Maven Central.

    with ApacheKafka(settings={"group.initial.rebalance.delay.ms": "3000"}) as kafka:
        print(kafka.bootstrap_servers)                                   # 127.0.0.1:PORT
        print(run_tool("topics", "--bootstrap-server", kafka.bootstrap_servers, "--list").output)

- `jars()` fetches the jars that `java/pom.xml` pins, once, into the git-ignored folder `.interop/` of the repository.
- `ApacheKafka` formats a temporary directory (or `data_dir`), listens on free loopback ports, returns when it is ready (about 4 s) and
  deletes the temporary directory in the end. It is stopped when the `with` block ends and killed when this process dies. Start it from
  a thread that lives as long as it shall: on Linux a child dies with the *thread* that started it. `cpu_seconds` and
  `resident_mb` are for benchmarks.
- `run_tool` runs one of `TOOLS`, `java_command` gives the command line of any class, or of a `.java` file of ours.

The tools work against any broker, Chaffinch's too. Each Java machine costs about a second to start and 100 MB (the broker 1 GiB).
Raises NotRun where there is no Java 17 or no Maven, and they cannot be installed. Node 1, topics are created on demand, replication
factor 1 everywhere, no initial rebalance delay: otherwise Apache Kafka's defaults.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from tests.interop.installing import CACHE, system_package
from tests.interop.processes import NotRun, Outcome, Server, run

JAVA_FOLDER = Path(__file__).with_name("java")
POM = JAVA_FOLDER / "pom.xml"
MAVEN_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
JAVA_MINIMUM = 17
START_SECONDS = 90.0
TOOL_SECONDS = 60.0
FETCH_SECONDS = 900.0

TOOLS: Mapping[str, str] = {
    "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "configs": "kafka.admin.ConfigCommand",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "groups": "org.apache.kafka.tools.GroupsCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
}
"""Name of the shell script in Apache Kafka's `bin/`, without `kafka-`, -> its class."""

_ITS_OWN_CONTROLLER: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
}
ONE_COPY: Mapping[str, str] = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
_LOGGING = """
appender.out.type = Console
appender.out.name = out
appender.out.target = {target}
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m%n
rootLogger.level = {level}
rootLogger.appenderRef.out.ref = out
"""


def kafka_version() -> str:
    """The version that `java/pom.xml` pins."""
    found = re.search(r"<artifactId>kafka-tools</artifactId>\s*<version>([^<]+)</version>", POM.read_text())
    assert found is not None, f"{POM} names no version of kafka-tools"
    return found[1]


def java() -> str:
    """The `java` of at least version 17: that of JAVA_HOME, of the path, or an installed one. Raises NotRun."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java") or system_package("java", "default-jdk-headless")
    printed = run([program, "-version"], timeout_s=TOOL_SECONDS).errors
    found = re.search(r'version "(\d+)', printed)
    if found is None or int(found[1]) < JAVA_MINIMUM:
        raise NotRun(f"{program} is no Java {JAVA_MINIMUM} or newer")
    return program


def jars() -> Path:
    """The folder with all jars of Apache Kafka, fetched unless they are there. Raises NotRun."""
    return fetched_jars(kafka_version(), POM)


def fetched_jars(version: str, pom: Path) -> Path:
    """The folder with the jars of one version, as `pom` asks for them (its `kafka.version` is this one). Raises NotRun."""
    folder = CACHE / f"apache-kafka-{version}"
    done = folder / ".done"
    if done.exists() and done.stat().st_mtime_ns >= pom.stat().st_mtime_ns:
        return folder
    maven = shutil.which("mvn") or system_package("mvn", "maven")
    command: list[str | Path] = [maven, "-B", "-q", "-f", pom, MAVEN_PLUGIN, f"-Dkafka.version={version}", f"-DoutputDirectory={folder}"]
    fetched = run(command, timeout_s=FETCH_SECONDS)
    if not fetched.succeeded:
        raise NotRun(f"Maven could not fetch Apache Kafka {version}: {(fetched.output + fetched.errors).strip()[-500:]}")
    done.touch()
    return folder


def java_command(
    main_class: str,
    *arguments: str | Path,
    heap: str = "256m",
    log_level: str = "ERROR",
    full_speed: bool = False,
    folder: Path | None = None,
) -> list[str]:
    """The command that runs a class of Apache Kafka's jars, or `Name.java` of our folder `java/`. Logs go to standard error.

    Without `full_speed` Java compiles quickly and not well, which is right for a program of a second, and wrong for a benchmark.
    `folder`: where the jars of another version are (`fetched_jars`).
    """
    folder = folder or jars()
    class_path = f"{folder}/*"
    if main_class.endswith(".java"):
        class_path = f"{_compiled(JAVA_FOLDER / main_class, folder)}:{class_path}"
        main_class = main_class.removesuffix(".java")
    logging = _logging_file("SYSTEM_ERR", log_level)
    return [
        java(),
        f"-Xmx{heap}",
        *([] if full_speed else ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]),
        f"-Dlog4j2.configurationFile={logging}",
        "-cp",
        class_path,
        main_class,
        *map(str, arguments),
    ]


def run_tool(name: str, *arguments: str | Path, stdin: str = "", timeout_s: float = TOOL_SECONDS) -> Outcome:
    """Run one of `TOOLS` to its end; those that measure at full speed."""
    command = java_command(TOOLS[name], *arguments, full_speed=name.endswith("perf-test"))
    return run(command, stdin=stdin, timeout_s=timeout_s)


class ApacheKafka:
    """One combined broker and controller. `settings` are added to its `server.properties`; `heap` is the Java machine's -Xmx and -Xms."""

    def __init__(self, settings: Mapping[str, str] | None = None, *, data_dir: Path | None = None, heap: str = "1g") -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="apache-kafka-")
        self.folder = Path(self._temporary.name)
        port, self.controller_port = _free_ports(2)
        self.bootstrap_servers = f"127.0.0.1:{port}"
        self._data_dir = data_dir or self.folder / "data"
        self._properties = self.folder / "server.properties"
        chosen = {**ONE_COPY, "log.dirs": str(self._data_dir), **self.listener_settings(port), **(settings or {})}
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in chosen.items()))
        self._heap = heap
        self._server: Server | None = None
        try:
            self.start()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Format what is not formatted, start, return when it accepts. Called by the constructor; again after `kill` for a restart."""
        if not (self._data_dir / "meta.properties").exists():
            self.prepare()
        command: list[str | Path] = [
            java(),
            f"-Xmx{self._heap}",
            f"-Xms{self._heap}",
            *self.logging(),
            "-cp",
            self.class_path(),
            "kafka.Kafka",
            self._properties,
        ]
        self._server = Server(command, ready_text=self.READY_TEXT, log=self.folder / "broker.log", timeout_s=START_SECONDS)

    def kill(self) -> None:
        """SIGKILL; the data stays for `start`."""
        if self._server is not None:
            self._server.process.kill()
            self._server.stop()
            self._server = None

    def stop(self) -> None:
        """Stop in order and delete the temporary folder."""
        if self._server is not None:
            self._server.stop()
            self._server = None
        self._temporary.cleanup()

    @property
    def pid(self) -> int:
        assert self._server is not None, "it is stopped"
        return self._server.process.pid

    @property
    def log(self) -> str:
        """What the broker has logged so far."""
        return (self.folder / "broker.log").read_text(errors="replace")

    @property
    def cpu_seconds(self) -> float:
        """Processor time used so far, all threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def resident_mb(self) -> float:
        """Memory held now, in MiB."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    # What another version has otherwise.

    READY_TEXT: ClassVar[str] = "Kafka Server started"

    def listener_settings(self, port: int) -> Mapping[str, str]:
        """Where it listens, and who leads it: itself."""
        return {
            **_ITS_OWN_CONTROLLER,
            "controller.quorum.voters": f"1@127.0.0.1:{self.controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{self.controller_port}",
        }

    def class_path(self) -> str:
        """All its jars. Raises NotRun."""
        return f"{jars()}/*"

    def logging(self) -> Sequence[str]:
        """Options of Java that have it log to where `log` reads."""
        return [f"-Dlog4j2.configurationFile={_logging_file('SYSTEM_OUT', 'INFO')}"]

    def prepare(self) -> None:
        """Format the data directory."""
        tool = [java(), *self.logging(), "-cp", self.class_path(), "kafka.tools.StorageTool"]
        done = run([*tool, "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", self._properties], timeout_s=TOOL_SECONDS)
        if not done.succeeded:
            raise RuntimeError(f"kafka.tools.StorageTool: {(done.output + done.errors).strip()}")


def _compiled(source: Path, jars_folder: Path) -> Path:
    """The folder of the class compiled with these jars, newer than its source. Raises NotRun where there is only a runtime."""
    classes = CACHE / f"java-classes-{jars_folder.name}"
    compiled = classes / f"{source.stem}.class"
    if not compiled.exists() or compiled.stat().st_mtime_ns < source.stat().st_mtime_ns:
        compiler = Path(java()).resolve().with_name("javac")
        program = str(compiler) if compiler.exists() else shutil.which("javac") or system_package("javac", "default-jdk-headless")
        classes.mkdir(parents=True, exist_ok=True)
        command = [program, "-nowarn", "-cp", f"{jars_folder}/*", "-d", str(classes), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{source.name} does not compile: {done.stderr.strip()}")
    return classes


def _logging_file(target: str, level: str) -> Path:
    path = CACHE / f"log4j2-{target.lower()}-{level.lower()}.properties"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_LOGGING.format(target=target, level=level))
    return path


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
