"""Batch writes in a process of their own, to be killed: `python -m tests.soak.spark_batch_writes FOLDER TIMES NUMBER...`.

Each number is a file of rows, FOLDER/input/NUMBER.json, that goes to the topic with a token of its own, TIMES times; its dead letters go to
a topic of its own. FOLDER/options.json holds the options that all have. Events are written line by line to FOLDER/events.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from chaffinch.spark import session
from tests.soak.spark_query import SCHEMA, write_line


def dead_topic(number: int) -> str:
    return f"dead-{number}"


def write(spark: Any, folder: Path, number: int) -> None:
    own = {"idempotencyToken": f"write-{number}", "errors.dead.letter.queue.topic.name": dead_topic(number)}
    options = {**json.loads((folder / "options.json").read_text()), **own}
    frame = spark.read.schema(SCHEMA).json(str(folder / "input" / f"{number}.json"))
    frame.write.format("chaffinch").mode("append").options(**options).save()


def main() -> None:
    folder, times, numbers = Path(sys.argv[1]), int(sys.argv[2]), list(map(int, sys.argv[3:]))
    spark = session("killed", master="local[2]")
    for number in numbers:
        for _ in range(times):
            write(spark, folder, number)
    write_line(folder, "ended")


if __name__ == "__main__":
    main()
