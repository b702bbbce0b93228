"""Reading topics with a real Spark: schema, offsets, transactions."""

import json
from collections.abc import Mapping, Sequence

import pytest
from kafka import KafkaProducer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.spark.source.rows import HEADERS_SCHEMA, READ_SCHEMA

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::FutureWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def read(spark: SparkSession, broker: EmbeddedBroker, **options: str) -> DataFrame:
    named = {name.replace("__", "."): value for name, value in options.items()}
    return spark.read.format("chaffinch").option("kafka.bootstrap.servers", broker.bootstrap_servers).options(**named).load()


@pytest.fixture
def plain(broker: EmbeddedBroker, topic: str) -> str:
    """A topic with ten records in partition 0 and five in partition 1, written by another client."""
    name = f"{topic}-plain"
    broker.create_topic(name, 2, 1, {})
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, linger_ms=0)
    for number in range(15):
        producer.send(name, key=b"%d" % number, value=b"value %d" % number, partition=0 if number < 10 else 1,
                      timestamp_ms=1_700_000_000_000 + number, headers=[("h", b"%d" % number)])  # fmt: skip
        producer.flush()
    producer.close()
    return name


@pytest.mark.parametrize(("headers", "schema"), [("false", READ_SCHEMA), ("true", READ_SCHEMA + HEADERS_SCHEMA)])
def test_schema_equals_kafka_source_of_spark(spark: SparkSession, broker: EmbeddedBroker, plain: str, headers: str, schema: str) -> None:
    assert read(spark, broker, subscribe=plain, includeHeaders=headers).schema == StructType.fromDDL(schema)


def test_schema_ignores_timestamp_type_of_session(spark: SparkSession, broker: EmbeddedBroker, plain: str) -> None:
    """Spark's own source has one schema, too, whatever `timestamp` means in SQL."""
    schema = read(spark, broker, subscribe=plain).schema
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        frame = read(spark, broker, subscribe=plain)
        assert frame.schema == schema
        (row,) = frame.where("partition = 1 AND offset = 2").collect()
        assert row["timestamp"].timestamp() == 1_700_000_000.012
    finally:
        spark.conf.unset("spark.sql.timestampType")


def test_all_columns_have_values(spark: SparkSession, broker: EmbeddedBroker, plain: str) -> None:
    rows = read(spark, broker, subscribe=plain, includeHeaders="true").orderBy("partition", "offset").collect()
    assert [bytes(row["value"]) for row in rows] == [b"value %d" % number for number in range(15)]
    row = rows[12]
    assert (bytes(row["key"]), row["topic"], row["partition"], row["offset"], row["timestampType"]) == (b"12", plain, 1, 2, 0)
    assert row["timestamp"].timestamp() == 1_700_000_000.012
    assert [(header["key"], bytes(header["value"])) for header in row["headers"]] == [("h", b"12")]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, range(15)),
        ({"startingOffsets": {"0": 8, "1": -2}}, range(8, 15)),
        ({"endingOffsets": {"0": 3, "1": -1}}, [0, 1, 2, 10, 11, 12, 13, 14]),
        ({"startingOffsets": {"0": 4, "1": 2}, "endingOffsets": {"0": 6, "1": 2}}, [4, 5]),
        ({"startingOffsets": {"0": 10, "1": 5}}, []),
    ],
)
def test_offset_options_limit_read(
    spark: SparkSession, broker: EmbeddedBroker, plain: str, options: Mapping[str, Mapping[str, int]], expected: Sequence[int]
) -> None:
    given = {name: json.dumps({plain: offsets}) for name, offsets in options.items()}
    rows = read(spark, broker, subscribe=plain, **given).collect()
    assert sorted(int(bytes(row["key"])) for row in rows) == list(expected)


def test_assigned_partitions_are_read(spark: SparkSession, broker: EmbeddedBroker, plain: str) -> None:
    rows = read(spark, broker, assign=json.dumps({plain: [1]})).collect()
    assert sorted(int(bytes(row["key"])) for row in rows) == [10, 11, 12, 13, 14]


def test_aborted_records_are_skipped(spark: SparkSession, broker: EmbeddedBroker, plain: str) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=f"t-{plain}", enable_idempotence=True)
    producer.init_transactions()
    for number, commits in ((100, False), (101, True), (102, False)):
        producer.begin_transaction()
        producer.send(plain, key=b"%d" % number, value=b"", partition=0).get(timeout=60)
        (producer.commit_transaction if commits else producer.abort_transaction)()
    producer.close()
    committed = read(spark, broker, subscribe=plain).collect()
    assert sorted(int(bytes(row["key"])) for row in committed) == [*range(15), 101]
    everything = read(spark, broker, subscribe=plain, kafka__isolation__level="read_uncommitted").collect()
    assert sorted(int(bytes(row["key"])) for row in everything) == [*range(15), 100, 101, 102]


def test_rows_can_be_copied_to_another_topic(spark: SparkSession, broker: EmbeddedBroker, plain: str) -> None:
    """What is read can be written as it is; the columns that say where it came from are not in the way."""
    broker.create_topic(f"{plain}-copy", 2, 1, {})
    frame = read(spark, broker, subscribe=plain, includeHeaders="true")
    frame.write.format("chaffinch").mode("append").option("kafka.bootstrap.servers", broker.bootstrap_servers).option(
        "topic", f"{plain}-copy"
    ).save()
    kept = ["partition", "offset", "timestamp", "key", "value", "headers"]
    assert broker.read(f"{plain}-copy").select(kept).to_pylist() == broker.read(plain).select(kept).to_pylist()


def test_view_passes_options_and_catalog_table_does_not(spark: SparkSession, broker: EmbeddedBroker, plain: str) -> None:
    view, table = f"view_{plain}".replace("-", "_"), f"table_{plain}".replace("-", "_")
    options = f"`kafka.bootstrap.servers` '{broker.bootstrap_servers}', subscribe '{plain}'"
    spark.sql(f"CREATE TEMPORARY VIEW {view} USING chaffinch OPTIONS ({options})")
    assert spark.sql(f"SELECT count(*) FROM {view}").collect() == [(15,)]
    spark.sql(f"CREATE TABLE {table} USING chaffinch OPTIONS ({options})")
    try:
        with pytest.raises(Exception, match="use CREATE TEMPORARY VIEW"):
            spark.sql(f"SELECT count(*) FROM {table}").collect()
        assert spark.sql(f"SELECT count(*) FROM {table} WITH ({options})").collect() == [(15,)]
    finally:
        spark.sql(f"DROP TABLE {table}")


class TestDataLoss:
    def test_missing_offsets_fail(self, spark: SparkSession, broker: EmbeddedBroker, plain: str) -> None:
        given = json.dumps({plain: {"0": 5, "1": 99}})
        with pytest.raises(Exception, match="set failOnDataLoss=false to read the remaining records") as caught:
            read(spark, broker, subscribe=plain, endingOffsets=given).collect()
        assert f"endingOffsets: {plain}-1 ends at offset 5, offset 99 was requested" in str(caught.value)

    def test_missing_offsets_are_skipped_without_fail_on_data_loss(self, spark: SparkSession, broker: EmbeddedBroker, plain: str) -> None:
        given = json.dumps({plain: {"0": 0, "1": 99}})
        assert read(spark, broker, subscribe=plain, endingOffsets=given, failOnDataLoss="false").count() == 5


class TestBadInput:
    """`source/test_options.py` tests the options, `test_stream_reader.py` missing topics; this one, that users see the error."""

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"subscribe": "a", "startingOfsets": "earliest"}, "nearest known one is 'startingOffsets'"),
            ({"subscribe": "no-such-topic"}, r"topic 'no-such-topic' \(option subscribe\) does not exist on"),
        ],
    )
    def test_wrong_options_are_refused(self, spark: SparkSession, broker: EmbeddedBroker, options: Mapping[str, str], text: str) -> None:
        with pytest.raises(Exception, match=text) as caught:
            read(spark, broker, **options).collect()
        assert "KAFKA[InvalidConfiguration]" in str(caught.value)
