"""The format on a server of Spark Connect, in local mode. Run by `make cluster`, in some two minutes.

The clients have neither Java nor, but for what is called there, Chaffinch.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from chaffinch.broker.embedded import EmbeddedBroker
from tests.interop.processes import Server, run
from tests.interop.spark_environments import environment
from tests.spark.clusters.cluster import DRIVER_S, bare_python, connect_server
from tests.spark.clusters.connect_client import WITH_CHAFFINCH
from tests.spark.clusters.run_on_cluster import rows_once, times_by_row

pytestmark = [pytest.mark.timeout(1800), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

CLIENT_OPTIONS = Path(__file__).with_name("connect_client.py")
SOURCES = Path(__file__).parents[3] / "src"
SCENARIOS = ("format", "direct", "source", *WITH_CHAFFINCH)


class Client(Protocol):
    def __call__(self, server: Server, *scenarios: str, path: Sequence[Path] = ()) -> dict[str, Any]: ...


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    topics = {name: {"partitions": 2, "cleanup.policy": "compact"} for name in SCENARIOS}
    with EmbeddedBroker(topics=topics) as running:
        yield running


@pytest.fixture(scope="module")
def client(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Client:
    """Runs scenarios of a client against a server -> what each has found."""
    folder = tmp_path_factory.mktemp("client")
    python = bare_python(folder / "bare")

    def called(server: Server, *scenarios: str, path: Sequence[Path] = ()) -> dict[str, Any]:
        paths = ":".join(map(str, (environment("spark-connect"), *path)))
        variables = {"PYTHONPATH": paths, "JAVA_HOME": "/nowhere", "PYTHONWARNINGS": "ignore"}
        address = f"sc://{server.ready_line.rpartition(' ')[2]}"
        done = run(
            [python, CLIENT_OPTIONS, address, broker.bootstrap_servers, folder, *scenarios], timeout_s=DRIVER_S, environment=variables
        )
        assert done.succeeded, f"{done.output}\n{done.errors[-6000:]}"
        return {name: json.loads(text) for name, _, text in (line.partition(": ") for line in done.output.splitlines())}

    return called


@pytest.fixture(scope="module")
def found(client: Client, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with connect_server(tmp_path_factory.mktemp("server")) as server:
        without = client(server, *(name for name in SCENARIOS if name not in WITH_CHAFFINCH))
        return without | client(server, *WITH_CHAFFINCH, path=[SOURCES])


def test_batch_stream_refusal_and_read(found: dict[str, Any]) -> None:
    refused = found["format"].pop("refused")
    assert "KAFKA[InvalidConfiguration] ROWS_REJECTED: 1 of 1 rows are rejected (1 INVALID_COMPACTION_KEY)" in refused
    assert found["format"] == {"keys": 200, "records": 200, "session": "pyspark.sql.connect.session"}


def test_at_least_once_write(found: dict[str, Any], broker: EmbeddedBroker) -> None:
    assert rows_once(broker, "direct", 200)


def test_stream_from_topic_to_topic(found: dict[str, Any], broker: EmbeddedBroker) -> None:
    assert rows_once(broker, "source", 250)


def test_sink_in_foreach_batch_finds_query_by_checkpoint(found: dict[str, Any], broker: EmbeddedBroker) -> None:
    assert rows_once(broker, "sinks", 200)
    assert "KAFKA[InvalidConfiguration] QUERY_UNKNOWN: with Spark Connect a KafkaSink needs the option" in found["sinks"]["unknown"]
    assert found["sinks"]["update"].startswith("KAFKA[InvalidConfiguration] CONFIG: output mode update cannot be used")
    assert found["sinks"]["no mode"].startswith("KAFKA[InvalidConfiguration] CONFIG: mode ErrorIfExists cannot be used")
    assert "has committed batch 0 already: set it to the checkpoint of the query that calls the KafkaSink" in found["sinks"]["strange"]


def test_supervised_query_is_restarted_unless_permanent(found: dict[str, Any], broker: EmbeddedBroker) -> None:
    ended = found["supervised"].pop("ended")
    assert ended.startswith("KAFKA[InvalidConfiguration] ROWS_REJECTED: 100 of 100 rows are rejected (100 INVALID_COMPACTION_KEY)")
    assert "; not started again: a restart alone does not help" in ended
    assert found["supervised"] == {"restarts": ["REQUEST_TIMED_OUT"], "batch": 0}
    assert times_by_row(broker, "supervised").total() == 100


def test_server_without_chaffinch_is_refused_before_queries(client: Client, tmp_path: Path) -> None:
    with connect_server(tmp_path, bare_python(tmp_path / "bare")) as server:
        (text,) = client(server, "unfit", path=[SOURCES]).values()
    assert text.startswith("WorkersUnfit: the server sc://127.0.0.1:")
    assert "does not find the format chaffinch" in text
    assert "\n" not in text
