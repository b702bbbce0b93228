"""Reading topics as streams with a real Spark: triggers, restarts, progress, and what reaches the user when it cannot be."""

import itertools
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from chaffinch.admin.topics import add_partitions
from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.client.sync_client import SyncClient
from chaffinch.spark import supervise
from chaffinch.spark.source.stream_reader import IS_LIMITED
from tests.soak.spark_process import has_in_command, processes_below
from tests.spark.source.reader_driver import plain
from tests.spark.source.source_topics import fill

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::FutureWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

numbers = itertools.count()


@pytest.fixture
def source(broker: EmbeddedBroker) -> str:
    name = f"stream-{next(numbers)}"
    broker.create_topic(name, 2, 1, {})
    fill(broker.bootstrap_servers, name, {0: 30, 1: 10})
    return name


def stream(spark: SparkSession, broker: EmbeddedBroker, **options: str) -> DataFrame:
    return spark.readStream.format("chaffinch").option("kafka.bootstrap.servers", broker.bootstrap_servers).options(**options).load()


def finished(writer: DataStreamWriter, checkpoint: Path) -> StreamingQuery:
    """A query that reads what is there and ends."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def test_supervise_restarts_query_with_killed_source_process(
    spark: SparkSession, broker: EmbeddedBroker, source: str, tmp_path: Path
) -> None:
    """Spark has one process for as long as the query runs, which it asks for offsets, and says in no words that it died."""
    copy = f"{source}-copy"
    broker.create_topic(copy, 2, 1, {})
    reader = stream(spark, broker, subscribe=source, startingOffsets="earliest")
    writer = reader.writeStream.format("chaffinch").option("kafka.bootstrap.servers", broker.bootstrap_servers).option("topic", copy)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    killed: list[int] = []
    restarts: list[str] = []

    def start() -> StreamingQuery:
        query = writer.start() if not killed else writer.trigger(availableNow=True).start()
        if not killed:
            query.processAllAvailable()
            killed.extend(pid for pid in processes_below(os.getpid()) if has_in_command(pid, "python_streaming_source_runner"))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            fill(broker.bootstrap_servers, source, {0: 5})
        return query

    supervise(start, pause_s=0, on_restart=lambda tag, *_: restarts.append(tag.name))
    assert killed
    assert restarts == ["WORKER_LOST"]
    assert sorted(row["value"] for row in rows(broker, copy)) == sorted(row["value"] for row in rows(broker, source))


def rows(broker: EmbeddedBroker, topic: str) -> list[dict[str, Any]]:
    return broker.read(topic).select(["partition", "timestamp", "value"]).to_pylist()


def test_limited_batches_continue_after_restart(spark: SparkSession, broker: EmbeddedBroker, source: str, tmp_path: Path) -> None:
    """Source and sink in one query, with offsets and batch ids of one checkpoint."""
    copy = f"{source}-copy"
    broker.create_topic(copy, 3, 1, {})
    chosen = {"subscribePattern": f"{source}|none", "startingOffsets": "earliest", "minPartitions": "3"}
    limit = {"maxOffsetsPerTrigger": "20"} if IS_LIMITED else {}
    writer = stream(spark, broker, **chosen, **limit).writeStream.format("chaffinch").option("topic", copy)
    writer = writer.option("kafka.bootstrap.servers", broker.bootstrap_servers)

    query = finished(writer, tmp_path / "checkpoint")
    assert rows(broker, copy) == rows(broker, source)
    batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
    assert [progress["numInputRows"] for progress in batches] == ([20, 20] if IS_LIMITED else [40])
    if IS_LIMITED:
        ends = [plain(json.loads(progress["sources"][0]["endOffset"])) for progress in batches]
        assert ends == [{source: {"0": 15, "1": 5}}, {source: {"0": 30, "1": 10}}]
        assert json.loads(batches[0]["sources"][0]["latestOffset"]) == ends[-1]

    # While no query was running: more records, and a new partition.
    with SyncClient(broker.bootstrap_servers) as client:
        add_partitions(client, source, 3)
    fill(broker.bootstrap_servers, source, {1: 2, 2: 3})
    finished(writer, tmp_path / "checkpoint")
    assert rows(broker, copy) == rows(broker, source)


def test_query_killed_in_first_batch_continues_at_its_start(
    spark: SparkSession, broker: EmbeddedBroker, source: str, tmp_path: Path
) -> None:
    """By default with the latest offset; Spark stores the end of a micro-batch, and requests the start of the first one again."""
    checkpoint, failed, seen = tmp_path / "checkpoint", [], []

    def fail(frame: DataFrame, batch_id: int) -> None:
        failed.append((batch_id, frame.count()))
        raise RuntimeError("the sink is away")

    read = stream(spark, broker, subscribe=source)
    with pytest.raises(Exception, match="the sink is away"):
        finished(read.writeStream.foreachBatch(fail), checkpoint)
    assert failed == [(0, 0)]
    fill(broker.bootstrap_servers, source, {0: 3, 1: 2})
    with SyncClient(broker.bootstrap_servers) as client:
        add_partitions(client, source, 3)
    fill(broker.bootstrap_servers, source, {2: 4})

    def take(frame: DataFrame, batch_id: int) -> None:
        found = sorted((row["partition"], row["offset"]) for row in frame.select("partition", "offset").collect())
        seen.append((batch_id, found))

    for _ in range(1 if IS_LIMITED else 2):  # There a run is one micro-batch, which is the one that failed.
        finished(read.writeStream.foreachBatch(take), checkpoint)
    came = [*((0, 30 + n) for n in range(3)), *((1, 10 + n) for n in range(2)), *((2, n) for n in range(4))]
    assert seen == [(0, []), (1, came)]


def test_unreadable_topic_error_reaches_user(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"KAFKA\[InvalidConfiguration\] CONFIG: .*'endingOffsets': a stream has no end"):
        finished(stream(spark, broker, subscribe="a", endingOffsets="latest").writeStream.format("noop"), tmp_path / "checkpoint")
