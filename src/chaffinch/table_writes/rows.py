"""Input of `write_table`: pieces of a table in the types that tasks of the sink read.

Internal; may change without notice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from chaffinch.producer.tables.columns import ALLOWED, PARTITION, TOPIC, TOPICS_ALLOWED, check_columns, pieces_of, read_table
from chaffinch.records.arrow_columns import HEADER_TYPE, HEADERS, HEADERS_ALLOWED, VALUE
from chaffinch.records.errors import InvalidColumn
from chaffinch.spark.tasks.row_check import CHUNK_BYTES

REASONS_ALLOWED: Final = "a string in bad rows; null or empty in the others"
_TYPES: Final = {PARTITION: pa.int32(), TOPIC: pa.string(), HEADERS: pa.list_(HEADER_TYPE)}
_ALLOWED: Final = {TOPIC: TOPICS_ALLOWED, HEADERS: HEADERS_ALLOWED}


def batches_of(table: Any, topic: str | None, reason_column: str | None) -> Iterator[pa.RecordBatch]:
    """The rows of a table or stream. Raises InvalidColumn and TypeError, before the first batch for wrong columns."""
    schema, pieces = pieces_of(table, CHUNK_BYTES)
    if reason_column is not None:
        if reason_column not in schema.names:
            raise InvalidColumn(reason_column, "missing (argument reason_column)", REASONS_ALLOWED)
        schema = schema.remove(schema.get_field_index(reason_column))
    check_columns(schema, topic)
    return _read(pieces, reason_column)


def _read(pieces: Iterator[pa.Table | pa.RecordBatch], reason_column: str | None) -> Iterator[pa.RecordBatch]:
    first_row = 0
    for piece in pieces:
        if piece.num_rows:
            data = pa.Table.from_batches([piece]) if isinstance(piece, pa.RecordBatch) else piece
            records = data.select([name for name in data.schema.names if name in ALLOWED])
            read_table(records.slice(0, 1), 0, first_row)  # Types are refused in the words of `send_table`.
            for name, kind in _TYPES.items():
                records = _with_type(records, name, kind, _ALLOWED.get(name, ""), first_row)
            if reason_column is not None:
                reasons = _as_type(data.column(reason_column), reason_column, pa.large_string(), REASONS_ALLOWED)
                records = records.append_column(reason_column, reasons)
            first_row += len(data)
            yield from records.combine_chunks().to_batches()


def _with_type(data: pa.Table, name: str, kind: pa.DataType, allowed: str, first_row: int) -> pa.Table:
    if name not in data.schema.names or data.schema.field(name).type == kind:
        return data
    if name == PARTITION:
        read_table(data.select([VALUE, PARTITION]), 0, first_row)  # Numbers outside of int32 are refused with their row.
    return data.set_column(data.schema.get_field_index(name), name, _as_type(data.column(name), name, kind, allowed))


def _as_type(column: pa.ChunkedArray, name: str, kind: pa.DataType, allowed: str) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    found = column.type.value_type if isinstance(column.type, pa.DictionaryType) else column.type
    if kind in (pa.string(), pa.large_string()) and found not in (pa.string(), pa.large_string(), pa.string_view(), pa.null()):
        raise InvalidColumn(name, column.type, allowed)  # Arrow would convert numbers to texts, too.
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise InvalidColumn(name, f"{column.type} ({error})", allowed) from None
