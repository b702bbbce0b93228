"""A streaming query in a process of its own, to be killed: `python -m tests.soak.spark_query FOLDER`.

FOLDER/query.json says where its input and its checkpoint are, to which broker it writes and how: JSON files, one per micro-batch, go to a
topic. A query that fails, or is stopped because FOLDER/stop is there, is started again. Events are written line by line to FOLDER/events,
which may be a FIFO.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from chaffinch.spark import KafkaSink, session

SCHEMA = "key string, value string, timestamp timestamp"
GATE = "gate@"
"""A task that comes to a row whose value begins so waits until a file of this name is there; see `opened_path`."""
STARTS_MAX = 12
POLL_S = 0.1
SHOWN = 240
IN_PIECES: Mapping[str, object] = {"spark.sql.execution.arrow.maxRecordsPerBatch": 5}
"""A task that has come to the last row has handed on others: Spark keeps a few pieces back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Where a query runs, and how it writes. By default there are two tasks at a time, each tried up to four times."""

    master: str = "local[2,4]"
    config: Mapping[str, object] = field(default_factory=lambda: IN_PIECES)
    is_for_each_batch: bool = False
    """Through a `KafkaSink` in `foreachBatch`."""
    large_value: int = 12_000
    large_share: float = 0.4
    """Bytes of each row in this share of the micro-batches, whose staged data goes to files."""

    @property
    def planned(self) -> dict[str, object]:
        return asdict(self)


def gate_name(batch_id: int) -> str:
    return f"{GATE}{batch_id}"


def opened_path(folder: Path, gate: str) -> Path:
    return folder / f"{gate}.go"


def write_line(folder: Path, line: str) -> None:
    with (folder / "events").open("a") as file:
        file.write(f"{line}\n")


def through_gates(folder: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            values = batch.column("value")
            for gate in values.filter(pc.starts_with(values, GATE)).to_pylist():
                opened = opened_path(folder, gate)
                if not opened.exists():
                    write_line(folder, f"{gate} {os.getpid()}")
                while not opened.exists():
                    threading.Event().wait(POLL_S)  # A slow task.
            yield batch

    return run


def started(
    spark: Any, source: Path, checkpoint: Path, options: Mapping[str, str], gates: Path | None = None, *, is_for_each_batch: bool = False
) -> Any:
    """The query; `gates`: the folder in which it reports gates."""
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(source))
    if gates is not None:
        frame = frame.mapInArrow(through_gates(gates), SCHEMA)
    if is_for_each_batch:
        sink = KafkaSink({**options, "checkpointLocation": str(checkpoint)})
        writer = frame.writeStream.foreachBatch(sink)
    else:
        writer = frame.writeStream.format("chaffinch").options(**options)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def run_to_end(query: Any, folder: Path) -> bool:
    """Whether the query has come to its end; False when it was stopped. Raises what the query fails with."""
    stop = folder / "stop"
    while not query.awaitTermination(POLL_S):
        if stop.exists():
            stop.unlink()
            write_line(folder, "stopping")
            query.stop()
            write_line(folder, "stopped")
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
    gates = folder if plan["has_gates"] else None
    way = Variant(**plan["way"])
    spark = session("killed", master=way.master, config=way.config)
    source, checkpoint = Path(plan["input"]), Path(plan["checkpoint"])
    for _ in range(STARTS_MAX):
        try:
            query = started(spark, source, checkpoint, plan["options"], gates, is_for_each_batch=way.is_for_each_batch)
            if run_to_end(query, folder):
                write_line(folder, "ended")
                return
        except Exception as error:  # Whatever it is: a supervisor would start the query again.
            write_line(folder, f"failed {essence(error)}")
    sys.exit(f"the query was started {STARTS_MAX} times")


if __name__ == "__main__":
    main()
