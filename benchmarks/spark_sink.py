"""The Spark sink, exactly once, compared with Spark's `noop` sink: rows from Parquet, one broker process, one run.

Rows have a key of 12 bytes and a value of 100; four partitions, on disk, `local[2]`. Every row is read back and must exist once. Then
micro-batches of ten rows: median time per batch, compared with a Python no-op sink. This needs the `spark` extra and Java.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from benchmarks.brokers import chaffinch_broker
from chaffinch.spark import session

ROUNDS = 3
MICRO_BATCHES = 25
MS_AIM = 100


class _DiscardingWriter:
    """Reads the rows and discards them."""

    def write(self, iterator: Any) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class NothingWriter(_DiscardingWriter, DataSourceArrowWriter):
    """Writer of a batch query."""


class NothingStreamWriter(_DiscardingWriter, DataSourceStreamArrowWriter):
    """Writer of micro-batches."""


class Nothing(DataSource):
    """A Python no-op sink."""

    @classmethod
    def name(cls) -> str:
        return "nothing"

    def writer(self, schema: Any, overwrite: bool) -> NothingWriter:
        return NothingWriter()

    def streamWriter(self, schema: Any, overwrite: bool) -> NothingStreamWriter:
        return NothingStreamWriter()


def seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def throughput(spark: Any, servers: str, folder: Path, count: int) -> bool:
    """Print the rows per second of both. Returns whether every row was read back once."""
    rows = str(folder / "rows")
    spark.range(0, count, 1, 4).selectExpr("lpad(cast(id as string), 12, '0') as key", "repeat('v', 100) as value").write.parquet(rows)
    frame = spark.read.parquet(rows)

    def into_kafka() -> None:
        frame.write.format("chaffinch").mode("append").option("kafka.bootstrap.servers", servers).option("topic", "rows").save()

    def into_nothing() -> None:
        frame.write.format("noop").mode("overwrite").save()

    into_kafka()  # Warm-up: starts workers and loads the compiled loops.
    nothing = [seconds(into_nothing) for _ in range(ROUNDS)]
    kafka = [seconds(into_kafka) for _ in range(ROUNDS)]
    for name, taken in (("spark scan into noop", nothing), ("chaffinch, exactly once", kafka)):
        print(f"{name:28} {count / min(taken) / 1e6:6.2f} M rows/s   {min(taken):6.2f} s, median {statistics.median(taken):.2f} s")
    read = spark.read.format("chaffinch").option("kafka.bootstrap.servers", servers).option("subscribe", "rows").load()
    expected = (1 + ROUNDS) * count
    took = seconds(lambda: print(f"{'read back':28} {read.count()} rows, {read.select('key').distinct().count()} keys"))
    print(f"{'chaffinch, reading':28} {2 * expected / took / 1e6:6.2f} M rows/s")
    return bool(read.count() == expected and read.select("key").distinct().count() == count)


def micro_batches(spark: Any, servers: str, folder: Path) -> None:
    """Print the median time of a micro-batch of ten rows, for our sink and for a Python no-op sink."""
    spark.dataSource.register(Nothing)
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).option("numPartitions", 2).load()
    frame = source.selectExpr("cast(value as string) as key", "cast(value as string) as value")
    medians = {}
    for name in ("nothing", "chaffinch"):
        writer = frame.writeStream.format(name).option("checkpointLocation", str(folder / name))
        if name == "chaffinch":
            writer = writer.option("kafka.bootstrap.servers", servers).option("topic", "small")
        query = writer.start()
        while query.lastProgress is None or query.lastProgress["batchId"] < MICRO_BATCHES:
            time.sleep(0.1)
            if query.exception() is not None:
                raise RuntimeError(str(query.exception()))
        taken = [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress[-MICRO_BATCHES + 5 :]]
        query.stop()
        medians[name] = statistics.median(taken)
        print(f"{'micro-batch, ' + name:28} {medians[name]:6.0f} ms")
    print(f"{'more than no-op':28} {medians['chaffinch'] - medians['nothing']:6.0f} ms (target: {MS_AIM})")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "log4j2.properties").write_text("rootLogger.level = off\n")
        quiet = f"-Dlog4j2.configurationFile={folder}/log4j2.properties"
        with chaffinch_broker(str(folder / "broker"), ["rows:4", "small:4"]) as broker:
            spark = session("benchmark", master="local[2]", config={"spark.driver.extraJavaOptions": quiet})
            is_complete = throughput(spark, broker.bootstrap_servers, folder, rows)
            micro_batches(spark, broker.bootstrap_servers, folder)
            spark.stop()
    if not is_complete:
        print("rows are missing or duplicated", file=sys.stderr)
    return 0 if is_complete else 1


if __name__ == "__main__":
    sys.exit(main())
