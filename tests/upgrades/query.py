"""A streaming query for the fixtures: from a topic to a topic through Chaffinch, with dead letters in a topic and in Parquet files.

`python -m tests.upgrades.query FOLDER` runs it in a process of its own, to be killed. FOLDER/query.json names the brokers, the checkpoint
and the way. It writes batch 0, prints `first`, waits for a line on stdin, and goes on with what has come to the topic since.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chaffinch.spark import KafkaSink, session

INPUT, ROWS, DEAD = "input", "rows", "dead"
TOPICS = (f"{INPUT}:2", f"{ROWS}:3,max.message.bytes=20000", f"{DEAD}:2")
TOO_LARGE = 30_000
"""Bytes of a value that `rows` does not take."""
LETTERS, CHECKPOINT = "letters", "checkpoint"
SESSION: Mapping[str, object] = {"spark.sql.session.timeZone": "UTC"}


def options_of(servers: str, folder: Path) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": servers,
        "topic": ROWS,
        "errors.tolerance": "all",
        "errors.dead.letter.queue.topic.name": DEAD,
        "errors.dead.letter.path": str(folder / LETTERS),
    }


def started(spark: Any, servers: str, folder: Path, *, is_for_each_batch: bool) -> Any:
    """The query on the checkpoint in `folder`; it ends when it has read all there is."""
    source = {"kafka.bootstrap.servers": servers, "subscribe": INPUT, "startingOffsets": "earliest"}
    frame = spark.readStream.format("chaffinch").options(**source).load().selectExpr("cast(key as string) as key", "value")
    options, checkpoint = options_of(servers, folder), str(folder / CHECKPOINT)
    if is_for_each_batch:
        writer = frame.writeStream.foreachBatch(KafkaSink({**options, "checkpointLocation": checkpoint}))
    else:
        writer = frame.writeStream.format("chaffinch").options(**options)
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def main() -> None:
    folder = Path(sys.argv[1])
    plan = json.loads((folder / "query.json").read_text())
    spark = session("upgrades", master="local[2]", config=SESSION)
    given = spark, plan["servers"], folder
    started(*given, is_for_each_batch=plan["is_for_each_batch"]).awaitTermination()
    print("first", flush=True)
    sys.stdin.readline()
    started(*given, is_for_each_batch=plan["is_for_each_batch"]).awaitTermination()
    print("second", flush=True)


if __name__ == "__main__":
    main()
