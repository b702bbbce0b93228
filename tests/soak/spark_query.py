"""A streaming query in a process of its own, to be killed: `python -m tests.soak.spark_query FOLDER`.

JSON files below FOLDER/input, one per micro-batch, go to a topic; FOLDER/query.json says to which broker and how. A query that fails, or is
stopped because FOLDER/stop is there, is started again. What happens is told line by line in FOLDER/told, which may be a FIFO.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from chaffinch.spark import session

SCHEMA = "key string, value string, timestamp timestamp"
GATE = "gate"
"""A task that comes to a row with this value waits until FOLDER/gate.go is there."""
MASTER = "local[2,4]"
"""Two tasks at a time, each tried up to four times."""
STARTS_MAX = 12
POLL_S = 0.1


def tell(folder: Path, line: str) -> None:
    with (folder / "told").open("a") as file:
        file.write(f"{line}\n")


def through_gate(folder: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            if pc.any(pc.equal(batch.column("value"), GATE)).as_py() and not (folder / "gate.go").exists():
                tell(folder, f"gate {os.getpid()}")
                while not (folder / "gate.go").exists():
                    threading.Event().wait(POLL_S)  # A slow task.
            yield batch

    return run


def started(spark: Any, folder: Path, options: Mapping[str, str], *, has_gate: bool) -> Any:
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / "input"))
    if has_gate:
        frame = frame.mapInArrow(through_gate(folder), SCHEMA)
    writer = frame.writeStream.format("chaffinch").options(**options).option("checkpointLocation", str(folder / "checkpoint"))
    return writer.trigger(availableNow=True).start()


def run_to_end(query: Any, folder: Path) -> bool:
    """Whether the query has come to its end; False when it was stopped. Raises what the query fails with."""
    stop = folder / "stop"
    while not query.awaitTermination(POLL_S):
        if stop.exists():
            stop.unlink()
            tell(folder, "stopping")
            query.stop()
            tell(folder, "stopped")
            return False
    return True


def main() -> None:
    folder = Path(sys.argv[1])
    plan = json.loads((folder / "query.json").read_text())
    spark = session("killed", master=MASTER)
    for _ in range(STARTS_MAX):
        try:
            if run_to_end(started(spark, folder, plan["options"], has_gate=plan["has_gate"]), folder):
                tell(folder, "ended")
                return
        except Exception as error:  # Whatever it is: a supervisor would start the query again.
            tell(folder, "failed " + " ".join(str(error).split())[:400])
    sys.exit(f"the query was started {STARTS_MAX} times")


if __name__ == "__main__":
    main()
