"""Batch writes inside `foreachBatch`: committed as micro-batches of their query, several sinks beside each other."""

import json
import pickle
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.spark.folders import safe_name
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.sink import writers
from chaffinch.spark.sink.options import SinkOptions
from chaffinch.spark.target import forget_client
from chaffinch.spark.task_facts import TaskContextFacts
from chaffinch.spark.tasks.task_sender import forget_producer
from tests.spark.test_spark_write import alter, values

ROWS = {"key": ["a", "b"], "value": [b"1", b"2"]}


@pytest.fixture
def kafka() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"orders": {"partitions": 2}}) as broker:
        yield broker


@pytest.fixture
def write(kafka: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """One sink's write of one micro-batch; without rows there is no task."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"q"}')
    for batch_id in range(3):
        (tmp_path / "offsets" / str(batch_id)).write_text(f"v1\n{batch_id}")
    used = []

    def written(name: str, batch_id: int, rows: Mapping[str, Any] | None = ROWS, has_query: bool = True, **changes: str) -> None:
        """`has_query`: tasks get the query from Spark, as they do without Spark Connect."""
        given = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": "orders", "checkpointlocation": str(tmp_path),
            "chaffinch.sink": name, "chaffinch.batch.id": str(batch_id),
        } | {option.replace("__", "."): value for option, value in changes.items()}  # fmt: skip
        facts = TaskContextFacts(task=0, query_id="q", run_id="run", batch_id=batch_id, master="local[2]")
        if not has_query:
            given["chaffinch.query.id"], facts = "q", TaskContextFacts(task=0, master="local[2]")
        options = SinkOptions.parse(given, is_stream=False)
        used.append(options)
        monkeypatch.setattr(writers, "task_facts", lambda: facts)
        writer = pickle.loads(pickle.dumps(writers.batch_writer(options)))
        writer.commit([writer.write(iter([pa.record_batch(rows)]))] if rows else [])

    yield written
    for options in used:
        forget_producer(options.producer)
        forget_client(options.client)


def test_each_named_sink_writes_each_batch_once(kafka: EmbeddedBroker, write: Callable[..., None], tmp_path: Path) -> None:
    for _ in range(2):  # Spark repeats a batch whose end it has not noted.
        write("one", 0)
        write("two.eu", 0)
    assert values(kafka, "orders") == {"1": 2, "2": 2}
    for name in ("one", "two.eu"):
        state = json.loads((tmp_path / "chaffinch" / safe_name(name) / "state.json").read_text())
        seen = state["transactional.id"], state["totals"]["rows_written"], state["sink"]
        assert seen == (f"chaffinch-q-{name}", 2, name)


def test_spark_connect_finds_same_query(kafka: EmbeddedBroker, write: Callable[..., None]) -> None:
    write("one", 0)
    for batch_id in (0, 1, 1):
        write("one", batch_id, has_query=False)
    assert values(kafka, "orders") == {"1": 2, "2": 2}
    with pytest.raises(Refusal, match="CHECKPOINT_RESTORED: batch 0 is older than batch 1"):
        write("one", 0, has_query=False)


def test_batch_older_than_marker_is_refused(write: Callable[..., None]) -> None:
    write("one", 0)
    write("one", 1)
    with pytest.raises(Refusal, match="CHECKPOINT_RESTORED: batch 0 is older than batch 1"):
        write("one", 0)


def test_batch_without_tasks_writes_nothing(kafka: EmbeddedBroker, write: Callable[..., None]) -> None:
    write("one", 0, rows=None)
    assert values(kafka, "orders") == {}


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize(
    "how",
    [
        {"kafka__drop__invalid__large__records": "true"},
        {"kafka__custom__exception__handler__class": "tests.spark.tasks.test_row_handler.SwallowOdd"},
    ],
    ids=["option", "handler"],
)
def test_too_large_rows_are_dropped(kafka: EmbeddedBroker, write: Callable[..., None], guarantee: str, how: Mapping[str, str]) -> None:
    """KIP-1038 at default options: the limit is the topic's."""
    alter(kafka, "orders", "max.message.bytes", "1000")
    rows = {"key": ["a", "b"], "value": [Random(7).randbytes(2000), b"0"]}
    with pytest.raises(Refusal, match="1 MESSAGE_TOO_LARGE"):
        write("one", 0, rows, deliveryGuarantee=guarantee)
    write("one", 0, rows, deliveryGuarantee=guarantee, **how)
    assert values(kafka, "orders") == {"0": 1}
