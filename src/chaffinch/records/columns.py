"""RecordColumns: records in memory as columns, between Arrow tables and the bytes of a batch.

A record is a row across columns: key and value (`ByteColumn`: offsets, bytes, validity), a timestamp, and a range of the header columns.
There is no object per record; `key(i)`, `value(i)` and `headers(i)` create one for errors and tests. Immutable by convention: slices share
buffers.

`kernels` holds the loops over these buffers; `arrow_columns` converts Arrow data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from chaffinch.records import kernels
from chaffinch.records.byte_columns import ByteColumn, Bytes, Int64s, zeros
from chaffinch.records.byte_columns import concat as concat_bytes
from chaffinch.records.kernels_reference.varints import INT64_BYTES_MAX, varint_size

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

RECORD_OVERHEAD_BYTES: Final = 36
"""Largest size of length, attributes, deltas and the lengths of key, value and headers: five varints of 5 bytes, one of 10, a byte."""
HEADER_OVERHEAD_BYTES: Final = 10
RECORD_BYTES_MIN: Final = 7
"""Size of a record without key, value and headers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordColumns:
    """n records. Keys and values as in `ByteColumn`; `timestamps` int64[n] in ms since 1970, -1 for none.

    `header_offsets` int64[n+1]: the headers of record i are entries header_offsets[i] to header_offsets[i+1]-1 of the header key and header
    value columns; header keys are UTF-8 and never null. `offsets` int64[n] are the records' log offsets, None if they were not read from a
    log.
    """

    key_offsets: Int64s
    key_data: Bytes
    key_valid: Bytes | None
    value_offsets: Int64s
    value_data: Bytes
    value_valid: Bytes | None
    timestamps: Int64s
    header_offsets: Int64s
    header_key_offsets: Int64s
    header_key_data: Bytes
    header_value_offsets: Int64s
    header_value_data: Bytes
    header_value_valid: Bytes | None
    offsets: Int64s | None = None

    def __post_init__(self) -> None:
        """Check the lengths and types that the compiled loops rely on; raises ValueError. `measure` checks the offsets."""
        entries, header_entries = len(self.timestamps) + 1, len(self.header_key_offsets)
        has_right_lengths = (
            len(self.key_offsets) == len(self.value_offsets) == len(self.header_offsets) == entries
            and len(self.header_value_offsets) == header_entries > 0
            and (self.key_valid is None or len(self.key_valid) == entries - 1)
            and (self.value_valid is None or len(self.value_valid) == entries - 1)
            and (self.header_value_valid is None or len(self.header_value_valid) == header_entries - 1)
            and (self.offsets is None or len(self.offsets) == entries - 1)
        )
        arrays = _ARRAYS_OF(self)
        if not has_right_lengths:
            lengths = {name: len(array) for name, array in zip(_TYPES, arrays, strict=True) if array is not None}
            raise ValueError(f"lengths that do not match: {lengths}")
        for array, (name, dtype) in zip(arrays, _TYPES.items(), strict=True):
            if array is not None and not (array.dtype == dtype and (flags := array.flags).c_contiguous and flags.aligned):
                raise ValueError(f"{name} is {array.dtype}, not one aligned piece of {dtype}")

    @classmethod
    def of(
        cls,
        keys: ByteColumn,
        values: ByteColumn,
        timestamps: Int64s,
        *,
        header_offsets: Int64s | None = None,
        header_keys: ByteColumn | None = None,
        header_values: ByteColumn | None = None,
        offsets: Int64s | None = None,
    ) -> RecordColumns:
        """Columns from their parts; lengths and types must agree (ValueError). Without `header_offsets` no record has headers."""
        count = len(timestamps)
        if header_offsets is None:
            header_offsets = zeros(count + 1)
        header_keys = ByteColumn.nulls(0) if header_keys is None else header_keys
        header_values = ByteColumn.nulls(0) if header_values is None else header_values
        return cls(
            key_offsets=keys.offsets,
            key_data=keys.data,
            key_valid=keys.valid,
            value_offsets=values.offsets,
            value_data=values.data,
            value_valid=values.valid,
            timestamps=timestamps,
            header_offsets=header_offsets,
            header_key_offsets=header_keys.offsets,
            header_key_data=header_keys.data,
            header_value_offsets=header_values.offsets,
            header_value_data=header_values.data,
            header_value_valid=header_values.valid,
            offsets=offsets,
        )

    @classmethod
    def from_lists(
        cls,
        keys: Sequence[bytes | None] | None,
        values: Sequence[bytes | None],
        timestamps: Sequence[int] | npt.NDArray[np.int64],
        headers: Iterable[Headers] | None = None,
    ) -> RecordColumns:
        """Columns with copies of Python objects: one entry per record in each list; `keys=None` means that every key is null."""
        key_column = ByteColumn.nulls(len(values)) if keys is None else ByteColumn.of(keys)
        columns = cls.of(key_column, ByteColumn.of(values), np.array(timestamps, np.int64))
        return columns if headers is None else columns.with_headers(headers)

    @property
    def count(self) -> int:
        return len(self.timestamps)

    def __len__(self) -> int:
        return len(self.timestamps)

    @property
    def keys(self) -> ByteColumn:
        return ByteColumn(self.key_offsets, self.key_data, self.key_valid)

    @property
    def values(self) -> ByteColumn:
        return ByteColumn(self.value_offsets, self.value_data, self.value_valid)

    @property
    def header_keys(self) -> ByteColumn:
        return ByteColumn(self.header_key_offsets, self.header_key_data, None)

    @property
    def header_values(self) -> ByteColumn:
        return ByteColumn(self.header_value_offsets, self.header_value_data, self.header_value_valid)

    def key(self, index: int) -> bytes | None:
        return self.keys.value(index)

    def value(self, index: int) -> bytes | None:
        return self.values.value(index)

    def headers(self, index: int) -> list[tuple[str, bytes | None]]:
        """The headers of record `index`; invalid UTF-8 in keys is replaced, as in Java's client."""
        if not 0 <= index < self.count:
            raise IndexError(f"record {index} of {self.count}")
        keys, values = self.header_keys, self.header_values
        entries = range(int(self.header_offsets[index]), int(self.header_offsets[index + 1]))
        return [((keys.value(i) or b"").decode(errors="replace"), values.value(i)) for i in entries]

    def below(self, offset: int) -> RecordColumns:
        """The records with offsets below this one."""
        assert self.offsets is not None, "records that were read have offsets"
        last = int(np.searchsorted(self.offsets, offset))
        return self if last == self.count else self.slice(0, last)

    def slice(self, start: int, stop: int) -> RecordColumns:
        """Records start to stop-1 (bounds as in Python, without a step), sharing these buffers."""
        start, stop, _ = slice(start, stop).indices(self.count)
        stop = max(start, stop)
        if len(self.header_key_offsets) == 1:
            return self._part_without_headers(start, stop)
        first, last = int(self.header_offsets[start]), int(self.header_offsets[stop])
        return RecordColumns.of(
            self.keys.slice(start, stop),
            self.values.slice(start, stop),
            self.timestamps[start:stop],
            header_offsets=self.header_offsets[start : stop + 1] - first if first else self.header_offsets[start : stop + 1],
            header_keys=self.header_keys.slice(first, last),
            header_values=self.header_values.slice(first, last),
            offsets=None if self.offsets is None else self.offsets[start:stop],
        )

    def _part_without_headers(self, start: int, stop: int) -> RecordColumns:
        """A slice of columns without headers. Not checked again, which would be most of its cost: slices of consistent arrays are
        consistent.
        """
        part: RecordColumns = object.__new__(RecordColumns)
        for (name, along), array in zip(_CUT_ALONG.items(), _ARRAYS_OF(self), strict=True):
            is_whole = along is None or array is None
            object.__setattr__(part, name, array if is_whole else array[start : stop + (along == "ends")])
        return part

    def take(self, indices: npt.ArrayLike) -> RecordColumns:
        """Copies of the records at `indices`, in that order. IndexError for an index outside 0 to n-1."""
        rows = np.ascontiguousarray(indices, np.int64)
        if len(rows) and not 0 <= rows.min() <= rows.max() < self.count:
            raise IndexError(f"indices {rows.min()} to {rows.max()} of {self.count} records")
        header_lengths = (self.header_offsets[1:] - self.header_offsets[:-1])[rows]
        header_offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(header_lengths, out=header_offsets[1:])
        entries = np.arange(header_offsets[-1]) + np.repeat(self.header_offsets[:-1][rows] - header_offsets[:-1], header_lengths)
        return RecordColumns.of(
            self.keys.take(rows),
            self.values.take(rows),
            self.timestamps[rows],
            header_offsets=header_offsets,
            header_keys=self.header_keys.take(entries),
            header_values=self.header_values.take(entries),
            offsets=None if self.offsets is None else self.offsets[rows],
        )

    @staticmethod
    def concat(parts: Sequence[RecordColumns]) -> RecordColumns:
        """All records of `parts` (at least one), in order, copied. Log offsets are kept only if every part has them."""
        return _concat(parts)

    def with_headers(self, headers: Iterable[Headers]) -> RecordColumns:
        """The same records with other headers, one sequence of (key, value) per record."""
        rows = list(headers)
        header_offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), out=header_offsets[1:])
        return RecordColumns.of(
            self.keys,
            self.values,
            self.timestamps,
            header_offsets=header_offsets,
            header_keys=ByteColumn.of([key.encode() for row in rows for key, _ in row]),
            header_values=ByteColumn.of([value for row in rows for _, value in row]),
            offsets=self.offsets,
        )

    def sizes(self) -> Int64s:
        """Upper bound of each record's uncompressed size, at any position in a batch of some of these records."""
        sizes = np.empty(self.count, np.int64)
        if self.count:
            span = int(self.timestamps.max()) - int(self.timestamps.min())
            delta_bytes = varint_size(span) if span < 2**63 else INT64_BYTES_MAX
            measure(self, 0, sizes, delta_bytes + varint_size(self.count))
        return sizes

    @property
    def data_bytes(self) -> int:
        """Bytes of all keys, values and headers together; never negative, even for invalid offsets."""
        sides = (self.key_offsets, self.value_offsets, self.header_key_offsets, self.header_value_offsets)
        return sum(max(0, int(offsets[-1]) - int(offsets[0])) for offsets in sides)

    def size_max(self) -> int:
        """Upper bound of the uncompressed size of all records, computed without reading them."""
        headers = len(self.header_key_offsets) - 1
        return self.count * RECORD_OVERHEAD_BYTES + headers * HEADER_OVERHEAD_BYTES + self.data_bytes

    def murmur2_partitions(self, partition_count: int) -> npt.NDArray[np.int32]:
        """The partition of each key as in Java's client: toPositive(murmur2(key)) % partition_count; -1 for a null key."""
        if partition_count < 1:
            raise ValueError(f"{partition_count} partitions")
        partitions = np.empty(self.count, np.int32)
        loops = kernels.choose(self.count)
        bad = loops.murmur2_partitions(self.key_offsets, self.key_data, self.keys.validity, partition_count, partitions)
        if bad >= 0:
            raise ValueError(f"the key offsets of record {bad} do not ascend within the data")
        return partitions


_TYPES = {name: np.dtype(np.uint8 if name.endswith(("data", "valid")) else np.int64) for name in RecordColumns.__slots__}
_ARRAYS_OF = attrgetter(*_TYPES)
_ALONG_ROWS = ("key_valid", "value_valid", "timestamps", "offsets")
_ALONG_ENDS = ("key_offsets", "value_offsets", "header_offsets")
_CUT_ALONG = {name: "rows" if name in _ALONG_ROWS else "ends" if name in _ALONG_ENDS else None for name in _TYPES}


def measure(columns: RecordColumns, base_timestamp: int, sizes: Int64s, delta_bytes: int = 0) -> int:
    """Size of the records in a batch with this base timestamp: the sum, and one by one in `sizes` unless that is empty.

    `delta_bytes`, if not 0, replaces the size of each record's timestamp and offset delta. Raises ValueError for offsets that do not ascend
    within their data; after this check `kernels` can rely on the columns.
    """
    total: int = kernels.choose(columns.count).measure(
        columns.key_offsets,
        len(columns.key_data),
        columns.keys.validity,
        columns.value_offsets,
        len(columns.value_data),
        columns.values.validity,
        columns.timestamps,
        columns.header_offsets,
        columns.header_key_offsets,
        len(columns.header_key_data),
        columns.header_value_offsets,
        len(columns.header_value_data),
        columns.header_values.validity,
        base_timestamp,
        delta_bytes,
        sizes,
    )
    if total < 0:
        raise ValueError(f"the offsets of record {-total - 1} do not ascend within the data")
    return total


def _concat(parts: Sequence[RecordColumns]) -> RecordColumns:
    if len(parts) == 1:
        return parts[0]
    header_ranges = [(int(part.header_offsets[0]), int(part.header_offsets[-1])) for part in parts]
    header_offsets, end = [np.zeros(1, np.int64)], 0
    for part, (first, last) in zip(parts, header_ranges, strict=True):
        header_offsets.append(part.header_offsets[1:] + (end - first))
        end += last - first
    offsets = [part.offsets for part in parts if part.offsets is not None]
    return RecordColumns.of(
        concat_bytes([part.keys for part in parts]),
        concat_bytes([part.values for part in parts]),
        np.concatenate([part.timestamps for part in parts]),
        header_offsets=np.concatenate(header_offsets),
        header_keys=concat_bytes([part.header_keys.slice(*span) for part, span in zip(parts, header_ranges, strict=True)]),
        header_values=concat_bytes([part.header_values.slice(*span) for part, span in zip(parts, header_ranges, strict=True)]),
        offsets=np.concatenate(offsets) if len(offsets) == len(parts) else None,
    )
