"""Cost of the two parts of the Spark sink without Spark: the task that stages or sends rows, and the process that commits them.

Prints processor time per million rows and per GB of this process; our broker runs in another process. docs/explanation/scale.md uses
these figures. The rows have a key of 12 bytes and 100 bytes of JSON and are staged in files. `--servers` uses another broker that has the
topic `parts`.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from benchmarks.brokers import chaffinch_broker
from chaffinch.spark.sink import writers
from chaffinch.spark.sink.options import SinkOptions
from chaffinch.spark.sink.writers import CommitMessage

ROUNDS = 3
CHUNK_ROWS = 10_000
"""Rows in an Arrow batch from Spark (spark.sql.execution.arrow.maxRecordsPerBatch)."""


def chunk(first: int) -> pa.RecordBatch:
    """Rows with keys and 100 bytes of JSON, a third of it noise."""
    numbers = range(first, first + CHUNK_ROWS)
    values = [
        f'{{"order":{number:012d},"state":"shipped","sum":{number * 7919 % 100_003:06d},"note":"{noise(number)}"}}' for number in numbers
    ]
    return pa.record_batch({"key": [f"{number:012d}" for number in numbers], "value": [value.ljust(100).encode() for value in values]})


def noise(number: int) -> str:
    return hashlib.blake2b(number.to_bytes(8), digest_size=16).hexdigest()


def measure(action: Callable[[], object]) -> tuple[float, float, object]:
    """(processor seconds, wall-clock seconds, result) of the action."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    found = action()
    return time.process_time() - began_cpu_s, time.perf_counter() - began_s, found


def round_of(options: SinkOptions, rows: Sequence[pa.RecordBatch]) -> tuple[float, float, float, int]:
    """(processor seconds of the task, of the commit, seconds of the commit, bytes of the record batches)."""
    writer = writers.batch_writer(options)
    task_cpu_s, _, message = measure(lambda: writer.write(iter(rows)))
    assert isinstance(message, CommitMessage)
    assert message.outcome.failure is None, message.outcome.failure
    commit_cpu_s, commit_s, _ = measure(lambda: writer.commit([message]))
    return task_cpu_s, commit_cpu_s, commit_s, message.outcome.byte_count


def main() -> None:
    parser = argparse.ArgumentParser(description="the parts of the Spark sink, without Spark")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--partitions", type=int, default=4, help="partitions of the topic")
    parser.add_argument("--servers", help="host:port of a broker; default: chaffinch broker in another process")
    given = parser.parse_args()
    rows = [chunk(first) for first in range(0, given.rows, CHUNK_ROWS)]
    with tempfile.TemporaryDirectory() as folder:
        if given.servers:
            report(given.servers, Path(folder), rows)
        else:
            with chaffinch_broker(f"{folder}/broker", [f"parts:{given.partitions}"]) as broker:
                report(broker.bootstrap_servers, Path(folder), rows)


def report(servers: str, folder: Path, rows: Sequence[pa.RecordBatch]) -> None:
    count = len(rows) * CHUNK_ROWS
    for guarantee, codec in itertools.product(("exactly-once", "at-least-once"), ("none", "lz4", "zstd")):
        given = {"kafka.bootstrap.servers": servers, "topic": "parts", "stagingLocation": str(folder), "kafka.compression.type": codec}
        options = SinkOptions.parse({**given, "deliveryGuarantee": guarantee}, is_stream=False)
        found = [round_of(options, rows) for _ in range(1 + ROUNDS)][1:]  # The first loads the compiled loops.
        task_cpu_s, commit_cpu_s, commit_s, byte_count = (sorted(column)[ROUNDS // 2] for column in zip(*found, strict=True))
        commit = ""
        if options.is_exactly_once:
            commit = f"; {byte_count / count:5.1f} bytes a row; commit {commit_cpu_s / byte_count * 1e9:4.2f} CPU-s per GB, "
            commit += f"{byte_count / commit_s / 1e6:4.0f} MB/s"
        print(f"{guarantee:13} {codec:5} task {task_cpu_s / count * 1e6:4.2f} CPU-s per M rows{commit}")


if __name__ == "__main__":
    main()
