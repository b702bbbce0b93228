"""A streaming query in a process of its own, to be killed: `python -m tests.soak.spark_query FOLDER`.

FOLDER/query.json says where its input and its checkpoint are, to which broker it writes and how: JSON files, one per micro-batch, go to a
topic. A query that fails, or is stopped because FOLDER/stop is there, is started again. What happens is told line by line in FOLDER/told,
which may be a FIFO.
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
SHOWN = 240


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


def started(spark: Any, source: Path, checkpoint: Path, options: Mapping[str, str], gate: Path | None = None) -> Any:
    """The query; `gate`: the folder that tells of a gate in it."""
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(source))
    if gate is not None:
        frame = frame.mapInArrow(through_gate(gate), SCHEMA)
    writer = frame.writeStream.format("chaffinch").options(**options).option("checkpointLocation", str(checkpoint))
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


def essence(error: Exception) -> str:
    """One line: what Chaffinch says, or the end of what a worker says; Spark puts frames of Python before it and Java's after it."""
    text = " ".join(str(error).partition(" SQLSTATE")[0].split())
    start = text.find("KAFKA[")
    return text[start:][:SHOWN] if start >= 0 else text[-SHOWN:]


def main() -> None:
    folder = Path(sys.argv[1])
    plan = json.loads((folder / "query.json").read_text())
    gate = folder if plan["has_gate"] else None
    spark = session("killed", master=MASTER)
    for _ in range(STARTS_MAX):
        try:
            if run_to_end(started(spark, Path(plan["input"]), Path(plan["checkpoint"]), plan["options"], gate), folder):
                tell(folder, "ended")
                return
        except Exception as error:  # Whatever it is: a supervisor would start the query again.
            tell(folder, f"failed {essence(error)}")
    sys.exit(f"the query was started {STARTS_MAX} times")


if __name__ == "__main__":
    main()
