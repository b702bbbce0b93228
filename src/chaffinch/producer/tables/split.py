"""Splits the columns of a table by topic, and into runs of rows that fill a batch. Whole columns at a time, pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from chaffinch.producer.core.partitioner import cuts
from chaffinch.producer.tables.columns import TOPIC, TOPICS_ALLOWED
from chaffinch.records.columns import RecordColumns
from chaffinch.records.errors import InvalidColumn

Rows = npt.NDArray[np.int64]

# Rows are partitioned, gathered and encoded this many batches at a time, so that the first are sent while the next are made, and the data
# of each row are still in the processor's cache for the next step.
PIECE_BATCHES_PER_PARTITION: Final = 2
# With many partitions a piece holds less than a batch for each: small batches are better than a copy of the whole table.
PIECE_BYTES_MAX: Final = 32 << 20
# Keys distribute rows unevenly: this margin avoids a small left-over batch in each piece for partitions with a few rows too many.
PIECE_FILL: Final = 0.96
# Upper bound of a usual record's bytes without key, value and headers: its length, attributes, two deltas, three more lengths.
OVERHEAD_BYTES: Final = 2 + 1 + 4 + 5


def rows_by_topic(topics: pa.Array | None, topic: str | None, first_row: int = 0) -> Iterator[tuple[str, Rows | None]]:
    """Each topic with its rows, ascending; None: all rows. Rows with null go to `topic`; without one InvalidColumn is raised.

    `first_row`: number of the first row in the table.
    """
    if topics is None:
        assert topic is not None, "a table without the column comes with a topic"
        yield topic, None
        return
    if topics.null_count:
        if topic is None:
            row = first_row + int(np.argmin(topics.is_valid().to_numpy(zero_copy_only=False)))
            raise InvalidColumn(TOPIC, f"null in row {row}", TOPICS_ALLOWED)
        topics = pc.fill_null(topics, topic)
    encoded = topics.dictionary_encode()
    indices = encoded.indices.to_numpy(zero_copy_only=False)
    names = encoded.dictionary.to_pylist()
    for index, name in enumerate(names):
        yield name, np.flatnonzero(indices == index) if len(names) > 1 else None


class Run(NamedTuple):
    """Records for one partition, in order, that fill one batch. `rows`: their row numbers in the table."""

    partition: int
    columns: RecordColumns
    rows: Rows
    size_max: int
    """Upper bound of the records' bytes."""


def record_bytes(columns: RecordColumns) -> float:
    """Average bytes of a record."""
    return columns.data_bytes / columns.count + OVERHEAD_BYTES


def piece_bounds(count: int, mean_bytes: float, partition_count: int, batch_bytes: int) -> list[int]:
    """Start rows of the pieces that are partitioned and encoded one after the other, and the end.

    Each piece holds some batches for each partition, if the size of records (average: `mean_bytes`) does not vary along the table.
    """
    piece_bytes = min(PIECE_BATCHES_PER_PARTITION * partition_count * batch_bytes, PIECE_BYTES_MAX)
    step = max(1, int(PIECE_FILL * piece_bytes / mean_bytes))
    return [*range(0, count, step), count]


def runs(
    columns: RecordColumns,
    rows: Rows,
    partitions: npt.NDArray[Any],
    partition_count: int,
    batch_bytes: int,
    sizes: Rows | None = None,
    stays: npt.NDArray[np.bool_] | None = None,
) -> Iterator[Run]:
    """Split the records into batches of about `batch_bytes`, in table order within each partition; a larger record gets its own batch.

    `rows`: row numbers of the records. `partitions`: their partitions, 0 to partition_count-1. `sizes`: their sizes, if known. `stays`:
    mask of the records to use; the partitions of the others are ignored.
    """
    sizes = columns.sizes() if sizes is None else sizes
    size, changes = int(sizes.sum()), np.flatnonzero(partitions[1:] != partitions[:-1]) + 1
    if stays is None and len(changes) < size // batch_bytes + partition_count:
        # The rows of each batch are consecutive already, as those without keys.
        yield from _ordered_runs(columns, rows, partitions, sizes, [0, *changes.tolist(), columns.count], batch_bytes)
        return
    # A stable sort keeps the order within a partition; on 16 bits numpy sorts by counting.
    order = np.argsort(partitions.astype(np.int16 if partition_count < 2**15 else np.int32), kind="stable")
    if stays is not None:
        order = order[stays[order]]
    counts = np.bincount(partitions[order], minlength=partition_count)
    bounds = [0, *np.cumsum(counts[counts > 0]).tolist()]
    yield from _ordered_runs(columns.take(order), rows[order], partitions[order], sizes[order], bounds, batch_bytes)


def _ordered_runs(
    columns: RecordColumns, rows: Rows, partitions: npt.NDArray[Any], sizes: Rows, bounds: list[int], batch_bytes: int
) -> Iterator[Run]:
    """`bounds`: start indices of the records of each partition, and the end of the last one."""
    for first, end in pairwise(bounds):
        own, part = [first, end], sizes[first:end]
        if not 0 < part.sum() <= batch_bytes:  # Rows without keys are cut already where the partition changes.
            own = [first + cut for cut in cuts(np.cumsum(part), 0, end - first, batch_bytes)]
        for start, stop in pairwise(own):
            yield Run(int(partitions[start]), columns.slice(start, stop), rows[start:stop], int(sizes[start:stop].sum()))
