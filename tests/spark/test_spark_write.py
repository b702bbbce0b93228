"""Writing with a real Spark: batch writes, streams, dead letters, restarts."""

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.sink.paths import probe_file_name

pytestmark = [
    pytest.mark.spark,
    # PySpark's own; none of ours is silenced.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::FutureWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

GOOD = ("cast(id as string) as key", "cast(concat('value ', id) as binary) as value")


def values(broker: EmbeddedBroker, topic: str) -> Counter[str]:
    return Counter(bytes(value).decode() for value in broker.read(topic).column("value").to_pylist())


def write(frame: DataFrame, broker: EmbeddedBroker, topic: str, **options: str) -> None:
    named = {name.replace("__", "."): value for name, value in options.items()}
    frame.write.format("chaffinch").mode("append").option("kafka.bootstrap.servers", broker.bootstrap_servers).option(
        "topic", topic
    ).options(**named).save()


class Stream:
    """A query over JSON files, one file per micro-batch; each row: key, value."""

    def __init__(self, spark: SparkSession, broker: EmbeddedBroker, topic: str, folder: Path, **options: str) -> None:
        self.spark, self.broker, self.topic, self.folder = spark, broker, topic, folder
        self.options = {name.replace("__", "."): value for name, value in options.items()}
        self.checkpoint = folder / "checkpoint"
        (folder / "input").mkdir()

    def add(self, number: int, rows: Sequence[tuple[str | None, str]]) -> None:
        """One input file. Spark takes them in the order of their modification times."""
        import os

        path = self.folder / "input" / f"{number:04d}.json"
        path.write_text("\n".join(json.dumps({"key": key, "value": value}) for key, value in rows))
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))

    def start(self) -> StreamingQuery:
        frame = self.spark.readStream.schema("key string, value string").option("maxFilesPerTrigger", 1).json(str(self.folder / "input"))
        return (
            frame.writeStream.format("chaffinch")
            .option("checkpointLocation", str(self.checkpoint))
            .option("kafka.bootstrap.servers", self.broker.bootstrap_servers)
            .option("topic", self.topic)
            .options(**self.options)
            .trigger(availableNow=True)
            .start()
        )

    def run(self) -> StreamingQuery:
        query = self.start()
        query.awaitTermination(280)
        assert query.exception() is None
        return query


def text_of(error: pytest.ExceptionInfo[Exception]) -> str:
    """The whole text of a Spark error, which is all that the user gets."""
    return str(error.value)


def test_batch_write_with_all_columns(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    frame = spark.range(100).selectExpr(
        "cast(id as string) as key",
        "cast(concat('value ', id) as binary) as value",
        "timestamp_millis(1700000000000 + id) as timestamp",
        "array(named_struct('key', 'h', 'value', cast(cast(id as string) as binary))) as headers",
        "cast(id % 4 as int) as partition",
    )
    write(frame, broker, topic)
    table = broker.read(topic).sort_by([("timestamp", "ascending")])
    assert table.num_rows == 100
    row = table.slice(7, 1).to_pylist()[0]
    assert (row["key"], row["value"], row["partition"]) == (b"7", b"value 7", 3)
    assert row["headers"] == [{"key": "h", "value": b"7"}]
    assert row["timestamp"].timestamp() == 1_700_000_000.007


def test_token_is_written_once(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    frame = spark.range(10).selectExpr(*GOOD)
    for _ in range(2):
        write(frame, broker, topic, idempotencyToken=f"monday-{topic}")
    assert set(values(broker, topic).values()) == {1}


def test_keys_are_partitioned_like_kafka_clients(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    from kafka.partitioner.default import murmur2

    write(spark.range(50).selectExpr(*GOOD), broker, topic)
    for row in broker.read(topic).to_pylist():
        assert row["partition"] == (murmur2(row["key"]) & 0x7FFFFFFF) % 4


def test_topic_column_selects_topic(spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str) -> None:
    frame = spark.range(20).selectExpr(*GOOD, f"if(id % 2 = 0, '{topic}', '{dead}') as topic")
    frame.write.format("chaffinch").mode("append").option("kafka.bootstrap.servers", broker.bootstrap_servers).save()
    assert (broker.read(topic).num_rows, broker.read(dead).num_rows) == (10, 10)
    repeated = {"kafka.bootstrap.servers": broker.bootstrap_servers, "markerTopic": topic, "idempotencyToken": topic}
    for _ in range(2):
        frame.write.format("chaffinch").mode("append").options(**repeated).save()
    assert (broker.read(topic).num_rows, broker.read(dead).num_rows) == (20, 20)


def test_stream_with_dead_letters_continues_from_checkpoint(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str, tmp_path: Path
) -> None:
    stream = Stream(
        spark, broker, topic, tmp_path, errors__tolerance="all",
        errors__dead__letter__queue__topic__name=dead, errors__dead__letter__path=str(tmp_path / "dead"),
    )  # fmt: skip
    for number in range(3):
        stream.add(number, [(f"k{number}", f"good {number}"), (None, f"keyless {number}"), (f"large{number}", f"{number}" * 2000)])
    stream.run()
    for number in range(3, 5):
        stream.add(number, [(f"k{number}", f"good {number}")])
    query = stream.run()
    assert query.lastProgress is not None
    assert query.lastProgress["batchId"] == 4
    assert values(broker, topic) == {f"good {number}": 1 for number in range(5)}
    letters = values(broker, dead)
    # A dead letter keeps its value where its topic takes it: this one does.
    assert letters == {text: 1 for number in range(3) for text in (f"keyless {number}", f"{number}" * 2000)}
    reasons = Counter(dict((h["key"], h["value"]) for h in row["headers"])["chaffinch.error.name"] for row in broker.read(dead).to_pylist())
    assert reasons == {b"INVALID_COMPACTION_KEY": 3, b"MESSAGE_TOO_LARGE": 3}
    files = spark.read.parquet(str(tmp_path / "dead")).collect()
    assert Counter(row["batch"] for row in files) == {0: 2, 1: 2, 2: 2}
    assert {bytes(row["value"]).decode() for row in files} == set(letters)


def test_stream_survives_broker_kill(spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    """Between two answers of the commit of batch 1; the clients find it again under its old address."""
    stream = Stream(spark, broker, topic, tmp_path)
    for number in range(3):
        stream.add(number, [(f"k{row}", f"{number}-{row}") for row in range(20)])
    broker.faults.add(api="AddOffsetsToTxn", action="delay", delay_ms=500, count=1)
    query = stream.start()
    while broker.counters(topic).get("MessagesInPerSec", 0) == 0 and query.isActive:
        query.awaitTermination(0.02)  # type: ignore[arg-type]  # PySpark takes fractions of a second.
    broker.restart(kill=True)
    assert query.awaitTermination(280)
    assert query.exception() is None
    assert values(broker, topic) == {f"{number}-{row}": 1 for number in range(3) for row in range(20)}


def test_checkpoint_restored_from_older_copy_is_refused(spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    stream = Stream(spark, broker, topic, tmp_path)
    stream.add(0, [("k0", "zero")])
    stream.run()
    shutil.copytree(stream.checkpoint, tmp_path / "copy")
    stream.add(1, [("k1", "one")])
    stream.run()
    shutil.rmtree(stream.checkpoint)
    shutil.copytree(tmp_path / "copy", stream.checkpoint)
    stream.add(2, [("k2", "two")])
    query = stream.start()
    with pytest.raises(
        Exception, match=r"KAFKA\[InvalidConfiguration\] CHECKPOINT_RESTORED: batch 1 was written before with different contents"
    ):
        query.awaitTermination(280)
    assert values(broker, topic) == {"zero": 1, "one": 1}


def test_staging_files_of_large_tasks_are_removed(spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    frame = spark.range(0, 30_000, 1, 2).selectExpr("cast(id as string) as key", "cast(repeat('x', 100) as binary) as value")
    write(frame, broker, topic, stagingLocation=f"file:{staging}", kafka__compression__type="none")
    assert broker.read(topic).num_rows == 30_000
    assert [path.name for path in staging.rglob("*") if path.is_file()] == [probe_file_name()]


def test_output_mode_complete_appends_whole_result(spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    stream = Stream(spark, broker, topic, tmp_path)
    stream.add(0, [("a", "x"), ("b", "x")])
    stream.add(1, [("a", "x")])
    rows = spark.readStream.schema("key string, value string").option("maxFilesPerTrigger", 1).json(str(tmp_path / "input"))
    counts = rows.groupBy("key").count().selectExpr("key", "cast(count as string) as value")
    writer = counts.writeStream.format("chaffinch").outputMode("complete").option("checkpointLocation", str(stream.checkpoint))
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": topic}
    query = writer.options(**options).trigger(availableNow=True).start()
    assert query.awaitTermination(280)
    assert values(broker, topic) == {"1": 3, "2": 1}


class TestBadRows:
    def test_bad_rows_without_tolerance_fail_batch(self, spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
        frame = spark.range(20).selectExpr("if(id % 5 = 0, null, cast(id as string)) as key", "cast(id as string) as value")
        with pytest.raises(Exception, match="KAFKA") as caught:
            write(frame, broker, topic)
        text = text_of(caught)
        assert "KAFKA[InvalidConfiguration] ROWS_REJECTED: 4 of 20 rows are rejected (4 INVALID_COMPACTION_KEY)" in text
        assert "null key, the topic is compacted and needs one" in text
        assert "set errors.tolerance=all" in text
        assert broker.read(topic).num_rows == 0

    def test_batch_of_bad_rows_only(self, spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str) -> None:
        frame = spark.range(20).selectExpr("cast(null as string) as key", "cast(id as string) as value")
        write(frame, broker, topic, errors__tolerance="all", errors__dead__letter__queue__topic__name=dead)
        assert (broker.read(topic).num_rows, broker.read(dead).num_rows) == (0, 20)

    def test_tolerance_max_fails_batch_with_too_many_bad_rows(
        self, spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str
    ) -> None:
        frame = spark.range(20).selectExpr("cast(null as string) as key", "cast(id as string) as value")
        with pytest.raises(Exception, match="20 of 20 rows are rejected"):
            write(
                frame, broker, topic, errors__tolerance="all", errors__tolerance__max="50%", errors__dead__letter__queue__topic__name=dead
            )
        assert broker.read(dead).num_rows == 0

    def test_rows_with_their_own_reason_become_dead_letters(
        self, spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str
    ) -> None:
        """Option errors.column, next to a row that the topic refuses."""
        reasons = "concat_ws('; ', if(id % 5 = 0, 'amount is negative', null), if(id % 10 = 0, 'no customer', null)) as why"
        frame = spark.range(20).selectExpr("if(id = 3, null, cast(id as string)) as key", "cast(id as string) as value", reasons)
        with pytest.raises(Exception, match="KAFKA") as caught:
            write(frame, broker, topic, errors__column="why")
        assert "5 of 20 rows are rejected (2 INVALID_RECORD: amount is negative; no customer, 2 INVALID_RECORD: amount" in text_of(caught)
        assert f"for {topic}: INVALID_RECORD: amount is negative; no customer;" in text_of(caught)
        assert broker.read(topic).num_rows == 0
        write(frame, broker, topic, errors__column="why", errors__tolerance="all", errors__dead__letter__queue__topic__name=dead)
        assert broker.read(topic).num_rows == 15
        letters = {row["value"]: dict((pair["key"], pair["value"]) for pair in row["headers"]) for row in broker.read(dead).to_pylist()}
        assert {value: letter["chaffinch.error.message"] for value, letter in letters.items() if value != b"3"} == {
            b"0": b"amount is negative; no customer", b"5": b"amount is negative",
            b"10": b"amount is negative; no customer", b"15": b"amount is negative",
        }  # fmt: skip
        assert letters[b"3"]["chaffinch.error.name"] == b"INVALID_COMPACTION_KEY"

    def test_write_without_rows(self, spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
        write(spark.range(0).selectExpr(*GOOD), broker, topic, idempotencyToken=f"empty-{topic}")
        assert broker.read(topic).num_rows == 0


class TestBadInput:
    """Refused before any task: the text says which value, where, what is allowed."""

    def refused(self, spark: SparkSession, broker: EmbeddedBroker, topic: str, frame: DataFrame | None = None, **options: str) -> str:
        frame = spark.range(1).selectExpr(*GOOD) if frame is None else frame
        with pytest.raises(Exception, match="KAFKA") as caught:
            write(frame, broker, topic, **options)
        return text_of(caught)

    def test_unknown_option(self, spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
        text = self.refused(spark, broker, topic, stagingLocatoin="/tmp")
        assert "KAFKA[InvalidConfiguration]" in text
        assert "unknown option 'staginglocatoin': the nearest known one is 'stagingLocation'" in text

    def test_unknown_option_of_the_client(self, spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
        text = self.refused(spark, broker, topic, kafka__compression__typ="lz4")
        assert "unknown option 'kafka.compression.typ': the nearest known one is 'kafka.compression.type'" in text

    def test_planning_checks_run_only_for_batches_with_input(
        self, spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path
    ) -> None:
        """Spark makes the sink of a stream for its first micro-batch with rows, the one of a batch write at once."""
        Stream(spark, broker, topic, tmp_path, bootstrap="x").run()
        empty = spark.createDataFrame([], "key string, value string")
        with pytest.raises(Exception, match="unknown option 'bootstrap'"):
            write(empty, broker, topic, bootstrap="x")
        write(empty, broker, topic)
        assert not values(broker, topic)

    def test_wrong_column_type(self, spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
        text = self.refused(spark, broker, topic, spark.range(1).selectExpr("id as value"))
        assert "column 'value' has type bigint; allowed: string, binary" in text

    def test_missing_value_column(self, spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
        text = self.refused(spark, broker, topic, spark.range(1).selectExpr("cast(id as string) as key"))
        assert "column 'value' is missing (columns: key); it must be string or binary" in text

    def test_unknown_topic(self, spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
        text = self.refused(spark, broker, "no-such-topic")
        assert "KAFKA[InvalidConfiguration] UNKNOWN_TOPIC_OR_PARTITION: topic 'no-such-topic' (option topic)" in text
        assert f"does not exist on {broker.bootstrap_servers}; create it, or correct the name" in text

    def test_broker_not_reachable(self, spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
        frame = spark.range(1).selectExpr(*GOOD)
        with pytest.raises(Exception, match="KAFKA") as caught:
            frame.write.format("chaffinch").mode("append").option("kafka.bootstrap.servers", "127.0.0.1:1").option("topic", topic).option(
                "kafka.max.block.ms", 1000
            ).save()
        assert "127.0.0.1:1" in text_of(caught)
        assert "refused" in text_of(caught)

    def test_invalid_bootstrap_address(self, spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
        text = self.refused(spark, broker, topic, kafka__bootstrap__servers="nonsense")
        assert "KAFKA[InvalidConfiguration]" in text
        assert "nonsense" in text

    def test_staging_folder_not_writable(self, spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way")
        text = self.refused(spark, broker, topic, stagingLocation=str(tmp_path / "file" / "staging"))
        assert f"stagingLocation={tmp_path}/file/staging cannot be written" in text
        assert "name a folder that driver and executors can write to" in text

    @pytest.mark.parametrize("is_argument", [False, True])
    def test_output_mode_update_is_refused_at_start(
        self, spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path, is_argument: bool
    ) -> None:
        options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": topic, "checkpointLocation": str(tmp_path)}
        frame = spark.readStream.format("rate").load().selectExpr("cast(value as string) as value")
        writer = frame.writeStream.options(**options)
        modes = {"format": "chaffinch", "outputMode": "update"} if is_argument else {}
        if not is_argument:
            writer = writer.format("Chaffinch").outputMode("update")
        with pytest.raises(Refusal, match=r"\[InvalidConfiguration\] CONFIG: output mode update .* write with foreachBatch\(KafkaSink\("):
            writer.start(**modes)
        assert not spark.streams.active

    def test_output_mode_update_of_other_formats_is_allowed(self, spark: SparkSession) -> None:
        frame = spark.readStream.format("rate").load()
        query = frame.writeStream.format("noop").outputMode("update").trigger(availableNow=True).start()
        query.awaitTermination(60)
        assert query.exception() is None

    def test_output_mode_complete_is_accepted(self, spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
        stream = Stream(spark, broker, topic, tmp_path)
        stream.add(0, [("a", "1"), ("a", "2")])
        frame = spark.readStream.schema("key string").json(str(tmp_path / "input")).groupBy("key").count()
        options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": topic, "checkpointLocation": str(stream.checkpoint)}
        rows = frame.selectExpr("key", "cast(count as string) as value")
        rows.writeStream.format("chaffinch").outputMode("complete").options(**options).trigger(availableNow=True).start().awaitTermination(
            60
        )
        assert values(broker, topic) == {"2": 1}

    @pytest.mark.parametrize("mode", [None, "error", "ignore"])
    def test_missing_append_is_explained(self, spark: SparkSession, broker: EmbeddedBroker, topic: str, mode: str | None) -> None:
        writer = spark.range(1).selectExpr(*GOOD).write.format("chaffinch")
        writer = writer.option("kafka.bootstrap.servers", broker.bootstrap_servers).option("topic", topic)
        named = "Ignore" if mode == "ignore" else "ErrorIfExists"
        with pytest.raises(Refusal, match=rf'CONFIG: mode {named} cannot be used .* call \.mode\("append"\) before \.save\(\)'):
            (writer if mode is None else writer.mode(mode)).save()

    def test_errors_of_other_formats_are_those_of_spark(self, spark: SparkSession, tmp_path: Path) -> None:
        spark.range(1).write.parquet(str(tmp_path / "rows"))
        with pytest.raises(AnalysisException, match="PATH_ALREADY_EXISTS"):
            spark.range(1).write.format("parquet").save(str(tmp_path / "rows"))

    def test_overwrite(self, spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
        with pytest.raises(Exception, match=r'mode\("overwrite"\) cannot be'):
            spark.range(1).selectExpr(*GOOD).write.format("chaffinch").mode("overwrite").option(
                "kafka.bootstrap.servers", broker.bootstrap_servers
            ).option("topic", topic).save()


def test_topic_limit_change_applies_to_running_stream(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str, tmp_path: Path
) -> None:
    """The planner's snapshot of the next batch sees it; what changes after the snapshot is `commit/test_culprits.py`."""
    broker.create_topic(f"{topic}-open", 2, 1, {})
    stream = Stream(spark, broker, f"{topic}-open", tmp_path, errors__tolerance="all", errors__dead__letter__queue__topic__name=dead)
    stream.add(0, [(None, "before")])
    stream.run()
    alter(broker, f"{topic}-open", "cleanup.policy", "compact")
    stream.add(1, [(None, "after"), ("k", "keyed")])
    stream.run()
    assert values(broker, f"{topic}-open") == {"before": 1, "keyed": 1}
    assert values(broker, dead) == {"after": 1}


def alter(broker: EmbeddedBroker, topic: str, name: str, value: str) -> None:
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()
