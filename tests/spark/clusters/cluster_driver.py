"""The driver's program of the cluster tests: `cluster_driver.py FOLDER`, with what to do in `FOLDER/calls.json`; answers: `found.json`.

Its functions reach the executors by value (they are pickled as those of `__main__`), so nothing of the tests is needed there.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

KEYED = ("cast(id as string) as key", "cast(rpad(concat('value ', id), 100, '.') as binary) as value")
UNREACHABLE = "127.0.0.1:1"
Trouble = Callable[[Any], None]
"""What happens to a task once it has handed on all its rows, most of which are staged in a file by then. Brings the task's context."""


def write(frame: Any, servers: str, topic: str, options: Mapping[str, str]) -> None:
    frame.write.format("chaffinch").mode("append").option("kafka.bootstrap.servers", servers).option("topic", topic).options(
        **options
    ).save()


def keyed(spark: Any, rows: int) -> Any:
    """Two tasks, 0 and 1, one for each worker."""
    return spark.range(0, rows, 1, 2).selectExpr(*KEYED)


def with_trouble(frame: Any, trouble: Trouble) -> Any:
    def run(rows: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        yield from rows
        trouble(TaskContext.get())

    return frame.mapInArrow(run, frame.schema)


def places(spark: Any, folder: Path) -> list[dict[str, str]]:
    """What each host has."""

    def look(_: Iterator[int]) -> Iterator[dict[str, str]]:
        import pyspark

        import chaffinch

        host = os.environ["SPARK_LOCAL_IP"]
        yield {"host": host, "python": sys.executable, "pyspark": pyspark.__version__, "chaffinch": chaffinch.__file__ or ""}

    # As a barrier both tasks begin at the same time, so that neither worker, with one core each, can have both.
    found = spark.sparkContext.parallelize(range(2), 2).barrier().mapPartitions(look).collect()
    return sorted(found, key=lambda place: place["host"])


def batch(spark: Any, folder: Path, *, servers: str, topic: str, rows: int, options: dict[str, str]) -> None:
    write(keyed(spark, rows), servers, topic, options)


def started(frame: Any, folder: Path, servers: str, topic: str, **options: str) -> Any:
    """A query with its checkpoint in `folder`, which runs until it has what there is."""
    given = {"kafka.bootstrap.servers": servers, "topic": topic, "checkpointLocation": str(folder / "checkpoint"), **options}
    return frame.writeStream.format("chaffinch").options(**given).trigger(availableNow=True).start()


def files(spark: Any, folder: Path, first: int, last: int) -> Any:
    """A stream of Parquet files: the rows first to last are new."""
    frame = spark.range(first, last, 1, 2).selectExpr(KEYED[0], "rpad(concat('value ', id), 100, '.') as value")
    frame.write.mode("append").parquet(str(folder / "input"))
    return spark.readStream.schema("key string, value string").parquet(str(folder / "input"))


def stream(spark: Any, folder: Path, *, servers: str, topic: str, rows: int, options: dict[str, str]) -> int:
    """Two micro-batches of a query, the second after a restart; staged in the checkpoint. Brings the newest batch's id."""
    newest = -1
    for number in range(2):
        query = started(files(spark, folder, number * rows, (number + 1) * rows), folder, servers, topic, **options)
        query.awaitTermination()
        newest = query.lastProgress["batchId"]
    return newest


def source(spark: Any, folder: Path, *, servers: str, topic: str, rows: int, options: dict[str, str]) -> list[int]:
    """From a topic into another, in three micro-batches, the last after a restart. Brings how many rows each had."""
    write(keyed(spark, rows), servers, options["subscribe"], {"stagingLocation": str(folder / "staging")})
    counts: list[int] = []
    for _ in range(2):
        read = spark.readStream.format("chaffinch").option("kafka.bootstrap.servers", servers).options(**options)
        query = started(read.load().select("key", "value"), folder, servers, topic)
        query.awaitTermination()
        counts += [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
        write(spark.range(rows, rows + 1000).selectExpr(*KEYED), servers, options["subscribe"], {"idempotencyToken": "more"})
    return counts


def sinks(spark: Any, folder: Path, *, servers: str, topic: str, rows: int) -> None:
    """Output mode update, restarted once, through a sink in `foreachBatch`."""
    from chaffinch.spark import KafkaSink

    sink = KafkaSink({"kafka.bootstrap.servers": servers, "topic": topic, "checkpointLocation": str(folder / "checkpoint")})
    for number in range(2):
        counts = files(spark, folder, number * rows, (number + 1) * rows).groupBy("key").count()
        frame = counts.selectExpr("key", "rpad(cast(count as string), 100, '.') as value")
        query = frame.writeStream.outputMode("update").foreachBatch(sink).option("checkpointLocation", str(folder / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()


def supervised(spark: Any, folder: Path, *, servers: str, topic: str, rows: int) -> dict[str, Any]:
    """A query whose first start reaches no broker. Brings the errors that it was started again for."""
    from chaffinch.spark import supervise

    restarts: list[str] = []
    frame = files(spark, folder, 0, rows)

    def start() -> Any:
        return (
            started(frame, folder, servers, topic)
            if restarts
            else started(frame, folder, UNREACHABLE, topic, **{"kafka.max.block.ms": "300"})
        )

    checkpoint = str(folder / "checkpoint")
    query = supervise(
        start, pause_s=0, metrics="127.0.0.1:0", checkpoint=checkpoint, on_restart=lambda tag, *_: restarts.append(str(tag.name))
    )
    assert query.lastProgress is not None
    return {"restarts": restarts, "batch": query.lastProgress["batchId"]}


def retried(spark: Any, folder: Path, *, servers: str, topic: str, rows: int, options: dict[str, str]) -> None:
    """The first attempt of each task fails."""

    def fail(context: Any) -> None:
        if context.attemptNumber() == 0:
            raise RuntimeError("the first attempt")

    write(with_trouble(keyed(spark, rows), fail), servers, topic, options)


def executor_killed(spark: Any, folder: Path, *, servers: str, topic: str, rows: int, options: dict[str, str]) -> dict[str, str]:
    """SIGKILL for the executor of task 0, in the middle of it. Brings what it said before."""
    note = str(folder / "killed")

    def kill(context: Any) -> None:
        if context.partitionId() == 0 and not os.path.exists(note):
            daemon = os.getppid()
            with open(f"/proc/{daemon}/stat") as stat:
                executor = int(stat.read().rpartition(")")[2].split()[1])
            with open(note, "w") as file, open(f"/proc/{executor}/cmdline") as command:
                file.write(command.read())
            os.kill(executor, 9)

    write(with_trouble(keyed(spark, rows), kill), servers, topic, options)
    return {"command": Path(note).read_text()}


def speculated(spark: Any, folder: Path, *, servers: str, topic: str, rows: int, options: dict[str, str]) -> Any:
    """Task 0 waits until a copy of it has come as far: then both have staged its rows. Brings what they saw."""
    meeting, note = str(folder / "meeting"), str(folder / "copies")
    os.mkfifo(meeting)
    staging = options["stagingLocation"]

    def meet(context: Any) -> None:
        if context.partitionId() != 0:
            return
        host = os.environ["SPARK_LOCAL_IP"]
        if context.attemptNumber() == 0:
            Path(note + ".first").write_text(host)
        else:
            Path(note).write_text(json.dumps({"copy": host, "files": len(staged_by_task_0(staging))}))
        # A FIFO opens when both of its ends do.
        open(meeting, "r" if context.attemptNumber() == 0 else "w").close()

    write(with_trouble(keyed(spark, rows), meet), servers, topic, options)
    return {"first": Path(note + ".first").read_text(), **json.loads(Path(note).read_text())}


def staged_by_task_0(staging: str, limit_s: float = 30.0) -> list[str]:
    """The files of its attempts: those of two, unless they are not there within the limit."""
    ends, found = time.monotonic() + limit_s, list[str]()
    while len(found) < 2 and time.monotonic() < ends:
        found = [name for _, _, names in os.walk(staging) for name in names if name.startswith("task-0-")]
    return found


def main() -> None:
    from chaffinch.spark.session import session

    folder = Path(sys.argv[1])
    given = json.loads((folder / "calls.json").read_text())
    small = {"spark.executor.memory": "512m", "spark.driver.memory": "512m", "spark.sql.shuffle.partitions": 2}
    found: dict[str, Any] = {}
    try:
        spark = session("cluster", master=given["master"], config={**small, **given["config"]})
    except Exception as error:
        found["session"] = {"error": f"{type(error).__name__}: {error}"}
    else:
        for scenario, arguments in given["calls"].items():
            (folder / scenario).mkdir(exist_ok=True)
            found[scenario] = answer(scenario, spark, folder / scenario, arguments)
        spark.stop()
    (folder / "found.json").write_text(json.dumps(found))


def answer(scenario: str, spark: Any, folder: Path, arguments: Mapping[str, Any]) -> Any:
    """What a scenario brings, or its error, in a folder of its own. `batch_unshared` is another call of `batch`."""
    function = globals().get(scenario) or globals()[scenario.partition("_")[0]]
    try:
        return function(spark, folder, **arguments)
    except Exception as error:
        return {"error": str(error)}


if __name__ == "__main__":
    main()
