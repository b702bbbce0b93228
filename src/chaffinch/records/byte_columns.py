"""Nullable column of byte strings, laid out as Arrow's large_binary: offsets, bytes, validity.

Layout of n values: `offsets` int64[n+1] ascending; value i is `data[offsets[i]:offsets[i+1]]`. The first offset need not be 0 and bytes
outside the offsets are unused, so a slice shares its buffers. `valid` uint8[n], 0 for null, or None without nulls; the bytes of a null mean
nothing. Immutable by convention after construction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from chaffinch.records import kernels

Bytes: TypeAlias = npt.NDArray[np.uint8]
Int64s: TypeAlias = npt.NDArray[np.int64]

ALL_VALID: Bytes = np.empty(0, np.uint8)
"""Value of `valid` for the loops if nothing is null."""

_ZEROS: Int64s = np.zeros(1 << 17, np.int64)
_ZEROS.flags.writeable = False


def zeros(count: int) -> Int64s:
    """`count` zeros, read-only: usually a shared array, which stays in the processor's cache and takes no memory."""
    return _ZEROS[:count] if count <= len(_ZEROS) else np.zeros(count, np.int64)


class ByteColumn(NamedTuple):
    """Offsets, bytes and validity; see the module docstring."""

    offsets: Int64s
    data: Bytes
    valid: Bytes | None

    @property
    def length(self) -> int:
        """Number of values (`len()` counts the buffers)."""
        return len(self.offsets) - 1

    @property
    def validity(self) -> Bytes:
        """`valid` as the loops take it."""
        return ALL_VALID if self.valid is None else self.valid

    @classmethod
    def of(cls, values: Iterable[bytes | bytearray | memoryview | None]) -> ByteColumn:
        """A column with copies of `values`; None is null."""
        items: Sequence[Any] = values if isinstance(values, list) else list(values)
        valid = None
        offsets = np.zeros(len(items) + 1, np.int64)
        try:
            lengths = np.fromiter(map(len, items), np.int64, len(items))
        except TypeError:  # A null has no length. Trying is faster than searching for nulls, which are rare.
            if items.count(None) == len(items):
                return cls.nulls(len(items))
            valid = np.array([item is not None for item in items], np.uint8)
            items = [b"" if item is None else item for item in items]
            lengths = np.fromiter(map(len, items), np.int64, len(items))
        lengths.cumsum(out=offsets[1:])
        return cls(offsets, np.frombuffer(b"".join(items), np.uint8), valid)

    @classmethod
    def nulls(cls, count: int) -> ByteColumn:
        """`count` nulls."""
        return cls(zeros(count + 1), ALL_VALID, zeros(count).view(np.uint8)[:count]) if count else NO_ENTRIES

    def value(self, index: int) -> bytes | None:
        """A copy of value `index` (0 to n-1); None for null."""
        if not 0 <= index < self.length:
            raise IndexError(f"value {index} of {self.length}")
        if self.valid is not None and not self.valid[index]:
            return None
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes()

    def slice(self, start: int, stop: int) -> ByteColumn:
        """Values start to stop-1, sharing this column's buffers."""
        return ByteColumn(self.offsets[start : stop + 1], self.data, None if self.valid is None else self.valid[start:stop])

    def take(self, indices: Int64s) -> ByteColumn:
        """Copies of the values at `indices`, in that order, repeats allowed. IndexError for an index outside 0 to n-1."""
        starts = self.offsets[:-1][indices]
        offsets = np.zeros(len(indices) + 1, np.int64)
        np.cumsum(self.offsets[1:][indices] - starts, out=offsets[1:])
        data = gather(self.data, starts, offsets)
        return ByteColumn(offsets, data, None if self.valid is None else self.valid[indices])

    def compact(self) -> ByteColumn:
        """The same values with offsets from 0 and no unused bytes; self if that is already true."""
        first, last = int(self.offsets[0]), int(self.offsets[-1])
        if first == 0 and last == len(self.data):
            return self
        return ByteColumn(self.offsets - first, self.data[first:last], self.valid)


NO_ENTRIES = ByteColumn(np.zeros(1, np.int64), ALL_VALID, None)
"""A column without entries, which most records use for headers."""


def gather(data: Bytes, starts: Int64s, offsets: Int64s) -> Bytes:
    """The bytes of a column with these `offsets` (from 0) whose entry i begins at `data[starts[i]]`.

    Raises ValueError if an entry is not within `data`.
    """
    out = np.empty(max(int(offsets[-1]), 0), np.uint8)
    bad = kernels.choose(len(starts)).gather(data, starts, offsets, out)
    if bad >= 0:
        raise ValueError(f"entry {bad} does not lie within the {len(data)} bytes of the data")
    return out


def concat(columns: Sequence[ByteColumn]) -> ByteColumn:
    """All values of `columns`, concatenated and copied."""
    compact = [column.compact() for column in columns]
    ends = np.cumsum([0, *(len(column.data) for column in compact)])
    offsets = [np.zeros(1, np.int64), *(column.offsets[1:] + end for column, end in zip(compact, ends[:-1], strict=True))]
    valid = None
    if any(column.valid is not None for column in columns):
        valid = np.concatenate([np.ones(column.length, np.uint8) if column.valid is None else column.valid for column in columns])
    return ByteColumn(np.concatenate(offsets), np.concatenate([ALL_VALID, *(column.data for column in compact)]), valid)
