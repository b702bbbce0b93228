"""From an Arrow table to batches: topics, partitions, and runs of rows that fill a batch. Whole columns at a time, pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from chaffinch.producer.core.partitioner import cuts
from chaffinch.records.arrow_columns import COLUMNS
from chaffinch.records.columns import RecordColumns
from chaffinch.records.faults import InvalidColumn

PARTITION, TOPIC = "partition", "topic"
ALLOWED: Final = (*COLUMNS, PARTITION, TOPIC)
Rows = npt.NDArray[np.int64]

# Rows are partitioned, gathered and encoded so many batches at a time, so that the first are on their way while the next are made, and
# what is known of each row is still in the processor's cache when it is asked for next.
PIECE_BATCHES_PER_PARTITION: Final = 2
# With many partitions a piece holds less than a batch for each: better small batches than a copy of the whole table.
PIECE_BYTES_MAX: Final = 32 << 20
# Keys share rows out unevenly: with room for that, a partition with a few rows too many has no small batch left over in each piece.
PIECE_FILL: Final = 0.96
# What a record of usual lengths takes at most beside its key, value and headers: its length, attributes, two deltas, three more lengths.
OVERHEAD_BYTES: Final = 2 + 1 + 15 + 4


class TableParts(NamedTuple):
    """A table's records, and for each row the partition asked for (-1: none) and the topic (None: that of the call for all)."""

    columns: RecordColumns
    partitions: npt.NDArray[np.int64] | None
    topics: pa.Array | None


def pieces_of(table: Any, piece_bytes: int) -> tuple[pa.Schema, Iterator[pa.Table | pa.RecordBatch]]:
    """The schema of a table, and the table itself; of a stream its batches, small ones gathered up to about `piece_bytes`. TypeError."""
    if isinstance(table, pa.Table | pa.RecordBatch):
        return table.schema, iter((table,))
    if not isinstance(table, pa.RecordBatchReader):
        if not hasattr(table, "__arrow_c_stream__"):
            what = "a pyarrow Table, RecordBatch or RecordBatchReader, or have the Arrow stream interface (__arrow_c_stream__)"
            raise TypeError(f"argument table must be {what}, and is a {type(table).__name__}")
        table = pa.RecordBatchReader.from_stream(table)
    return table.schema, _gathered(table, piece_bytes)


def _gathered(reader: pa.RecordBatchReader, piece_bytes: int) -> Iterator[pa.Table]:
    piece, size = [], 0
    for batch in reader:
        piece.append(batch)
        size += batch.nbytes
        if size >= piece_bytes:
            yield pa.Table.from_batches(piece, reader.schema)
            piece, size = [], 0
    if piece:
        yield pa.Table.from_batches(piece, reader.schema)


def check_columns(schema: pa.Schema) -> None:
    """InvalidColumn for a column nobody knows, or that is there twice."""
    names = schema.names
    for name in names:
        if name not in ALLOWED or names.count(name) > 1:
            raise InvalidColumn(name, "there twice" if name in ALLOWED else "unknown", f"one each of {', '.join(ALLOWED)}")


def read_table(table: pa.Table | pa.RecordBatch, timestamp_default_ms: int) -> TableParts:
    """The parts of a table. InvalidColumn."""
    check_columns(table.schema)
    names = table.schema.names
    partitions = _partitions(table.column(PARTITION)) if PARTITION in names else None
    topics = _topics(table.column(TOPIC)) if TOPIC in names else None
    records = table.drop_columns([name for name in (PARTITION, TOPIC) if name in names])
    return TableParts(RecordColumns.from_arrow(records, timestamp_default_ms=timestamp_default_ms), partitions, topics)


def _partitions(column: Any) -> npt.NDArray[np.int64]:
    array = _whole(column)
    if not pa.types.is_integer(array.type):
        raise InvalidColumn(PARTITION, array.type, "an integer type")
    numbers: npt.NDArray[np.int64] = pc.fill_null(array.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
    asked = numbers if not array.null_count else numbers[array.is_valid().to_numpy(zero_copy_only=False)]
    if len(asked) and asked.min() < 0:
        raise InvalidColumn(PARTITION, f"{array.type} with the value {asked.min()}", "0 and above, or null")
    return numbers


def _topics(column: Any) -> pa.Array:
    array = _whole(column)
    value_type = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if not (pa.types.is_string(value_type) or pa.types.is_large_string(value_type) or pa.types.is_string_view(value_type)):
        raise InvalidColumn(TOPIC, array.type, "string")
    return array.cast(pa.string())


def _whole(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def rows_by_topic(topics: pa.Array | None, topic: str | None, row_count: int) -> Iterator[tuple[str, Rows]]:
    """Each topic with its rows, ascending; null goes to `topic`. InvalidColumn when there is none for some row."""
    if topics is None:
        if topic is None:
            raise InvalidColumn(TOPIC, "missing", "a string column, or the argument topic")
        yield topic, np.arange(row_count, dtype=np.int64)
        return
    if topics.null_count:
        if topic is None:
            raise InvalidColumn(TOPIC, "null in some row", "a name in each row, or the argument topic for those without")
        topics = pc.fill_null(topics, topic)
    encoded = topics.dictionary_encode()
    indices = encoded.indices.to_numpy(zero_copy_only=False)
    for index, name in enumerate(encoded.dictionary.to_pylist()):
        yield name, np.flatnonzero(indices == index)


class Run(NamedTuple):
    """Records for one partition, in order, that fill one batch; `rows` says which of the table's they are."""

    partition: int
    columns: RecordColumns
    rows: Rows


def piece_bounds(columns: RecordColumns, partition_count: int, batch_bytes: int) -> list[int]:
    """Where the pieces begin that are partitioned and encoded one after the other, and the end: each holds some batches for each
    partition, if the sizes of records do not change along the table."""
    sides = (columns.key_offsets, columns.value_offsets, columns.header_key_offsets, columns.header_value_offsets)
    mean = sum(int(offsets[-1] - offsets[0]) for offsets in sides) / columns.count + OVERHEAD_BYTES
    piece_bytes = min(PIECE_BATCHES_PER_PARTITION * partition_count * batch_bytes, PIECE_BYTES_MAX)
    step = max(1, int(PIECE_FILL * piece_bytes / mean))
    return [*range(0, columns.count, step), columns.count]


def runs(
    columns: RecordColumns, rows: Rows, partitions: npt.NDArray[Any], partition_count: int, batch_bytes: int, sizes: Rows | None = None
) -> Iterator[Run]:
    """The records as batches of about `batch_bytes`, in each partition in the order of the table; a larger record has its own.

    `rows` are the records' rows in the table, `partitions` theirs, each from 0 to partition_count-1; `sizes`, if they are known.
    """
    sizes = columns.sizes() if sizes is None else sizes
    size, changes = int(sizes.sum()), np.flatnonzero(partitions[1:] != partitions[:-1]) + 1
    if len(changes) < size // batch_bytes + partition_count:
        # Batch after batch stands together as it is, as rows without keys do.
        yield from _ordered_runs(columns, rows, partitions, sizes, [0, *changes.tolist(), columns.count], batch_bytes)
        return
    # A stable sort keeps the order within a partition; on 16 bits numpy sorts by counting.
    order = np.argsort(partitions.astype(np.int16 if partition_count < 2**15 else np.int32), kind="stable")
    counts = np.bincount(partitions, minlength=partition_count)
    bounds = [0, *np.cumsum(counts[counts > 0]).tolist()]
    yield from _ordered_runs(columns.take(order), rows[order], partitions[order], sizes[order], bounds, batch_bytes)


def _ordered_runs(
    columns: RecordColumns, rows: Rows, partitions: npt.NDArray[Any], sizes: Rows, bounds: list[int], batch_bytes: int
) -> Iterator[Run]:
    """`bounds`: where the records of one partition begin, and of the last one end."""
    ends = np.cumsum(sizes)
    for first, end in pairwise(bounds):
        for start, stop in pairwise(cuts(ends, first, end, batch_bytes)):
            yield Run(int(partitions[start]), columns.slice(start, stop), rows[start:stop])
