"""Arrow tables to records and back: every allowed type, every Arrow layout, and clear errors for the rest."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from chaffinch.records.arrow_columns import SCHEMA, from_arrow, may_refuse_values, plain_bytes, to_arrow
from chaffinch.records.byte_columns import ByteColumn
from chaffinch.records.columns import RecordColumns
from chaffinch.records.errors import InvalidColumn
from tests.records.record_strategies import Row, columns_and_rows, rows_of

DEFAULT_MS = 77
HEADER_LIST = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
BYTES_TYPES = [
    pa.binary(),
    pa.string(),
    pa.large_binary(),
    pa.large_string(),
    pa.binary_view(),
    pa.string_view(),
    pa.dictionary(pa.int32(), pa.binary()),
    pa.dictionary(pa.int8(), pa.large_string()),
    pa.dictionary(pa.uint32(), pa.string_view()),
]


def table(**columns: Any) -> pa.Table:
    return pa.table(columns)


def records(data: pa.RecordBatch | pa.Table) -> list[Row]:
    return rows_of(from_arrow(data, timestamp_default_ms=DEFAULT_MS))


@pytest.mark.parametrize("data_type", BYTES_TYPES, ids=str)
@pytest.mark.parametrize("column", ["key", "value"])
class TestBytes:
    VALUES = (b"first", None, b"", b"a value longer than twelve bytes", None, b"last")

    def array(self, data_type: pa.DataType) -> pa.Array:
        values = [value if value is None or "binary" in str(data_type) else value.decode() for value in self.VALUES]
        plain = data_type.value_type if pa.types.is_dictionary(data_type) else data_type
        if not pa.types.is_dictionary(data_type):
            return pa.array(values, plain)
        positions = pa.array([None if value is None else index for index, value in enumerate(values)], data_type.index_type)
        return pa.DictionaryArray.from_arrays(positions, pa.array(values, plain))

    def found(self, column: str, array: pa.Array | pa.ChunkedArray) -> list[bytes | None]:
        data = table(**{"value": pa.array([b"v"] * len(array), pa.binary()), column: array})
        return [row[0] if column == "key" else row[1] for row in records(data)]

    def test_whole_array_is_read(self, data_type: pa.DataType, column: str) -> None:
        assert self.found(column, self.array(data_type)) == list(self.VALUES)

    @pytest.mark.parametrize(("start", "stop"), [(0, 0), (0, 3), (1, 5), (2, 4), (5, 6), (6, 6)])
    def test_sliced_array_is_read(self, data_type: pa.DataType, column: str, start: int, stop: int) -> None:
        assert self.found(column, self.array(data_type).slice(start, stop - start)) == list(self.VALUES[start:stop])

    def test_chunked_array_is_read(self, data_type: pa.DataType, column: str) -> None:
        array = self.array(data_type)
        chunks = pa.chunked_array([array.slice(3), array.slice(0, 0), array.slice(1, 2)])
        assert self.found(column, chunks) == [*self.VALUES[3:], *self.VALUES[1:3]]

    def test_empty_array_is_read(self, data_type: pa.DataType, column: str) -> None:
        assert self.found(column, pa.nulls(0, data_type)) == []
        assert self.found(column, pa.chunked_array([], data_type)) == []

    def test_null_array_is_read(self, data_type: pa.DataType, column: str) -> None:
        assert self.found(column, pa.nulls(2, data_type)) == [None, None]


LENGTHS = (40, 0, 13, 5_000, 1, 12)


def of_type(data_type: pa.DataType, lengths: Sequence[int | None]) -> pa.Array:
    """An array whose values are so long, None for null; a dictionary has each once."""
    if not pa.types.is_dictionary(data_type):
        values = [None if length is None else b"v" * length for length in lengths]
        return pa.array([value if value is None or "binary" in str(data_type) else value.decode() for value in values], data_type)
    distinct = sorted({length for length in lengths if length is not None}, reverse=True)
    positions = [None if length is None else distinct.index(length) for length in lengths]
    return pa.DictionaryArray.from_arrays(pa.array(positions, data_type.index_type), of_type(data_type.value_type, distinct))


@pytest.mark.parametrize("data_type", BYTES_TYPES, ids=str)
class TestPlainBytes:
    """As many as the rows have themselves, wherever their bytes are and whatever other rows have."""

    def check(self, data: pa.RecordBatch | pa.Table, bytes_count: int) -> None:
        # Offsets, a bit per row that may be null, and the extra buffers of lists and structs.
        assert bytes_count <= plain_bytes(data) <= bytes_count + 24 * data.num_rows + 24

    def test_sliced_rows_are_counted(self, data_type: pa.DataType) -> None:
        data = table(value=of_type(data_type, LENGTHS * 100).slice(7, 3))
        self.check(data, sum((LENGTHS * 2)[7:10]))
        self.check(data.to_batches()[0], sum((LENGTHS * 2)[7:10]))

    def test_chunked_rows_are_counted(self, data_type: pa.DataType) -> None:
        array = of_type(data_type, LENGTHS)
        self.check(table(value=pa.chunked_array([array.slice(0, 2), array.slice(5), array])), 40 + 12 + sum(LENGTHS))

    def test_repeated_value_is_counted_for_each_row(self, data_type: pa.DataType) -> None:
        self.check(table(value=of_type(data_type, [100_000] * 30)), 3_000_000)

    @pytest.mark.parametrize("count", [0, 1, 100])
    def test_nulls_count_no_bytes(self, data_type: pa.DataType, count: int) -> None:
        self.check(table(value=of_type(data_type, [None] * count)), 0)
        self.check(table(value=of_type(data_type, [None, *LENGTHS, None]).slice(0, 3)), 40)

    def test_headers_are_counted(self, data_type: pa.DataType) -> None:
        values = of_type(data_type, LENGTHS)
        entries = pa.StructArray.from_arrays([pa.array(["k"] * 6), values], ["key", "value"])
        data = table(value=pa.nulls(3), headers=pa.ListArray.from_arrays(pa.array([0, 2, 3, 6], pa.int32()), entries))
        self.check(data, 6 + sum(LENGTHS))
        self.check(data.slice(0, 2), 3 + sum(LENGTHS[:3]))

    def test_headers_in_a_map_are_counted(self, data_type: pa.DataType) -> None:
        entries = pa.MapArray.from_arrays(pa.array([0, 2, 3, 6], pa.int32()), pa.array(["k"] * 6), of_type(data_type, LENGTHS))
        data = table(value=pa.nulls(3), headers=entries)
        self.check(data, 6 + sum(LENGTHS))
        self.check(data.slice(0, 2), 3 + sum(LENGTHS[:3]))


def test_length_under_a_null_is_not_counted() -> None:
    """Lengths there may be anything."""
    views = pa.array(["x" * 20, "y" * 30], pa.string_view())
    _, positions, data = views.buffers()
    assert positions is not None
    lengths = np.frombuffer(positions.to_pybytes(), np.int32).copy()
    lengths[4] = 2**31 - 1
    array = pa.Array.from_buffers(pa.string_view(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer(lengths), data])
    assert array.to_pylist() == ["x" * 20, None]
    assert 20 <= plain_bytes(table(value=array)) <= 20 + 24 * 2
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, 1, None]), array)
    assert 20 <= plain_bytes(table(value=array)) <= 20 + 24 * 4


def test_fixed_size_binary_in_a_dictionary_is_counted_for_each_row() -> None:
    array = pa.DictionaryArray.from_arrays(pa.array([0] * 50), pa.array([b"x" * 1000], pa.binary(1000)))
    assert 50_000 <= plain_bytes(table(value=array)) <= 50_000 + 24 * 50


def test_sliced_fixed_size_binary_with_nulls_is_read() -> None:
    array = pa.array([b"abc", None, b"ghi", b"jkl"], pa.binary(3))
    assert [row[1] for row in records(table(value=array.slice(1)))] == [None, b"ghi", b"jkl"]


@pytest.mark.parametrize("start", [0, 1, 7, 8, 9, 16, 23])
def test_nulls_are_found_wherever_an_array_begins(start: int) -> None:
    values = [None if index % 3 == 0 else b"%d" % index for index in range(24)]
    assert [row[1] for row in records(table(value=pa.array(values, pa.binary()).slice(start)))] == values[start:]


def test_columns_of_type_null_are_read() -> None:
    nulls = pa.nulls(2)
    assert records(table(key=nulls, value=nulls, timestamp=nulls, headers=nulls)) == [(None, None, DEFAULT_MS, [])] * 2


def test_bytes_under_a_null_are_not_read() -> None:
    offsets, data = pa.py_buffer(np.array([0, 3, 6], np.int32)), pa.py_buffer(b"abcdef")
    array = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\x01"), offsets, data])
    columns = from_arrow(table(value=array), timestamp_default_ms=0)
    assert [row[1] for row in rows_of(columns)] == [b"abc", None]
    assert columns.sizes()[1] == RecordColumns.from_lists(None, [None], [0]).sizes()[0]


@pytest.mark.parametrize("data_type", [pa.large_binary(), pa.binary(), pa.string(), pa.binary(5)], ids=str)
def test_bytes_are_shared_not_copied(data_type: pa.DataType) -> None:
    array = pa.array(["abcde", "fghij"]).cast(pa.binary()).cast(data_type)
    columns = from_arrow(table(value=array), timestamp_default_ms=0)
    data = array.buffers()[-1]
    assert data is not None
    assert columns.value_data.__array_interface__["data"][0] == data.address


@pytest.mark.parametrize(
    ("column", "data_type", "may_refuse"),
    [
        ("timestamp", pa.timestamp("s"), True),
        ("timestamp", pa.timestamp("ms", "UTC"), False),
        ("timestamp", pa.timestamp("ns"), False),
        ("timestamp", pa.int64(), False),
        ("timestamp", pa.null(), False),
        ("headers", HEADER_LIST, True),
        ("key", pa.dictionary(pa.int32(), pa.string_view()), False),
    ],
    ids=str,
)
def test_may_refuse_values_depends_on_the_type(column: str, data_type: pa.DataType, may_refuse: bool) -> None:
    assert may_refuse_values(pa.schema([("value", pa.binary()), (column, data_type)])) is may_refuse


class TestTimestamps:
    @pytest.mark.parametrize(
        ("data_type", "value", "ms"),
        [
            (pa.int64(), 1234, 1234),
            (pa.int64(), -1, -1),
            (pa.timestamp("s"), 12, 12_000),
            (pa.timestamp("ms"), 1234, 1234),
            (pa.timestamp("ms", "Europe/Zurich"), 1234, 1234),
            (pa.timestamp("us", "UTC"), 1_234_999, 1234),
            (pa.timestamp("us"), -1, -1),
            (pa.timestamp("ns", "UTC"), 1_234_999_999, 1234),
            (pa.timestamp("ns"), -1_000_001, -2),
            (pa.timestamp("s"), 9_223_372_036_854_775, 9_223_372_036_854_775_000),
        ],
        ids=str,
    )
    def test_timestamps_of_each_unit_become_ms(self, data_type: pa.DataType | pa.TimestampType, value: int, ms: int) -> None:
        stamps = pa.array([value, None, value], pa.int64()).cast(data_type)
        data = table(value=[b"v"] * 3, timestamp=stamps)
        assert [row[2] for row in records(data)] == [ms, DEFAULT_MS, ms]
        assert [row[2] for row in records(data.slice(1, 2))] == [DEFAULT_MS, ms]
        assert records(data.slice(0, 0)) == []

    def test_seconds_beyond_64_bits_of_ms_are_refused(self) -> None:
        stamps = pa.array([None, 1, 2**62, -(2**62)], pa.int64()).cast(pa.timestamp("s"))
        for first_row, beyond in ((0, 2**62), (3, -(2**62))):
            words = rf"column 'timestamp' is timestamp\[s\] with {beyond} in row {max(2, first_row)}, beyond 64 bits of ms"
            with pytest.raises(InvalidColumn, match=words):
                from_arrow(table(value=[b"v"] * 4, timestamp=stamps).slice(first_row), timestamp_default_ms=DEFAULT_MS, first_row=first_row)


HEADERS = [[("a", b"1"), ("b", None)], None, [], [("c", b"")]]
AS_STRUCTS = [None if row is None else [{"key": key, "value": value} for key, value in row] for row in HEADERS]
STRUCT = HEADER_LIST.value_type


@pytest.mark.parametrize(
    "array",
    [
        pa.array(AS_STRUCTS, HEADER_LIST),
        pa.array(AS_STRUCTS, pa.large_list(STRUCT)),
        pa.array(AS_STRUCTS, pa.list_(pa.struct([pa.field("value", pa.large_binary()), pa.field("key", pa.large_string())]))),
        pa.array(AS_STRUCTS, pa.list_(pa.struct([pa.field("key", pa.string_view()), pa.field("value", pa.binary_view())]))),
        pa.array(HEADERS, pa.map_(pa.string(), pa.binary())),
    ],
    ids=lambda array: str(array.type)[:60],
)
class TestHeaders:
    EXPECTED: tuple[list[tuple[str, bytes | None]], ...] = ([("a", b"1"), ("b", None)], [], [], [("c", b"")])

    def test_whole_headers_are_read(self, array: pa.Array) -> None:
        assert [row[3] for row in records(table(value=[b"v"] * 4, headers=array))] == list(self.EXPECTED)

    @pytest.mark.parametrize(("start", "stop"), [(0, 0), (1, 4), (0, 2), (3, 4), (1, 2)])
    def test_sliced_headers_are_read(self, array: pa.Array, start: int, stop: int) -> None:
        data = table(value=[b"v"] * 4, headers=array).slice(start, stop - start)
        assert [row[3] for row in records(data)] == list(self.EXPECTED[start:stop])

    def test_chunked_headers_are_read(self, array: pa.Array) -> None:
        chunks = pa.chunked_array([array.slice(3), array.slice(0, 2)])
        assert [row[3] for row in records(table(value=[b"v"] * 3, headers=chunks))] == [self.EXPECTED[3], *self.EXPECTED[:2]]


def test_headers_under_a_null_list_are_not_read() -> None:
    entries = pa.array([{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}], STRUCT)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), entries, mask=pa.array([True, False]))
    assert [row[3] for row in records(table(value=[b"v"] * 2, headers=lists))] == [[], [("b", b"2")]]


@pytest.mark.parametrize("bad", [[{"key": None, "value": b"1"}], [None]], ids=["null key", "null header"])
def test_a_header_without_a_key_names_the_row(bad: list[dict[str, bytes | None] | None]) -> None:
    headers = pa.array([None, [{"key": "a", "value": b"1"}], [], bad], HEADER_LIST)
    with pytest.raises(InvalidColumn, match=r"column 'headers' is .* with a null key in row 3; allowed: list<struct<"):
        records(table(value=[b"v"] * 4, headers=headers))
    with pytest.raises(InvalidColumn, match=r"with a null key in row 7;"):
        records(table(value=[b"v"] * 8, headers=pa.chunked_array([headers.slice(0, 3), headers.slice(1, 1), headers])))


@pytest.mark.parametrize("make", [pa.list_, pa.large_list])
class TestUntypedHeaderLists:
    """So come headers from a data frame when no row has any: whether they are taken must not depend on whether one has."""

    def test_empty_untyped_lists_are_no_headers(self, make: Callable[[pa.DataType], pa.DataType]) -> None:
        headers = pa.array([[], None, []], make(pa.null()))
        assert [row[3] for row in records(table(value=[b"v"] * 3, headers=headers))] == [[], [], []]
        assert [row[3] for row in records(table(value=[b"v"] * 2, headers=headers.slice(1)))] == [[], []]

    def test_null_header_in_untyped_list_names_the_row(self, make: Callable[[pa.DataType], pa.DataType]) -> None:
        headers = pa.array([[], None, [None, None], []], make(pa.null()))
        with pytest.raises(
            InvalidColumn, match=r"column 'headers' is .*list<item: null> with a null header in row 2; allowed: list<struct<"
        ):
            records(table(value=[b"v"] * 4, headers=headers))


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"key": [b"k"]}, "column 'value' is missing; allowed: binary, string"),
        ({"value": [1]}, "column 'value' is int64; allowed: binary, string"),
        ({"value": [b"v"], "key": [1.5]}, "column 'key' is double; allowed: binary, string"),
        ({"value": [b"v"], "key": pa.array([1]).dictionary_encode()}, "column 'key' is dictionary<values=int64"),
        ({"value": [b"v"], "timestamp": ["now"]}, "column 'timestamp' is string; allowed: timestamp of any unit, int64"),
        ({"value": [b"v"], "timestamp": pa.array([1], pa.int32())}, "column 'timestamp' is int32; allowed"),
        ({"value": [b"v"], "headers": [b"h"]}, "column 'headers' is binary; allowed: list<struct<key: string, value: binary>>"),
        ({"value": [b"v"], "headers": [[b"h"]]}, "column 'headers' is list<item: binary>; allowed"),
        ({"value": [b"v"], "headers": [[{"key": "k"}]]}, "column 'headers' is list<item: struct<key: string>>; allowed"),
        ({"value": [b"v"], "headers": [[{"key": 1, "value": b"v"}]]}, "column 'headers.key' is int64; allowed"),
        ({"value": [b"v"], "headers": [[{"key": "k", "value": 1}]]}, "column 'headers.value' is int64; allowed"),
        ({"value": [b"v"], "partition": [1]}, "column 'partition' is unknown; allowed: one each of key, value, timestamp, headers"),
    ],
)
def test_refusals_name_the_column_its_type_and_what_is_allowed(columns: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidColumn) as caught:
        records(table(**columns))
    assert str(caught.value).startswith(text)


def test_duplicate_column_is_refused() -> None:
    data = table(value=[b"v"]).append_column("value", pa.array([b"w"]))
    with pytest.raises(InvalidColumn, match="column 'value' is given twice"):
        records(data)


@given(columns_and_rows())
def test_columns_round_trip_through_arrow(drawn: tuple[RecordColumns, list[Row]]) -> None:
    columns, row_list = drawn
    batch = to_arrow(columns)
    batch.validate(full=True)
    assert batch.schema == SCHEMA
    assert records(batch) == row_list


def test_header_keys_that_are_not_utf_8_are_replaced() -> None:
    columns = RecordColumns.of(
        ByteColumn.nulls(1),
        ByteColumn.nulls(1),
        np.zeros(1, np.int64),
        header_offsets=np.array([0, 2]),
        header_keys=ByteColumn.of([b"a\xff", b"b"]),
        header_values=ByteColumn.of([b"\xff", None]),
    )
    batch = to_arrow(columns)
    batch.validate(full=True)
    assert batch.column("headers").to_pylist() == [[{"key": "a�", "value": b"\xff"}, {"key": "b", "value": None}]]


def test_more_bytes_than_an_arrow_array_holds_are_refused() -> None:
    offsets = np.array([2**31, 2**31], np.int64)
    column = ByteColumn(offsets, np.empty(0, np.uint8), None)
    with pytest.raises(OverflowError, match="2147483648 bytes"):
        to_arrow(RecordColumns.of(column, column, np.zeros(1, np.int64)))


def test_default_timestamps_are_read_only() -> None:
    rows = pa.table({"value": [b"v"] * 3})
    first = from_arrow(rows, timestamp_default_ms=7).timestamps
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1
    assert from_arrow(rows, timestamp_default_ms=8).timestamps.tolist() == [8, 8, 8]
    assert first.tolist() == [7, 7, 7]
