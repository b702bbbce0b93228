"""Input of `send_table`: reads Arrow tables, streams and data frames piece by piece into records, partitions and topics. Pure functions.

The names of columns are always checked. Their types are checked only if there are rows, because an empty data frame often has no types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from chaffinch.producer.arguments import INT32_MAX
from chaffinch.records.arrow_columns import (
    BYTES_ALLOWED,
    COLUMNS,
    HEADERS,
    HEADERS_ALLOWED,
    KEY,
    TIMESTAMP,
    TIMESTAMPS_ALLOWED,
    VALUE,
    from_arrow,
    may_refuse_values,
    plain_bytes,
    without_dictionary,
)
from chaffinch.records.columns import RecordColumns
from chaffinch.records.errors import InvalidColumn
from chaffinch.settings import shortened

PARTITION, TOPIC = "partition", "topic"
ALLOWED: Final = (*COLUMNS, PARTITION, TOPIC)
PARTITIONS_ALLOWED: Final = f"whole numbers from 0 to {INT32_MAX}, or null"
TOPICS_ALLOWED: Final = "a string in each row, or the argument topic for rows without one"
TYPES_ALLOWED: Final = {
    KEY: BYTES_ALLOWED,
    VALUE: BYTES_ALLOWED,
    TIMESTAMP: TIMESTAMPS_ALLOWED,
    HEADERS: HEADERS_ALLOWED,
    PARTITION: PARTITIONS_ALLOWED,
    TOPIC: TOPICS_ALLOWED,
}
BYTES_OVER_ARROW: Final = 4
"""Approximate extra bytes of a record of usual length in a batch, compared with Arrow, offsets included."""
GATHERED_MS: Final = 100
"""Rows of a stream wait at most this long for more rows, unless `linger.ms` is longer. Enough to fill a batch at 10 MB a second."""
NO_TYPE: Final = (OverflowError, TypeError, ValueError, pa.ArrowException)
"""Exceptions of a data frame with a column that has no Arrow type."""


class TableParts:
    """A piece of a table: its records, and for each row the requested partition (-1: none) and the topic (None: that of the call).

    Records are converted to columns on access, some rows at a time. If a value may be refused, all are converted before any is sent.
    """

    def __init__(
        self,
        records: pa.Table | pa.RecordBatch,
        timestamp_default_ms: int,
        first_row: int,
        partitions: npt.NDArray[np.int64] | None,
        topics: pa.Array | None,
    ) -> None:
        self.count: int = records.num_rows
        self.partitions = partitions
        self.topics = topics
        self._records = records
        self._timestamp_default_ms = timestamp_default_ms
        self._first_row = first_row
        self._whole = self._read(0, self.count) if may_refuse_values(records.schema) else None
        if self._whole is None:
            self._read(0, 1)  # A column of a wrong type is refused for the first row.

    @property
    def record_bytes(self) -> float:
        """Approximate bytes of a record."""
        return plain_bytes(self._records) / max(1, self.count) + BYTES_OVER_ARROW

    @property
    def columns(self) -> RecordColumns:
        """All records."""
        if self._whole is None:
            self._whole = self._read(0, self.count)
        return self._whole

    def rows(self, start: int, stop: int) -> RecordColumns:
        """Records start to stop-1."""
        return self._read(start, stop) if self._whole is None else self._whole.slice(start, stop)

    def _read(self, start: int, stop: int) -> RecordColumns:
        records = self._records.slice(start, stop - start)
        return from_arrow(records, timestamp_default_ms=self._timestamp_default_ms, first_row=self._first_row + start)


def pieces_of(
    table: Any, piece_bytes: int, steady_ms: Callable[[], int] = lambda: 0, wait_ms: int = GATHERED_MS
) -> tuple[pa.Schema, Iterator[pa.Table | pa.RecordBatch]]:
    """The schema of a table, and the table itself; or the batches of a stream.

    Small batches are gathered up to about `piece_bytes`, or until `wait_ms` have passed since the first was requested. Raises TypeError.
    """
    if isinstance(table, pa.Table | pa.RecordBatch):
        return table.schema, iter((table,))
    reader = table if isinstance(table, pa.RecordBatchReader) else _stream_of(table)
    return reader.schema, _gathered(reader, piece_bytes, steady_ms, wait_ms)


def _stream_of(table: Any) -> pa.RecordBatchReader:
    """An object with the Arrow stream interface, as a stream. Raises TypeError, and InvalidColumn if a column has no Arrow type."""
    if not hasattr(table, "__arrow_c_stream__"):
        raise _not_a_table(table)
    _check_objects(table)
    try:
        return pa.RecordBatchReader.from_stream(table)
    except NO_TYPE as failure:
        if _is_single_column(table):
            raise _not_a_table(table) from None
        names = list(getattr(table, "columns", ()))
        for name in names:
            if names.count(name) > 1:  # Allowed in pandas, but not in Arrow.
                raise InvalidColumn(str(name), _column_problem(str(name)), f"one each of {', '.join(ALLOWED)}") from failure
        column = _without_type(table)
        if column is None:
            raise
        allowed = TYPES_ALLOWED.get(column, f"one each of {', '.join(ALLOWED)}")
        raise InvalidColumn(column, f"of a type that Arrow does not support ({shortened(str(failure))})", allowed) from failure


def _check_objects(table: Any) -> None:
    """Raise InvalidColumn for a column of Python objects in a polars frame: polars would pass their memory addresses as bytes."""
    for name, dtype in getattr(table, "schema", {}).items() if type(table).__module__.startswith("polars.") else ():
        if str(dtype) == "Object":
            raise InvalidColumn(name, "of Python objects (polars.Object)", TYPES_ALLOWED.get(name, f"one each of {', '.join(ALLOWED)}"))


def _not_a_table(table: Any) -> TypeError:
    what = "a pyarrow Table, RecordBatch or RecordBatchReader, or have the Arrow stream interface (__arrow_c_stream__)"
    hint = "; write table.collect()" if type(table).__name__ == "LazyFrame" else ""
    return TypeError(f"argument table must be {what}, not a {type(table).__name__}{hint}")


def _is_single_column(table: Any) -> bool:
    """Whether it is a single column, which has the same interface as a table."""
    try:
        pa.chunked_array(table)
    except NO_TYPE:
        return False
    return True


def _without_type(table: Any) -> str | None:
    """The first column of a data frame that has no Arrow type."""
    for name in getattr(table, "columns", ()):
        try:
            pa.RecordBatchReader.from_stream(table[[name]])
        except NO_TYPE:
            return str(name)
    return None


def _gathered(reader: pa.RecordBatchReader, piece_bytes: int, steady_ms: Callable[[], int], wait_ms: int) -> Iterator[pa.Table]:
    # The time counts from the request of a batch, not from its arrival, so that rows of a slow stream are sent at once. Nothing is sent
    # while the stream is read: it is read on the caller's thread, where the code that makes its batches may have to run.
    piece, size, requested_ms = [], 0, steady_ms()
    for batch in reader:
        piece.append(batch)
        size += plain_bytes(batch)
        if size >= piece_bytes or steady_ms() - requested_ms >= wait_ms:
            yield pa.Table.from_batches(piece, reader.schema)
            piece, size, requested_ms = [], 0, steady_ms()
    if piece:
        yield pa.Table.from_batches(piece, reader.schema)


def check_columns(schema: pa.Schema, topic: str | None) -> None:
    """Raise InvalidColumn for an unknown, duplicate or missing column. `topic`: that of the call."""
    names = schema.names
    for name in names:
        if name not in ALLOWED or names.count(name) > 1:
            raise InvalidColumn(name, _column_problem(name), f"one each of {', '.join(ALLOWED)}")
    if VALUE not in names:
        raise InvalidColumn(VALUE, "missing", BYTES_ALLOWED)
    if topic is None and TOPIC not in names:
        raise InvalidColumn(TOPIC, "missing", TOPICS_ALLOWED)


def _column_problem(name: str) -> str:
    if name in ALLOWED:
        return "given twice"
    # pandas passes the index that remains after rows were filtered as a column with such a name.
    return "the index of a data frame, which reset_index(drop=True) leaves out" if name.startswith("__index_level_") else "unknown"


def read_table(table: pa.Table | pa.RecordBatch, timestamp_default_ms: int, first_row: int = 0) -> TableParts:
    """The parts of a piece with checked columns. `first_row`: number of its first row in the whole table. Raises InvalidColumn."""
    names = table.schema.names
    partitions = _partitions(table.column(PARTITION), first_row) if PARTITION in names else None
    topics = _topics(table.column(TOPIC)) if TOPIC in names else None
    records = table.drop_columns([name for name in (PARTITION, TOPIC) if name in names])
    return TableParts(records, timestamp_default_ms, first_row, partitions, topics)


def _partitions(column: Any, first_row: int) -> npt.NDArray[np.int64]:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_null(array.type):
        return np.full(len(array), -1, np.int64)
    if not pa.types.is_integer(array.type):
        raise InvalidColumn(PARTITION, array.type, PARTITIONS_ALLOWED)
    # Compared in the column's own type, because an unsigned number may not fit into another one.
    numbers = array.fill_null(0).to_numpy(zero_copy_only=False)
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() <= INT32_MAX:
        index = int(np.argmax((numbers < 0) | (numbers > INT32_MAX)))
        raise InvalidColumn(PARTITION, f"{array.type} with {numbers[index]} in row {first_row + index}", PARTITIONS_ALLOWED)
    requested: npt.NDArray[np.int64] = numbers.astype(np.int64, copy=False)
    return np.where(array.is_valid().to_numpy(zero_copy_only=False), requested, -1) if array.null_count else requested


def _topics(column: Any) -> pa.Array:
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    plain = [without_dictionary(chunk) for chunk in chunks]
    for array in plain:
        kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
        if not any(is_kind(array.type) for is_kind in kinds):
            raise InvalidColumn(TOPIC, array.type, TOPICS_ALLOWED)
    return pa.chunked_array([array.cast(pa.string()) for array in plain], pa.string()).combine_chunks()
