"""Arrow tables to `RecordColumns` and back, sharing buffers where the layout allows. The only importer of pyarrow in this package.

Shared without copying: the bytes of every binary and string column that is not a view or a dictionary, and 64-bit offsets. Converted:
32-bit offsets (widened), validity (one byte per row instead of one bit), timestamps in units other than ms.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import lib

from chaffinch.records.byte_columns import ByteColumn, Bytes, Int64s
from chaffinch.records.columns import RecordColumns
from chaffinch.records.errors import InvalidColumn

Number = TypeVar("Number", bound=np.generic)

KEY, VALUE, TIMESTAMP, HEADERS = "key", "value", "timestamp", "headers"
COLUMNS = (KEY, VALUE, TIMESTAMP, HEADERS)
HEADER_TYPE = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
SCHEMA = pa.schema(
    [
        pa.field(KEY, pa.binary()),
        pa.field(VALUE, pa.binary()),
        pa.field(TIMESTAMP, pa.timestamp("ms", "UTC")),
        pa.field(HEADERS, pa.list_(HEADER_TYPE)),
    ]
)
"""Schema of the result of `to_arrow`."""

BYTES_ALLOWED = "binary, string (large, view and dictionary-encoded too), fixed_size_binary"
TIMESTAMPS_ALLOWED = "timestamp of any unit, int64 (ms since 1970)"
HEADERS_ALLOWED = "list<struct<key: string, value: binary>> (large too), map<string, binary>"

# Arrow's type ids; a sequence of `pa.types` checks takes as long as the rest of the conversion.
_OFFSET_TYPES: dict[int, np.dtype[Any]] = {
    lib.Type_BINARY: np.dtype(np.int32),
    lib.Type_STRING: np.dtype(np.int32),
    lib.Type_LARGE_BINARY: np.dtype(np.int64),
    lib.Type_LARGE_STRING: np.dtype(np.int64),
}
_VIEW_KINDS = {lib.Type_BINARY_VIEW: pa.large_binary(), lib.Type_STRING_VIEW: pa.large_string()}
_BYTES_KINDS = {*_OFFSET_TYPES, *_VIEW_KINDS, lib.Type_FIXED_SIZE_BINARY}
_SHARING_KINDS = {*_VIEW_KINDS, lib.Type_LIST, lib.Type_LARGE_LIST, lib.Type_MAP, lib.Type_DICTIONARY, lib.Type_STRUCT}
_OFFSET_BYTES = 4
_VIEW_INT32S = 4
_MS_PER_UNIT = {"s": 1000, "ms": 1}
_UNITS_PER_MS = {"us": 1000, "ns": 1_000_000}
_INT64_MAX = 2**63 - 1
_SHARED_MAX = 1 << 17


def from_arrow(data: pa.Table | pa.RecordBatch, *, timestamp_default_ms: int, first_row: int = 0) -> RecordColumns:
    """The records of a table with the columns value (required), key, timestamp, headers, in any order, and no others.

    A missing key column means null keys; a missing or null timestamp becomes `timestamp_default_ms`. Strings become their UTF-8 bytes.
    Timestamps without a zone are UTC, and those finer than ms are rounded down. Raises InvalidColumn, with row numbers counted from
    `first_row`.
    """
    names = data.schema.names
    for name in names:
        if name not in COLUMNS or names.count(name) > 1:
            raise InvalidColumn(name, "given twice" if name in COLUMNS else "unknown", f"one each of {', '.join(COLUMNS)}")
    if VALUE not in names:
        raise InvalidColumn(VALUE, "missing", BYTES_ALLOWED)
    batches = [data] if isinstance(data, pa.RecordBatch) else data.to_batches()
    parts = []
    for batch in batches or [pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in data.schema.types], schema=data.schema)]:
        parts.append(_from_batch(batch, timestamp_default_ms, first_row))
        first_row += batch.num_rows
    return RecordColumns.concat(parts)


def may_refuse_values(schema: pa.Schema) -> bool:
    """Whether `from_arrow` may refuse a table of this schema because of values, not only because of its column types."""
    timestamp = schema.field(TIMESTAMP).type if TIMESTAMP in schema.names else None
    has_coarse_times = timestamp is not None and pa.types.is_timestamp(timestamp) and timestamp.unit not in (*_UNITS_PER_MS, "ms")
    return HEADERS in schema.names or has_coarse_times


def plain_bytes(data: pa.Table | pa.RecordBatch) -> int:
    """Approximate bytes of a table as plain columns.

    Views and dictionaries belong to all rows of the table that a slice was cut from, and Arrow counts them completely in `nbytes`.
    """
    if _SHARING_KINDS.isdisjoint([kind.id for kind in data.schema.types]):
        return int(data.nbytes)
    return sum(map(_plain_bytes, data.columns))


def _plain_bytes(column: pa.Array | pa.ChunkedArray) -> int:
    if isinstance(column, pa.ChunkedArray):
        return sum(map(_plain_bytes, column.chunks))
    count = len(column)
    if isinstance(column, pa.MapArray):  # Arrow does not flatten maps.
        return _plain_bytes(_header_lists(column))
    if isinstance(column, pa.ListArray | pa.LargeListArray):
        return _plain_bytes(column.flatten()) + count * _OFFSET_BYTES
    if isinstance(column, pa.StructArray):
        return sum(map(_plain_bytes, column.flatten()))
    if column.type.id in _VIEW_KINDS:
        return _bytes_at(column, np.arange(count)) + count * _OFFSET_BYTES
    if isinstance(column, pa.DictionaryArray) and column.type.value_type.id in _BYTES_KINDS:
        rows = column.indices.drop_null().to_numpy().astype(np.int64, copy=False)
        return _bytes_at(column.dictionary, rows) + count * _OFFSET_BYTES
    return int(column.nbytes)


def _bytes_at(array: pa.Array, rows: Int64s) -> int:
    """Total length of the values in `rows`; of a large dictionary only these entries are read."""
    valid, kind = _validity(array), array.type.id
    rows = rows if valid is None else rows[valid[rows] == 1]
    if not len(rows):
        return 0
    if kind == lib.Type_FIXED_SIZE_BINARY:
        return len(rows) * int(array.type.byte_width)
    rows = rows + array.offset
    if kind in _VIEW_KINDS:  # A view begins with its length.
        return int(_numbers(array.buffers()[1], np.dtype(np.int32))[::_VIEW_INT32S][rows].sum(dtype=np.int64))
    offsets = _numbers(array.buffers()[1], _OFFSET_TYPES[kind])
    return int((offsets[rows + 1] - offsets[rows]).sum(dtype=np.int64))


def _from_batch(batch: pa.RecordBatch, timestamp_default_ms: int, first_row: int) -> RecordColumns:
    count, names = batch.num_rows, batch.schema.names
    keys = _bytes(KEY, batch.column(KEY)) if KEY in names else ByteColumn.nulls(count)
    has_times = TIMESTAMP in names
    timestamps = (
        _timestamps(batch.column(TIMESTAMP), timestamp_default_ms, first_row) if has_times else _all_at(timestamp_default_ms, count)
    )
    columns = RecordColumns.of(keys, _bytes(VALUE, batch.column(VALUE)), timestamps)
    return _with_headers(columns, batch.column(HEADERS), first_row) if HEADERS in names else columns


def _all_at(time_ms: int, count: int) -> Int64s:
    """The same time for all rows, read-only: slices of a large table share one array."""
    return np.full(count, time_ms, np.int64) if count > _SHARED_MAX else _many_at(time_ms, 1 << count.bit_length())[:count]


@lru_cache(maxsize=1)
def _many_at(time_ms: int, count: int) -> Int64s:
    times = np.full(count, time_ms, np.int64)
    times.flags.writeable = False
    return times


def without_dictionary(array: pa.Array) -> pa.Array:
    """A dictionary-encoded binary or string array as a plain one; any other unchanged."""
    if not isinstance(array, pa.DictionaryArray) or (kind := array.type.value_type.id) not in _BYTES_KINDS:
        return array
    if kind in _VIEW_KINDS:  # Arrow cannot decode a dictionary of views, which polars uses for categories.
        array = pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(_VIEW_KINDS[kind]))
    return array.dictionary_decode()


def _bytes(column: str, array: pa.Array) -> ByteColumn:
    """A binary or string array of any layout."""
    array = without_dictionary(array)
    kind = array.type.id
    if kind in _VIEW_KINDS:
        array = array.cast(_VIEW_KINDS[kind])
        kind = array.type.id
    if kind == lib.Type_NA:
        return ByteColumn.nulls(len(array))
    if kind == lib.Type_FIXED_SIZE_BINARY:
        width = array.type.byte_width
        offsets = np.arange(array.offset, array.offset + len(array) + 1, dtype=np.int64) * width
        return ByteColumn(offsets, _buffer(array.buffers()[1]), _validity(array))
    if kind not in _OFFSET_TYPES:
        raise InvalidColumn(column, array.type, BYTES_ALLOWED)
    return ByteColumn(_offsets(array, _OFFSET_TYPES[kind]), _buffer(array.buffers()[2]), _validity(array))


def _offsets(array: pa.Array, dtype: np.dtype[Any]) -> Int64s:
    """The n+1 offsets of a variable-length array, as int64. An array of length 0 may have no offsets buffer."""
    buffer = array.buffers()[1]
    if not len(array) or buffer is None:
        return np.zeros(1, np.int64)
    found = _numbers(buffer, dtype, len(array) + 1, array.offset * dtype.itemsize)
    return np.require(found.astype(np.int64, copy=False), requirements="A")


def _buffer(buffer: pa.Buffer | None) -> Bytes:
    return np.empty(0, np.uint8) if buffer is None or not buffer.size else _numbers(buffer, np.dtype(np.uint8))


def _numbers(buffer: pa.Buffer | None, dtype: np.dtype[Number], count: int = -1, offset: int = 0) -> npt.NDArray[Number]:
    """The numbers in a buffer of a non-empty array, from byte `offset` on."""
    assert buffer is not None, "only an array without rows lacks buffers"
    return np.frombuffer(memoryview(buffer), dtype, count, offset)


def _validity(array: pa.Array) -> Bytes | None:
    """One byte per row, or None when no row is null."""
    if not array.null_count:
        return None
    first_byte, first_bit = divmod(array.offset, 8)
    bits = _numbers(array.buffers()[0], np.dtype(np.uint8), offset=first_byte)
    return np.unpackbits(bits, count=first_bit + len(array), bitorder="little")[first_bit:]


def _timestamps(array: pa.Array, default_ms: int, first_row: int) -> Int64s:
    data_type = array.type
    if pa.types.is_null(data_type):
        return np.full(len(array), default_ms, np.int64)
    unit = data_type.unit if pa.types.is_timestamp(data_type) else "ms"
    if not pa.types.is_timestamp(data_type) and not pa.types.is_int64(data_type):
        raise InvalidColumn(TIMESTAMP, data_type, TIMESTAMPS_ALLOWED)
    found = np.zeros(0, np.int64)
    if len(array):
        found = np.require(_numbers(array.buffers()[1], np.dtype(np.int64), len(array), array.offset * 8), requirements="A")
    valid = _validity(array)
    if unit in _UNITS_PER_MS:
        found = found // _UNITS_PER_MS[unit]
    elif unit != "ms":
        limit = _INT64_MAX // _MS_PER_UNIT[unit]
        is_beyond = (found < -limit) | (found > limit)
        if valid is not None:
            is_beyond &= valid == 1
        if is_beyond.any():
            row = int(np.argmax(is_beyond))
            raise InvalidColumn(
                TIMESTAMP, f"{data_type} with {found[row]} in row {first_row + row}, beyond 64 bits of ms", TIMESTAMPS_ALLOWED
            )
        found = found * _MS_PER_UNIT[unit]
    return found if valid is None else np.where(valid == 1, found, np.int64(default_ms))


def _with_headers(columns: RecordColumns, array: pa.Array, first_row: int) -> RecordColumns:
    """The records with the headers of a list column; a null list means no headers.

    If all lists are empty, data frames may leave their element type open (null).
    """
    if pa.types.is_null(array.type):
        return columns
    lists = _header_lists(array)
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    header_offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(lengths, out=header_offsets[1:])
    entries = lists.flatten()
    if not isinstance(entries, pa.StructArray):  # Nulls.
        if len(entries):
            row = first_row + _list_of(0, header_offsets)
            raise InvalidColumn(HEADERS, f"{array.type} with a null header in row {row}", HEADERS_ALLOWED)
        return columns
    fields = dict(zip((field.name for field in entries.type), entries.flatten(), strict=True))
    keys = fields["key"]
    if keys.null_count:
        first_null = int(np.argmin(keys.is_valid().to_numpy(zero_copy_only=False)))
        row = first_row + _list_of(first_null, header_offsets)
        raise InvalidColumn(HEADERS, f"{array.type} with a null key in row {row}", HEADERS_ALLOWED)
    return RecordColumns.of(
        columns.keys,
        columns.values,
        columns.timestamps,
        header_offsets=header_offsets,
        header_keys=_bytes(f"{HEADERS}.key", keys),
        header_values=_bytes(f"{HEADERS}.value", fields["value"]),
    )


def _list_of(entry: int, offsets: Int64s) -> int:
    """Index of the list that contains an entry of the flattened lists."""
    return int(np.searchsorted(offsets, entry, "right")) - 1


def _header_lists(array: pa.Array) -> pa.ListArray | pa.LargeListArray:
    """`array` as a list of structs with the fields key and value, in any order; or of nulls."""
    data_type = array.type
    if pa.types.is_map(data_type):
        pair = pa.struct([pa.field("key", data_type.key_type), pa.field("value", data_type.item_type)])
        return array.cast(pa.list_(pair))
    if isinstance(array, pa.ListArray | pa.LargeListArray) and isinstance(data_type, pa.ListType | pa.LargeListType):
        entry = data_type.value_type
        if pa.types.is_null(entry) or (pa.types.is_struct(entry) and {field.name for field in entry} == {"key", "value"}):
            return array
    raise InvalidColumn(HEADERS, data_type, HEADERS_ALLOWED)


def to_arrow(columns: RecordColumns, *, has_text_keys: bool = True) -> pa.RecordBatch:
    """A record batch of `SCHEMA`; bytes are shared, offsets and validity are converted.

    Invalid UTF-8 in header keys is replaced; without `has_text_keys` they are binary and unchanged. Raises OverflowError for a column of 2
    GiB or more: slice first.
    """
    header_keys = _binary_array(columns.header_keys)
    keys = _text(header_keys) if has_text_keys else header_keys
    entries = pa.StructArray.from_arrays([keys, _binary_array(columns.header_values)], names=["key", "value"])
    headers = pa.ListArray.from_arrays(pa.array(_int32(columns.header_offsets), pa.int32()), entries)
    timestamps = pa.array(columns.timestamps, pa.int64()).cast(SCHEMA.field(TIMESTAMP).type)
    return pa.RecordBatch.from_arrays([_binary_array(columns.keys), _binary_array(columns.values), timestamps, headers], names=COLUMNS)


def _text(array: pa.Array) -> pa.Array:
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.as_py().decode(errors="replace") for key in array], pa.string())


def _binary_array(column: ByteColumn) -> pa.Array:
    validity = None if column.valid is None else pa.py_buffer(np.packbits(column.valid, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), column.length, [validity, pa.py_buffer(_int32(column.offsets)), pa.py_buffer(column.data)])


def _int32(offsets: Int64s) -> npt.NDArray[np.int32]:
    """Offsets as int32, for Arrow's binary and list types."""
    if offsets[-1] >= 2**31:
        raise OverflowError(f"a column of {offsets[-1]} bytes; one Arrow array takes less than 2^31")
    return offsets.astype(np.int32)
