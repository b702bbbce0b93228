"""The Spark programs in `examples/`, with the session and the broker of these tests."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chaffinch import EmbeddedBroker, Producer
from examples import cleaning_pipeline, spark_word_count
from tests.spark.test_spark_write import values

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::FutureWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def test_cleaning_pipeline(spark: SparkSession, tmp_path: Path) -> None:
    """Lines of one writer are good, those of another name their key otherwise, one has none."""
    folder = tmp_path / "orders"
    folder.mkdir()
    good = [json.dumps({"id": str(number), "amount": number}) for number in range(5)]
    repairable = [json.dumps({"order": f"o{number}"}) for number in range(3)]
    (folder / "one.json").write_text("\n".join([*good, *repairable]))
    (folder / "two.json").write_text("no JSON at all")
    with EmbeddedBroker(topics={"orders": {}}) as broker:  # As the README's, which takes orders without a key.
        as_they_are, repaired = cleaning_pipeline.run(spark, broker.bootstrap_servers, str(folder), str(tmp_path / "checkpoint"))
        assert (as_they_are.read, as_they_are.still_rejected) == (4, {"INVALID_COMPACTION_KEY": 4})
        assert (repaired.written, repaired.still_rejected) == (3, {"INVALID_COMPACTION_KEY": 1})
        assert values(broker, cleaning_pipeline.ORDERS) == dict.fromkeys([*good, *repairable], 1)


def test_word_counts_from_topic_to_topic(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Through an error that fences the writer at the very end of its transaction: every count is there once.

    The transaction stays open, as no producer has fenced it: the broker ends it before the sink has waited for it long enough.
    """
    topics = {spark_word_count.INPUT: {"partitions": 2}, spark_word_count.OUTPUT: {"cleanup.policy": "compact"}}
    config = {"transaction.max.timeout.ms": 5000, "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}
    with EmbeddedBroker(topics=topics, config=config) as broker:
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for line in ("one two", "two three  two", ""):
                producer.send(spark_word_count.INPUT, line)
        broker.faults.add(api="EndTxn", error="INVALID_PRODUCER_EPOCH", count=1)
        spark_word_count.run(spark, broker.bootstrap_servers, str(tmp_path / "checkpoint"), once=True)
        counts = [(row["key"], row["value"]) for row in broker.read(spark_word_count.OUTPUT).to_pylist()]
    assert sorted(counts) == [(b"one", b"1"), (b"three", b"1"), (b"two", b"3")]
    assert capsys.readouterr().out.startswith("restart 1 in 1 s: PRODUCER_FENCED: ")
