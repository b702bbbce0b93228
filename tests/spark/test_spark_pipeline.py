"""A real query around the sink: supervised, in output mode update, with two outputs."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.spark import KafkaSink, SupervisionEnded, session, supervise
from chaffinch.spark.supervision.metrics import Metrics

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::FutureWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


class WordCounts:
    """Words in JSON files, one file per micro-batch: counts so far go to one topic, new words to another."""

    def __init__(self, spark: SparkSession, broker: EmbeddedBroker, folder: Path, counts: str, words: str) -> None:
        self.spark, self.folder = spark, folder
        self.options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "checkpointLocation": str(folder / "checkpoint")}
        self.outputs = [KafkaSink(self.options, topic=counts), KafkaSink(self.options, topic=words)]
        (folder / "input").mkdir()

    def add(self, number: int, words: Sequence[str]) -> None:
        path = self.folder / "input" / f"{number}.json"
        path.write_text("\n".join(json.dumps({"word": word}) for word in words))
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))

    def start(self) -> StreamingQuery:
        counts, words = self.outputs

        def write(frame: DataFrame, batch_id: int) -> None:
            counts(frame.selectExpr("word as key", "cast(count as string) as value"), batch_id)
            words(frame.where("count = 1").selectExpr("word as value"), batch_id)

        read = self.spark.readStream.schema("word string").option("maxFilesPerTrigger", 1).json(str(self.folder / "input"))
        return (
            read.groupBy("word").count().writeStream.outputMode("update").foreachBatch(write)
            .option("checkpointLocation", self.options["checkpointLocation"]).trigger(availableNow=True).start()
        )  # fmt: skip


def test_update_mode_writes_each_row_to_two_topics_once(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str, tmp_path: Path
) -> None:
    """Then two outputs under one name stop the query before rows are lost."""
    query = WordCounts(spark, broker, tmp_path, topic, dead)
    query.add(0, ["a", "b", "a"])
    query.add(1, ["a", "c"])
    with Metrics("127.0.0.1:0", query.options["checkpointLocation"]) as metrics:
        ended = supervise(query.start, restarts_max=0)
        with urlopen(f"http://{metrics.address}/metrics") as answer:
            text = answer.read().decode()
    assert ended.exception() is None
    assert Counter((row["key"], row["value"]) for row in broker.read(topic).to_pylist()) == {
        (b"a", b"2"): 1, (b"b", b"1"): 1, (b"a", b"3"): 1, (b"c", b"1"): 1,
    }  # fmt: skip
    assert Counter(row["value"] for row in broker.read(dead).to_pylist()) == {b"b": 1, b"c": 1}
    written = dict(re.findall(r'rows_written_total\{query="",sink="([^"]+)"\} (\d+)', text))
    assert written == {topic: "4", dead: "2"}

    query.add(2, ["d"])
    query.outputs[1] = KafkaSink(query.options, topic=dead, name=topic)
    with pytest.raises(
        SupervisionEnded, match=r"^KAFKA\[InvalidConfiguration\] DUPLICATE_OUTPUT: batch 2 was already given to a sink named"
    ) as caught:
        supervise(query.start)
    assert caught.value.tag is not None
    assert (caught.value.restarts, caught.value.tag.name) == (0, "DUPLICATE_OUTPUT")
    assert broker.read(dead).num_rows == 2


def test_custom_job_description_keeps_query_identity(spark: SparkSession, broker: EmbeddedBroker, dead: str, tmp_path: Path) -> None:
    """Else each run would be taken for the one before, whose batch failed behind the sink, and two drivers for one."""
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "checkpointLocation": str(tmp_path / "checkpoint")}
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "0.json").write_text('{"value": "a"}')
    sink, fails = KafkaSink(options, topic=dead), [True, False]

    def write(frame: DataFrame, batch_id: int) -> None:
        spark.sparkContext.setJobGroup("mine", "of my own")
        sink(frame, batch_id)
        if fails.pop(0):
            raise RuntimeError("behind the sink")

    def run() -> None:
        read = spark.readStream.schema("value string").json(str(tmp_path / "input"))
        query = read.writeStream.foreachBatch(write).option("checkpointLocation", options["checkpointLocation"])
        started = query.trigger(availableNow=True).start()
        started.awaitTermination()

    with pytest.raises(Exception, match="behind the sink"):
        run()
    run()
    assert [row["value"] for row in broker.read(dead).to_pylist()] == [b"a"]


def test_writes_work_in_other_threads(spark: SparkSession, broker: EmbeddedBroker, dead: str, tmp_path: Path) -> None:
    """Spark looks for formats that are written in the session of the thread, and says there that there is no format chaffinch."""
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": dead}
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "0.txt").write_text("a")

    def start() -> StreamingQuery:
        read = spark.readStream.text(str(tmp_path / "input"))
        return (
            read.writeStream.format("chaffinch").options(**options).option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True).start()
        )  # fmt: skip

    def write() -> None:
        session().sql("SELECT 'b' AS value").write.format("chaffinch").mode("append").options(**options).save()

    for work in (lambda: supervise(start, restarts_max=0), write):
        with ThreadPoolExecutor(1) as thread:
            thread.submit(work).result()
    assert broker.read(dead).column("value").to_pylist() == [b"a", b"b"]


def test_message_with_quoted_line_end_is_complete(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    """As in the name of a topic or folder, or in an exception of a user's handler."""
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "0.txt").write_text("a")
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "a\nb", "checkpointLocation": str(tmp_path / "c")}

    def start() -> StreamingQuery:
        read = spark.readStream.text(str(tmp_path / "input"))
        return read.writeStream.format("chaffinch").options(**options).trigger(availableNow=True).start()

    with pytest.raises(SupervisionEnded) as caught:
        supervise(start)
    assert str(caught.value).startswith(r"KAFKA[InvalidConfiguration] INVALID_TOPIC_EXCEPTION: topic 'a\nb' (option topic): ")
    assert caught.value.tag is not None
    assert caught.value.tag.text.endswith("; correct the data, the options or the topic; a restart alone does not help")


def test_died_worker_is_reported_as_worker_lost(spark: SparkSession, tmp_path: Path) -> None:
    """Spark gives a task one attempt in local mode, so the query fails."""
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "0.json").write_text('{"word": "a"}')

    def start() -> StreamingQuery:
        def die(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            os._exit(1)
            yield from rows

        def write(frame: DataFrame, batch_id: int) -> None:
            frame.mapInArrow(die, "word string").collect()

        read = spark.readStream.schema("word string").json(str(tmp_path / "input"))
        return read.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()

    with pytest.raises(SupervisionEnded, match=r"^KAFKA\[ApplicationRecoverable\] WORKER_LOST: Python worker exited unexpectedly"):
        supervise(start, restarts_max=0)
