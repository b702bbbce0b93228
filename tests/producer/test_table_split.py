"""Splitting a table into batches: every row once, in order within its partition, and within batch.size."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaffinch.producer.tables import split
from chaffinch.producer.tables.split import PIECE_BYTES_MAX, piece_bounds, record_bytes, runs
from chaffinch.records.columns import RecordColumns

PARTITIONS = 3


def columns_of(value_bytes: list[int]) -> RecordColumns:
    values = [bytes([index % 256]) * size for index, size in enumerate(value_bytes)]
    return RecordColumns.from_lists(None, values, list(range(len(values))))


ROWS = st.tuples(st.integers(0, 60), st.integers(-1, PARTITIONS - 1))
"""Value size of a row, and its partition; -1: the row is excluded and has a partition that does not exist."""


@given(st.lists(ROWS, min_size=1, max_size=80), st.integers(1, 300))
def test_runs_have_each_row_once_in_order_within_the_size(rows: list[tuple[int, int]], batch_bytes: int) -> None:
    columns, partitions = columns_of([size for size, _ in rows]), np.array([partition for _, partition in rows], np.int32)
    numbers, sizes = np.arange(len(rows)) + 1000, columns.sizes()
    seen: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    stays = partitions >= 0
    partitions[~stays] = 99_999
    for run in runs(columns, numbers, partitions, PARTITIONS, batch_bytes, stays=None if stays.all() else stays):
        indices = run.rows - 1000
        assert [run.columns.value(i) for i in range(run.columns.count)] == [columns.value(int(i)) for i in indices]
        assert sizes[indices].sum() <= batch_bytes or len(indices) == 1
        seen[run.partition] += indices.tolist()
    assert seen == {partition: np.flatnonzero(partitions == partition).tolist() for partition in range(PARTITIONS)}


@pytest.mark.parametrize("turn", [1, 7, 50])
def test_adjacent_rows_of_a_partition_are_not_copied(turn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for rows without keys: `turn` rows at a time go to each partition in turn."""
    monkeypatch.setattr(split, "cuts", None)
    columns = columns_of([10] * 100)
    partitions = (np.arange(100) // turn % PARTITIONS).astype(np.int32)
    found = list(runs(columns, np.arange(100), partitions, PARTITIONS, turn * int(columns.sizes()[0])))
    assert [run.columns.count for run in found[:-1]] == [turn] * (len(found) - 1)
    assert all(np.shares_memory(run.columns.value_data, columns.value_data) for run in found)


def test_empty_table_has_no_runs() -> None:
    assert list(runs(columns_of([]), np.arange(0), np.empty(0, np.int32), PARTITIONS, 100)) == []


@pytest.mark.parametrize(("partition_count", "batch_bytes", "pieces"), [(1, 1000, 6), (3, 1000, 2), (7, 1000, 1), (1, 10**9, 1)])
def test_piece_holds_two_batches_per_partition(partition_count: int, batch_bytes: int, pieces: int) -> None:
    columns = columns_of([88] * 100)
    bounds = piece_bounds(columns.count, record_bytes(columns), partition_count, batch_bytes)
    assert (bounds[0], bounds[-1], len(bounds) - 1) == (0, 100, pieces)
    for start, stop in pairwise(bounds):
        assert 0 < columns.slice(start, stop).sizes().sum() <= 2 * partition_count * batch_bytes


def test_piece_is_limited_in_bytes() -> None:
    columns = columns_of([1 << 20] * 40)
    bounds = piece_bounds(columns.count, record_bytes(columns), 1000, 1 << 20)
    assert len(bounds) - 1 == 2
    assert columns.slice(0, bounds[1]).sizes().sum() <= PIECE_BYTES_MAX


def test_rows_larger_than_a_piece_get_one_each() -> None:
    assert piece_bounds(3, 5000.0, 1, 100) == [0, 1, 2, 3]
