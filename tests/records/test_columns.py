"""RecordColumns against the same records as Python lists."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaffinch.records.byte_columns import ByteColumn, gather, zeros
from chaffinch.records.columns import RecordColumns
from tests.records.record_strategies import Row, columns_and_rows, columns_of, nullable_bytes, offsets_of, row_lists, rows_of, timestamps


@given(row_lists)
def test_rows_round_trip(row_list: list[Row]) -> None:
    columns = columns_of(row_list)
    assert rows_of(columns) == row_list
    assert columns.count == len(columns) == len(row_list)
    assert columns.offsets is None


@given(row_lists, st.integers(-15, 15), st.integers(-15, 15))
def test_slice_is_a_list_slice(row_list: list[Row], start: int, stop: int) -> None:
    assert rows_of(columns_of(row_list).slice(start, stop)) == row_list[start:stop]


@given(st.lists(st.tuples(nullable_bytes, nullable_bytes, timestamps, st.just([]))), st.integers(-15, 15), st.integers(-15, 15))
def test_slice_without_headers_passes_the_skipped_checks(row_list: list[Row], start: int, stop: int) -> None:
    columns = replace(columns_of(row_list), offsets=np.arange(len(row_list)))
    part = columns.slice(start, stop)
    assert rows_of(replace(part)) == rows_of(part)
    assert rows_of(part) == row_list[start:stop]
    assert offsets_of(part) == list(range(len(row_list)))[start:stop]
    assert part.header_key_offsets is columns.header_key_offsets


@given(columns_and_rows(), st.data())
def test_take_picks_rows(drawn: tuple[RecordColumns, list[Row]], data: st.DataObject) -> None:
    columns, row_list = drawn
    indices = data.draw(st.lists(st.integers(0, len(row_list) - 1), max_size=20)) if row_list else []
    assert rows_of(columns.take(indices)) == [row_list[i] for i in indices]


@given(st.lists(columns_and_rows(), min_size=1, max_size=4))
def test_concat_joins_rows(drawn: list[tuple[RecordColumns, list[Row]]]) -> None:
    joined = RecordColumns.concat([columns for columns, _ in drawn])
    assert rows_of(joined) == [row for _, row_list in drawn for row in row_list]


@given(columns_and_rows(), st.integers(0, 12))
def test_split_then_join(drawn: tuple[RecordColumns, list[Row]], at: int) -> None:
    columns, _ = drawn
    assert rows_of(RecordColumns.concat([columns.slice(0, at), columns.slice(at, 100)])) == rows_of(columns)


def test_log_offsets_follow_their_records() -> None:
    columns = RecordColumns.of(
        ByteColumn.nulls(4), ByteColumn.of([b"a", b"b", b"c", b"d"]), np.zeros(4, np.int64), offsets=np.array([7, 9, 10, 30])
    )
    assert offsets_of(columns.slice(1, 3)) == [9, 10]
    assert offsets_of(columns.take([3, 0])) == [30, 7]
    assert offsets_of(RecordColumns.concat([columns, columns.slice(0, 1)])) == [7, 9, 10, 30, 7]
    without_offsets = RecordColumns.from_lists(None, [b"e"], [0])
    assert RecordColumns.concat([columns, without_offsets]).offsets is None


def test_missing_keys_are_null_and_missing_headers_empty() -> None:
    columns = RecordColumns.from_lists(None, [b"v", None], [1, 2])
    assert rows_of(columns) == [(None, b"v", 1, []), (None, None, 2, [])]


def test_a_header_key_that_is_not_utf_8_is_shown_with_replacements() -> None:
    columns = RecordColumns.of(
        ByteColumn.nulls(1),
        ByteColumn.nulls(1),
        np.zeros(1, np.int64),
        header_offsets=np.array([0, 1]),
        header_keys=ByteColumn.of([b"a\xff"]),
        header_values=ByteColumn.of([b"\xff"]),
    )
    assert columns.headers(0) == [("a�", b"\xff")]


@pytest.mark.parametrize("index", [-1, 2, 100])
def test_index_outside_the_records_is_refused(index: int) -> None:
    columns = RecordColumns.from_lists([b"a", b"b"], [b"1", b"2"], [0, 0])
    for read in (columns.key, columns.value, columns.headers, lambda i: columns.take([i])):
        with pytest.raises(IndexError, match=str(index)):
            read(index)


def of_three(**replaced: Any) -> RecordColumns:
    """Three records as flat buffers, some of them replaced."""
    columns = RecordColumns.from_lists([b"a", None, b"c"], [b"1", b"2", b"3"], [0, 1, 2], [[("h", None)], [], []])
    arrays = {name: getattr(columns, name) for name in RecordColumns.__slots__}
    return RecordColumns(**(arrays | replaced))


@pytest.mark.parametrize(
    ("replaced", "named"),
    [
        ({"timestamps": np.zeros(2, np.int64)}, "'timestamps': 2"),
        ({"key_offsets": np.zeros(3, np.int64)}, "'key_offsets': 3"),
        ({"key_valid": np.ones(4, np.uint8)}, "'key_valid': 4"),
        ({"value_valid": np.ones(0, np.uint8)}, "'value_valid': 0"),
        ({"header_offsets": np.zeros(0, np.int64)}, "'header_offsets': 0"),
        ({"header_key_offsets": np.zeros(1, np.int64)}, "'header_key_offsets': 1"),
        ({"header_value_valid": np.zeros(9, np.uint8)}, "'header_value_valid': 9"),
        ({"offsets": np.zeros(1, np.int64)}, "'offsets': 1"),
        ({"key_offsets": np.zeros(4, np.int32)}, "key_offsets is int32"),
        ({"timestamps": np.zeros(3, ">i8")}, "timestamps is >i8"),
        ({"timestamps": np.zeros(6, np.int64)[::2]}, "timestamps is int64, not one aligned piece"),
        ({"timestamps": np.frombuffer(bytes(25), np.int64, 3, 1)}, "timestamps is int64, not one aligned piece"),
        ({"value_data": np.zeros(3, np.int8)}, "value_data is int8"),
    ],
)
def test_inconsistent_buffers_are_refused(replaced: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        of_three(**replaced)


@pytest.mark.parametrize(
    ("replaced", "row"),
    [
        ({"key_offsets": np.array([0, 1, 2, 3])}, 2),
        ({"key_offsets": np.array([-1, 0, 1, 2])}, 0),
        ({"value_offsets": np.array([0, 2, 1, 3])}, 1),
        ({"value_offsets": np.array([0, 1, 2, 2**62])}, 2),
        ({"header_offsets": np.array([0, 1, 1, 2])}, 2),
        ({"header_offsets": np.array([1, 0, 0, 0])}, 0),
        ({"header_key_offsets": np.array([0, 5])}, 0),
        ({"header_value_offsets": np.array([0, 1])}, 0),
    ],
)
def test_offsets_that_do_not_ascend_within_the_data_name_the_row(replaced: dict[str, npt.NDArray[np.int64]], row: int) -> None:
    with pytest.raises(ValueError, match=rf"record {row} do not ascend"):
        of_three(**replaced).sizes()


@pytest.mark.parametrize("count", [1, 2**17 - 1, 2**17, 2**17 + 1])
def test_nulls_of_any_count_are_valid(count: int) -> None:
    nulls = ByteColumn.nulls(count)
    assert nulls.valid is not None
    assert (len(nulls.offsets), len(nulls.valid)) == (count + 1, count)
    assert not nulls.offsets.any()
    assert not nulls.valid.any()


def test_shared_zeros_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        zeros(3)[0] = 1


def test_gather_outside_the_data_is_refused() -> None:
    with pytest.raises(ValueError, match="entry 1"):
        gather(np.zeros(4, np.uint8), np.array([0, 3]), np.array([0, 2, 4]))


def test_partitions_without_partition_count_are_refused() -> None:
    with pytest.raises(ValueError, match="0 partitions"):
        columns_of([]).murmur2_partitions(0)


def test_partitions_with_offsets_outside_the_data_are_refused() -> None:
    columns = of_three(key_offsets=np.array([0, 1, 2, 3]), key_valid=None)
    with pytest.raises(ValueError, match="record 2"):
        columns.murmur2_partitions(3)
