"""The rows of docs/reference/interop.md: each client, how its program is made ready, what it does not offer, how it presents culprits."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.interop.apache_kafka import jars, java_command
from tests.interop.installing import CACHE, INSTALL_SECONDS, system_package
from tests.interop.other_kafka import jars_of
from tests.interop.processes import NotRun, run

FOLDER = Path(__file__).parent
PYTHON_CLIENTS = FOLDER / "python_clients"
PYTHON_LOCK = PYTHON_CLIENTS / "requirements.lock"
NODE_PROGRAMS = FOLDER / "node"
GO_PROGRAM = FOLDER / "franz_go"
JAVA = "Java"


OLDER_NOTE = (
    "this client's Produce request is older than version 8: Chaffinch answers INVALID_REQUEST, as KIP-467 asks "
    "(docs/explanation/kips/467.md), and Apache Kafka INVALID_RECORD, which such a client need not know"
)
"""The one intended difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One row.

    `prepare` installs what is needed and returns the command to which SCENARIO, BOOTSTRAP_SERVERS and NAME are added; it raises NotRun.
    `culprits`: the fates of scenario `culprits` as the client presents them, one per record unless it has another view; the same on
    Apache Kafka, unless `culprits_older` has others for Chaffinch (see OLDER_NOTE). `not_offered`: a scenario, or `scenario.fact`, ->
    why, with a source.
    """

    name: str
    prepare: Callable[[], list[str]]
    culprits: tuple[str, ...]
    culprits_older: tuple[str, ...] = ()
    not_offered: Mapping[str, str] = field(default_factory=dict)


def _must(command: list[str | Path], what: str, folder: Path | None = None, environment: Mapping[str, str] | None = None) -> None:
    done = run(command, timeout_s=INSTALL_SECONDS, folder=folder, environment=environment)
    if not done.succeeded:
        raise NotRun(f"{what} failed: {(done.output + done.errors).strip()[-400:]}")


def _is_newer(made: Path, *sources: Path) -> bool:
    return made.exists() and all(made.stat().st_mtime_ns >= source.stat().st_mtime_ns for source in sources)


def _python(program: str) -> list[str]:
    """A program of `python_clients/`, in an environment of its own with every codec that the clients know."""
    folder = CACHE / "python"
    done = folder / ".done"
    if not _is_newer(done, PYTHON_LOCK):
        _must([sys.executable, "-m", "venv", "--clear", folder], "creating a Python environment")
        _must([folder / "bin" / "pip", "install", "--quiet", "--require-hashes", "-r", PYTHON_LOCK], "installing the Python clients")
        done.touch()
    return [str(folder / "bin" / "python"), str(PYTHON_CLIENTS / program)]


def _kcat() -> list[str]:
    system_package("kcat", "kcat")
    return [sys.executable, str(PYTHON_CLIENTS / "run_kcat.py")]


def java_program(version: str | None = None) -> list[str]:
    """The program of the Java client, of another version than the pinned one where it is named. Raises NotRun."""
    return java_command("ScenarioProgram.java", folder=jars_of(version) if version else None)


def _java_tools() -> list[str]:
    jars()
    return [sys.executable, "-m", "tests.interop.python_clients.run_java_tools"]


def _go() -> list[str]:
    program = CACHE / "franz-go"
    if not _is_newer(program, *GO_PROGRAM.iterdir()):
        go = system_package("go", "golang")
        CACHE.mkdir(exist_ok=True)
        _must([go, "build", "-o", program, "."], "building the Go program", folder=GO_PROGRAM)
    return [str(program)]


def _node(program: str) -> list[str]:
    """A program of `node/`, copied beside its modules, under the Node.js that the lock file pins: Debian's may be too old."""
    folder = CACHE / "node"
    done = folder / ".done"
    lock = NODE_PROGRAMS / "package-lock.json"
    if not _is_newer(done, lock):
        npm = system_package("npm", "npm")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(NODE_PROGRAMS / name, folder)
        _must([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], "installing the Node modules", folder=folder)
        done.touch()
    for path in NODE_PROGRAMS.glob("*.js"):
        shutil.copy(path, folder)
    runtime = next(folder.glob("node_modules/node-linux-*/bin/node"), None)
    if runtime is None:
        raise NotRun("the lock file has no Node.js for this machine")
    return [str(runtime), str(folder / program)]


_AIOKAFKA_DOCS = "https://aiokafka.readthedocs.io/en/stable/api.html"
_KAFKA_TOOLS_DOCS = "https://kafka.apache.org/documentation/#basic_ops"
_KCAT_DOCS = "https://github.com/edenhill/kcat#readme"

CLIENTS: tuple[Client, ...] = (
    Client(
        name="kcat",
        prepare=_kcat,
        culprits=("Broker: Broker failed to validate record",) * 5,
        culprits_older=("Broker: Invalid request",) * 5,
        not_offered={
            "group-consumer": "its librdkafka is older than KIP-848: https://github.com/confluentinc/librdkafka/pull/4702",
            "offsets.committed": f"it commits, and cannot show it: {_KCAT_DOCS}",
            "transactions.offset": f"it produces only inside a transaction: {_KCAT_DOCS}",
            "topics": f"it produces, consumes and lists: {_KCAT_DOCS}",
            "transactionstates": f"it produces, consumes and lists: {_KCAT_DOCS}",
            "groups": f"it produces, consumes and lists: {_KCAT_DOCS}",
        },
    ),
    Client(
        name="confluent-kafka",
        prepare=lambda: _python("run_confluent_kafka.py"),
        culprits=(
            "_INVALID_DIFFERENT_RECORD",
            "INVALID_RECORD",
            "_INVALID_DIFFERENT_RECORD",
            "INVALID_RECORD",
            "_INVALID_DIFFERENT_RECORD",
        ),
        not_offered={
            "transactionstates": "the admin client has no such method: "
            "https://docs.confluent.io/platform/current/clients/confluent-kafka-python/html/index.html#adminclient"
        },
    ),
    Client(
        name="kafka-python",
        prepare=lambda: _python("run_kafka_python.py"),
        culprits=("KafkaError", "InvalidRecordError", "KafkaError", "InvalidRecordError", "KafkaError"),
        not_offered={"group-consumer": "promised for later: https://github.com/dpkp/kafka-python/issues/3000"},
    ),
    Client(
        name="aiokafka",
        prepare=lambda: _python("run_aiokafka.py"),
        culprits=("UnknownError",) * 5,  # It has no name for error 87.
        culprits_older=("InvalidRequestError",) * 5,
        not_offered={
            "group-consumer": f"the consumer has no such option: {_AIOKAFKA_DOCS}#consumer-class",
            "groups.deleted": f"the admin client has no such method: {_AIOKAFKA_DOCS}",
            "transactionstates": f"the admin client has no such method: {_AIOKAFKA_DOCS}",
        },
    ),
    Client(
        name=JAVA,
        prepare=java_program,
        culprits=("KafkaException", "InvalidRecordException", "KafkaException", "InvalidRecordException", "KafkaException"),
    ),
    Client(
        name="Apache Kafka's tools",
        prepare=_java_tools,
        culprits=("KafkaException", "InvalidRecordException", "KafkaException", "InvalidRecordException", "KafkaException"),
        not_offered={
            "transactions": f"no tool aborts what it has produced itself; {_KAFKA_TOOLS_DOCS}",
            "transactionstates.open": f"the tool that produces in transactions ends them; {_KAFKA_TOOLS_DOCS}",
        },
    ),
    Client(
        name="franz-go",
        prepare=_go,
        culprits=("INVALID_RECORD",) * 5,
    ),
    Client(
        name="kafkajs",
        prepare=lambda: _node("kafkajs.js"),
        culprits=("INVALID_RECORD",) * 5,
        culprits_older=("INVALID_REQUEST",) * 5,
        not_offered={
            "group-consumer": "the consumer has no such option: https://kafka.js.org/docs/consuming#options",
            "transactionstates": "the admin client has no such method: https://kafka.js.org/docs/admin",
        },
    ),
    Client(
        name="@platformatic/kafka",
        prepare=lambda: _node("platformatic_kafka.js"),
        culprits=("UNKNOWN_SERVER_ERROR", "UNKNOWN_SERVER_ERROR", "INVALID_RECORD"),  # Those of the two records, that of the batch.
        not_offered={
            "transactionstates": "the admin client has no such method: https://github.com/platformatic/kafka/blob/main/docs/admin.md"
        },
    ),
)
