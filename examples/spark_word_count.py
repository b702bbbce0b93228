"""The TransactionalClientDemo of KIP-1050 as a supervised Spark pipeline: counts the words of a topic into another, exactly once.

    python -m examples.spark_word_count --bootstrap-server localhost:9092 --checkpoint /tmp/word-count

Spark keeps the counts and passes on those that a micro-batch has changed; `KafkaSink` writes them to `output` in one Kafka transaction. The
class of an error determines what `supervise` does: write the batch again (TransactionAbortable), restart the query
(ApplicationRecoverable), or stop (InvalidConfiguration). The newest committed count of each word in `output` equals the number of times it
was written to `input`, despite all errors. The program ends with Ctrl-C, or with --once when everything is read.

Both topics must exist: `chaffinch topics create --bootstrap-server localhost:9092 --topic input`, the same with `output`. Write lines
with `chaffinch produce --topic input`, see the counts with `chaffinch consume --topic output --format json`.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from chaffinch.errors import ConfigException
from chaffinch.spark import ErrorTag, JavaNotFound, KafkaSink, SupervisionEnded, session, supervise

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

INPUT, OUTPUT = "input", "output"
WORD = r"explode(split(cast(value as string), '\\s+')) AS word"


def start(spark: SparkSession, bootstrap_servers: str, checkpoint: str, *, once: bool) -> StreamingQuery:
    """Start the query; `supervise` calls this for each run."""
    output = KafkaSink(kafka_bootstrap_servers=bootstrap_servers, topic=OUTPUT, checkpointLocation=checkpoint)

    def write(counts: DataFrame, batch_id: int) -> None:
        output(counts.selectExpr("word AS key", "cast(count AS string) AS value"), batch_id)

    lines = spark.readStream.format("chaffinch").options(
        **{"kafka.bootstrap.servers": bootstrap_servers, "subscribe": INPUT, "startingOffsets": "earliest"}
    )
    counts = lines.load().selectExpr(WORD).where("word <> ''").groupBy("word").count()
    query = counts.writeStream.outputMode("update").foreachBatch(write).option("checkpointLocation", checkpoint)
    return (query.trigger(availableNow=True) if once else query.trigger(processingTime="1 second")).start()


def run(spark: SparkSession, bootstrap_servers: str, checkpoint: str, *, once: bool) -> None:
    """Count until the query ends. Raises SupervisionEnded and ConfigException."""

    def report_restart(tag: ErrorTag, number: int, pause_s: float) -> None:
        print(f"restart {number} in {pause_s:g} s: {tag.name}: {tag.text}", flush=True)

    supervise(lambda: start(spark, bootstrap_servers, checkpoint, once=once), on_restart=report_restart)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Count words exactly once, in Spark.")
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--once", action="store_true")
    chosen = parser.parse_args(arguments)
    try:
        spark = session("word-count", config={"spark.sql.shuffle.partitions": 2})
        try:
            run(spark, chosen.bootstrap_server, chosen.checkpoint, once=chosen.once)
        finally:
            spark.stop()
    except (SupervisionEnded, ConfigException, JavaNotFound) as error:
        print(f"stop: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: uncommitted records are read again next time", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
