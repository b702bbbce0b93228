"""With a real Spark: tasks that send by themselves, a handler in their processes, and errors as they reach the user."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chaffinch import NonRetriableResponse, ProducerExceptionHandler, ProducerRecord
from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.errors import ApiException
from chaffinch.errors.codes import Group
from chaffinch.spark import tag_in
from tests.spark.test_spark_write import Stream, text_of, values, write

pytestmark = [
    pytest.mark.spark,
    # PySpark's own; none of ours is silenced.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::FutureWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


class LeaveOutNine(ProducerExceptionHandler):
    """Tasks import it by its name."""

    def handle_rejected_record(self, record: ProducerRecord, exception: ApiException) -> NonRetriableResponse:
        return NonRetriableResponse.SWALLOW if record.value == b"9" else NonRetriableResponse.FAIL


def test_stream_changes_from_at_least_once_to_exactly_once(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str, tmp_path: Path
) -> None:
    stream = Stream(
        spark, broker, topic, tmp_path, deliveryGuarantee="at-least-once", errors__tolerance="all",
        errors__dead__letter__queue__topic__name=dead, errors__dead__letter__path=str(tmp_path / "dead"),
    )  # fmt: skip
    stream.add(0, [("a", "0"), (None, "keyless")])
    stream.run()
    stream.options["deliveryGuarantee"] = "exactly-once"
    stream.add(1, [("b", "1")])
    stream.run()
    assert values(broker, topic) == {"0": 1, "1": 1}
    assert values(broker, dead) == {"keyless": 1}
    assert [row["error_name"] for row in spark.read.parquet(str(tmp_path / "dead")).collect()] == ["INVALID_COMPACTION_KEY"]


def test_exception_handler_runs_in_tasks(spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str) -> None:
    frame = spark.range(10).selectExpr("if(id < 8, cast(id as string), null) as key", "cast(id as string) as value")
    write(
        frame, broker, topic, errors__tolerance="all", errors__dead__letter__queue__topic__name=dead,
        kafka__custom__exception__handler__class="tests.spark.test_spark_direct.LeaveOutNine",
    )  # fmt: skip
    assert (broker.read(topic).num_rows, values(broker, dead)) == (8, {"8": 1})


@pytest.mark.parametrize(
    ("api", "error", "group", "text"),
    [
        ("InitProducerId", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", Group.INVALID_CONFIGURATION, "; correct the data, the options"),
        ("AddPartitionsToTxn", "TRANSACTION_ABORTABLE", Group.TRANSACTION_ABORTABLE, "no rows of the batch are visible"),
        ("TxnOffsetCommit", "ILLEGAL_GENERATION", Group.APPLICATION_RECOVERABLE, "; run it again"),
        ("AddOffsetsToTxn", "COORDINATOR_LOAD_IN_PROGRESS", Group.RETRIABLE, "retried for 2000 ms (kafka.max.block.ms)"),
        ("AddOffsetsToTxn", "NOT_COORDINATOR", Group.REFRESH_RETRIABLE, "; run it again"),
    ],
)  # fmt: skip
def test_error_of_each_group_reaches_user_in_one_line(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, api: str, error: str, group: Group, text: str
) -> None:
    broker.faults.add(api=api, error=error, count=10_000)
    with pytest.raises(Exception, match="KAFKA") as caught:
        write(
            spark.range(1).selectExpr("'k' as key", "'v' as value"),
            broker,
            topic,
            idempotencyToken=topic,
            kafka__max__block__ms="2000",
        )
    lines = [line for line in text_of(caught).splitlines() if "KAFKA[" in line]
    assert len(lines) == 2, "before the frames of Python, and at their end"
    tag = tag_in(text_of(caught))
    assert tag is not None
    assert (tag.group, tag.name) == (group, error)
    assert [(text in line, line.count(error)) for line in lines] == [(True, 1)] * 2


def test_path_is_refused(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    frame = spark.range(1).selectExpr("'v' as value")
    with pytest.raises(Exception, match=r"KAFKA\[InvalidConfiguration\] CONFIG: .*save\(\) and start\(\) take no path here"):
        frame.write.format("chaffinch").mode("append").option("kafka.bootstrap.servers", broker.bootstrap_servers).save(f"/{topic}")
