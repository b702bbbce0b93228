"""A daily load whose scheduler retries it: the rows of a day are in Kafka once, however often the run is started and wherever it dies.

The token is the name and the day of the run. A retry after the transaction was committed finds the token in Kafka and writes nothing; any
earlier end leaves nothing visible. Rows with a negative amount go to `sales-rejected` in the same transaction.

    chaffinch topics create sales --bootstrap-server localhost:9092
    chaffinch topics create sales-rejected --bootstrap-server localhost:9092
    python -m examples.scheduled_load --bootstrap-server localhost:9092 --day 2026-11-29 sales.csv

The file has the columns id and amount. In Airflow `load` is the body of a task: `retries` of the task take the place of `with_retries`,
and `{{ ds }}` that of the day.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from pyarrow import csv

from chaffinch import InvalidColumn, WriteTableResult, write_table
from chaffinch.errors import Group, KafkaException, TableWriteException


def load(bootstrap_servers: str, day: str, file: Path) -> WriteTableResult:
    """Write the rows of a day. Call it again with the same day after any failure."""
    rows = csv.read_csv(file).to_pylist()
    table = pa.table({
        "key": [str(row["id"]) for row in rows],
        "value": [json.dumps(row) for row in rows],
        "why": pa.array(["amount is negative" if row["amount"] < 0 else None for row in rows], pa.string()),
    })  # fmt: skip
    return write_table(
        table,
        "sales",
        idempotency_token=f"sales-{day}",
        dead_letters="sales-rejected",
        reason_column="why",
        bootstrap_servers=bootstrap_servers,
    )


def with_retries(task: Callable[[], WriteTableResult], attempts: int, pause_s: float) -> WriteTableResult:
    """Run a task as a scheduler does: again after a failure, except one that only a person can correct."""
    for attempt in range(1, attempts):
        try:
            return task()
        except TableWriteException as error:
            if error.group is Group.INVALID_CONFIGURATION:
                raise
            print(f"attempt {attempt} of {attempts} failed: {error}", flush=True)
            time.sleep(pause_s)
    return task()


def main() -> None:
    parser = argparse.ArgumentParser(description="Load the sales of a day.")
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--day", required=True)
    parser.add_argument("--attempts", type=int, default=3)
    parser.add_argument("file", type=Path)
    chosen = parser.parse_args()
    try:
        result = with_retries(lambda: load(chosen.bootstrap_server, chosen.day, chosen.file), chosen.attempts, pause_s=10)
    except (KafkaException, InvalidColumn, OSError) as error:
        sys.exit(f"stop: {error}")
    rejected = ", ".join(f"{count} {reason}" for reason, count in result.rejected.items()) or "none"
    print(f"{chosen.day}: {result.outcome}, {result.written} rows written, rejected: {rejected}")


if __name__ == "__main__":
    main()
