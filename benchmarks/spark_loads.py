"""Loads for a Spark session: `spark_vs_connector.py` starts this process with the PySpark and the number of cores to compare.

    python -m benchmarks.spark_loads local[2] JARS FOLDER

Each line on standard input is one load as JSON. The result is one line on standard output: seconds, and the processor time of all processes
of the session (Java and its Python workers); or `failed` with the reason in one line. "ours" is the format `chaffinch`, "theirs" is Spark's
`kafka`.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.spark_sink import Nothing
from chaffinch.spark import session

MICRO_BATCHES, WARM_UP_BATCHES = 15, 4
FAILURE_TEXT_MAX = 600
FORMATS = {"ours": "chaffinch", "theirs": "kafka", "nothing": "nothing"}
_VALUE = """rpad(concat('{"order":"', lpad(hex(xxhash64(id)), 16, '0'), '","customer":', lpad(pmod(id * 48271, 1000003), 7, '0'),
    ',"amount":', lpad(pmod(id * 7919, 100000), 5, '0'), ',"currency":"EUR","state":"open"}'), 100, ' ')"""
_HASHED = ("count(1)", "cast(sum(cast(xxhash64(cast(key as string), cast(value as string)) as decimal(38, 0))) as string)")


def process_tree_cpu_seconds() -> float:
    """User and system time of this process and all its descendants, including those that have ended."""
    parents: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has ended.
        pid = int(path.parent.name)
        parents.setdefault(int(fields[1]), []).append(pid)
        ticks[pid] = sum(int(field) for field in fields[11:15])
    total, left = 0, [os.getpid()]
    while left:
        pid = left.pop()
        total += ticks.get(pid, 0)
        left += parents.get(pid, [])
    return total / os.sysconf("SC_CLK_TCK")


class Loads:
    """The loads of one session."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._hashes: dict[str, list[Any]] = {}
        self._queries = 0

    def run(self, load: Mapping[str, Any]) -> Mapping[str, Any]:
        names: Mapping[str, Callable[..., Mapping[str, Any]]] = {
            "rows": self.rows, "write": self.write, "read": self.read, "is_whole": self.is_whole, "micro_batches": self.micro_batches,
        }  # fmt: skip
        return names[load["load"]](**{name: value for name, value in load.items() if name != "load"})

    def rows(self, path: str, count: int, keyless_every: int) -> Mapping[str, Any]:
        """Write Parquet: a key of 12 bytes (null in each `keyless_every`-th row; 0: in none), 100 bytes of JSON, a third of them noise."""
        key = "lpad(cast(id as string), 12, '0')"
        key = f"if(id % {keyless_every} = 0, null, {key})" if keyless_every else key
        self._spark.range(0, count, 1, 4).selectExpr(f"{key} as key", f"{_VALUE} as value").write.mode("overwrite").parquet(path)
        return {}

    def write(self, side: str, path: str, options: Mapping[str, str], session: Mapping[str, str]) -> Mapping[str, Any]:
        """Write the rows of `path`. `session`: Spark settings for this write only."""
        frame = self._spark.read.parquet(path)
        for name, value in session.items():
            self._spark.conf.set(name, value)
        try:
            return _measure(lambda: frame.write.format(FORMATS[side]).options(**options).mode("append").save())
        finally:
            for name in session:
                self._spark.conf.unset(name)

    def read(self, side: str, options: Mapping[str, str]) -> Mapping[str, Any]:
        """Read all rows of a topic and sum the lengths of their values."""
        frame = self._topic(FORMATS[side], options).selectExpr("count(1)", "sum(length(value))")
        found: list[Any] = []
        times = _measure(lambda: found.extend(frame.collect()[0]))
        return {**times, "count": found[0], "bytes": found[1]}

    def is_whole(self, path: str, options: Mapping[str, str], where: str) -> Mapping[str, Any]:
        """Whether a topic, read by Spark's connector, has each row of the Parquet directory that satisfies `where` exactly once."""
        cache_key = f"{path} {where}"
        if cache_key not in self._hashes:
            self._hashes[cache_key] = list(self._spark.read.parquet(path).where(where).selectExpr(*_HASHED).collect()[0])
        found = list(
            self._topic(FORMATS["theirs"], {**options, "kafka.isolation.level": "read_committed"}).selectExpr(*_HASHED).collect()[0]
        )
        return {"is_whole": found == self._hashes[cache_key], "found": found, "expected": self._hashes[cache_key]}

    def micro_batches(self, side: str, options: Mapping[str, str], where: str) -> Mapping[str, Any]:
        """The median duration of micro-batches of ten rows, filtered by `where`, in ms."""
        source = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).option("numPartitions", 2).load().where(where)
        self._queries += 1
        writer = source.selectExpr("cast(value as string) as key", "cast(value as string) as value").writeStream.format(FORMATS[side])
        query = writer.options(**options).option("checkpointLocation", str(self._folder / f"query-{self._queries}")).start()
        try:
            while query.lastProgress is None or query.lastProgress["batchId"] < MICRO_BATCHES + WARM_UP_BATCHES:
                if query.awaitTermination(1):
                    raise RuntimeError(f"the query has ended: {query.exception()}")
            taken = [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress]
        finally:
            query.stop()
        return {"ms": statistics.median(taken[WARM_UP_BATCHES:])}

    def _topic(self, format_name: str, options: Mapping[str, str]) -> DataFrame:
        return self._spark.read.format(format_name).options(**options).option("startingOffsets", "earliest").load()


def _measure(action: Callable[[], object]) -> Mapping[str, Any]:
    cpu, began = process_tree_cpu_seconds(), time.perf_counter()
    action()
    return {"seconds": time.perf_counter() - began, "cpu_seconds": process_tree_cpu_seconds() - cpu}


def _run_or_failure(loads: Loads, load: Mapping[str, Any]) -> Mapping[str, Any]:
    """The result of the load; if it fails, the first line of the error and the innermost cause in Java."""
    try:
        return loads.run(load)
    except Exception as error:  # Any error of Spark; the next loads continue.
        lines = str(error).splitlines() or [""]
        causes = [line.strip() for line in lines[1:] if line.startswith("Caused by: ")]
        return {"failed": " ".join([f"{type(error).__name__}: {lines[0]}", *causes[-1:]])[:FAILURE_TEXT_MAX]}


def _lines() -> Iterator[Mapping[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


def main() -> int:
    master, jars, name = sys.argv[1:]
    folder = Path(name)
    # Java writes to the standard output of this process as well: results use a duplicate descriptor.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    spark = session("benchmark", master=master, config={"spark.jars": jars})
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(Nothing)
    loads = Loads(spark, folder)
    print(json.dumps({"spark": spark.version}), file=answers)
    for load in _lines():
        print(json.dumps(_run_or_failure(loads, load)), file=answers)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
