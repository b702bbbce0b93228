"""Rejected rows of `chaffinch produce`: a JSON lines or Parquet file with the fields, row number and error of each.

The columns are those of the Spark sink's dead letters in Parquet, so one reader handles both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa

from chaffinch.cli.rows.outputs import open_output
from chaffinch.cli.rows.record_json import json_lines
from chaffinch.cli.rows.sources import BrokenRow, Numbers
from chaffinch.errors import ConfigException, KafkaException, codes, group_of
from chaffinch.producer.tables.result import REJECTED_SCHEMA
from chaffinch.records.arrow_columns import COLUMNS, from_arrow, to_arrow
from chaffinch.records.arrow_columns import SCHEMA as RECORD_SCHEMA
from chaffinch.signals import deferred_signals

REASON_FIELDS: Final = [
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("row", pa.int64()),
    pa.field("error_code", pa.int32()),
    pa.field("error_name", pa.string()),
    pa.field("error_message", pa.string()),
    pa.field("error_group", pa.string()),
]
SCHEMA: Final = pa.schema([*(RECORD_SCHEMA.field(name) for name in ("key", "value", "headers", "timestamp")), *REASON_FIELDS])
"""Schema of the file; `row` is the number of the input line or row, from 1."""


class RejectedRows:
    """Counts rejected rows, remembers the first one, and writes all of them to a file, if one is given."""

    def __init__(self, topic: str, unit: str, out: IO[bytes] | None, parquet_writer: Any | None) -> None:
        self.count = 0
        self._first: tuple[int, str] | None = None
        self._topic = topic
        self.unit = unit
        self._out = out
        self._writer = parquet_writer

    @property
    def first(self) -> str | None:
        """Number and error of the first rejected row in the order of the input."""
        return None if self._first is None else f"{self.unit} {self._first[0]}: {self._first[1]}"

    def add(self, table: pa.Table, numbers: Numbers, result: pa.Table, wall_ms: int) -> None:
        """Add rejected rows: `result` is `SendTableResult.rejected`, `table` the sent table, `numbers` the numbers of its rows."""
        if not len(result):
            return
        rows = result.column("row").to_numpy()
        records = table.select([name for name in COLUMNS if name in table.schema.names]).take(pa.array(rows))
        found = to_arrow(from_arrow(records, timestamp_default_ms=wall_ms))
        partitions = np.maximum(result.column("partition").to_numpy(), -1)
        first = int(np.argmin(rows))
        reason = f"{result['error'][first]} ({result['code'][first]}): {result['message'][first]}"
        self._note(int(numbers[rows[first]]), reason, len(rows))
        self._write(
            {
                **{name: found.column(name) for name in ("key", "value", "headers", "timestamp")},
                "topic": result.column("topic"),
                "partition": pa.array(partitions, pa.int32(), mask=partitions < 0),
                "row": pa.array(numbers[rows]),
                "error_code": result.column("code").cast(pa.int32()),
                "error_name": result.column("error"),
                "error_message": result.column("message"),
                "error_group": result.column("group"),
            }
        )

    def add_broken(self, broken: Sequence[BrokenRow]) -> None:
        """Add rows that are not valid records; their text is the value."""
        if not broken:
            return
        code = codes.INVALID_RECORD
        first = min(broken, key=lambda row: row.number)
        self._note(first.number, first.reason, len(broken))
        count = len(broken)
        self._write(
            {
                "key": pa.nulls(count, pa.binary()),
                "value": pa.array([row.text for row in broken], pa.binary()),
                "headers": pa.nulls(count, SCHEMA.field("headers").type),
                "timestamp": pa.nulls(count, SCHEMA.field("timestamp").type),
                "topic": pa.array([self._topic] * count, pa.string()),
                "partition": pa.nulls(count, pa.int32()),
                "row": pa.array([row.number for row in broken], pa.int64()),
                "error_code": pa.array([code.number] * count, pa.int32()),
                "error_name": pa.array([code.name] * count, pa.string()),
                "error_message": pa.array([row.reason for row in broken], pa.string()),
                "error_group": pa.array([code.group_produce.value] * count, pa.string()),
            }
        )

    def _note(self, number: int, reason: str, count: int) -> None:
        if self._first is None or number < self._first[0]:
            self._first = number, reason
        self.count += count

    def _write(self, columns: dict[str, Any]) -> None:
        table = pa.table(columns, schema=SCHEMA)
        with deferred_signals():  # After an interrupted write a Parquet file can be neither extended nor closed.
            self._put(table)

    def _put(self, table: pa.Table) -> None:
        if self._writer is not None:
            self._writer.write_table(table)
        elif self._out is not None:
            for batch in table.to_batches():
                for line in json_lines(batch).to_pylist():
                    self._out.write(line.encode())
            self._out.flush()


def rejected_table(topic: str, refused: Iterable[tuple[int, int, KafkaException]]) -> pa.Table:
    """(row, partition, error) tuples as a table in the schema of `SendTableResult.rejected`."""
    found = sorted(refused, key=lambda entry: entry[0])
    errors = [error for _, _, error in found]
    columns: dict[str, list[Any]] = {
        "row": [row for row, _, _ in found],
        "topic": [topic] * len(found),
        "partition": [partition for _, partition, _ in found],
        "code": [error.code.number for error in errors],
        "error": [error.name for error in errors],
        "message": [error.message for error in errors],
        "group": [group_of(error).value for error in errors],
        "stored": [error.stored.value for error in errors],
    }
    return pa.table(columns, schema=REJECTED_SCHEMA)


@contextmanager
def rejected_rows(topic: str, unit: str, path: str | None) -> Iterator[RejectedRows]:
    """Open the file of rejected rows, before anything is sent. Its suffix determines the format."""
    if path is None:
        yield RejectedRows(topic, unit, None, None)
        return
    suffix = PurePath(path).suffix.lower()
    if suffix not in (".parquet", ".json", ".jsonl", ".ndjson"):
        raise ConfigException(f"--rejected {path!r}: its name must end in .jsonl, .json, .ndjson or .parquet")
    with open_output(path) as out:
        if suffix != ".parquet":
            yield RejectedRows(topic, unit, out, None)
            return
        from pyarrow import parquet

        with parquet.ParquetWriter(out, SCHEMA) as writer:
            yield RejectedRows(topic, unit, None, writer)
