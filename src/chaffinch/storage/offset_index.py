"""Sparse offset index of one segment: every few kilobytes, a batch's offset and position, and the largest timestamp before it.

An entry has 16 bytes: offset - base offset i32 | position i32 | largest timestamp of all earlier batches of the segment i64. The index is
in memory while the segment is in use. The file is written at checkpoints and rebuilt from the log if it is missing or short.
"""

from array import array
from bisect import bisect_left, bisect_right

import numpy as np

ENTRY = np.dtype([("offset", ">i4"), ("position", ">i4"), ("max_timestamp", ">i8")])
SPAN_MAX = 2**31 - 1
"""Largest distance of an offset or byte from the segment's first one: entries hold 32-bit numbers."""


class OffsetIndex:
    """Positions and offsets ascend. The first batch of a segment always has an entry."""

    __slots__ = ("_interval_bytes", "_max_timestamps", "_next_position", "_offsets", "_positions", "base_offset")

    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        self.base_offset = base_offset
        self._interval_bytes = interval_bytes
        self._offsets = array("q")
        self._positions = array("q")
        self._max_timestamps = array("q")
        self._next_position = 0

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, offset: int, position: int, max_timestamp_before: int) -> None:
        """Record that a batch begins at `position`. It becomes an entry if the last entry is far enough away."""
        if position >= self._next_position:
            self._offsets.append(offset)
            self._positions.append(position)
            self._max_timestamps.append(max_timestamp_before)
            self._next_position = position + self._interval_bytes

    def position(self, number: int) -> int:
        """Position of the batch of entry `number`."""
        return self._positions[number]

    def floor(self, offset: int) -> tuple[int, int]:
        """(offset, position) of the last entry at or before `offset`; the segment's beginning when there is none."""
        index = bisect_right(self._offsets, offset) - 1
        return (self._offsets[index], self._positions[index]) if index >= 0 else (self.base_offset, 0)

    def floor_entry(self, position: int) -> tuple[int, int]:
        """(offset, position) of the last entry at or before `position`."""
        index = bisect_right(self._positions, position) - 1
        return (self._offsets[index], self._positions[index]) if index >= 0 else (self.base_offset, 0)

    def floor_timestamp(self, timestamp: int) -> tuple[int, int]:
        """(offset, position) of the last entry before which every timestamp is smaller than `timestamp`."""
        index = bisect_left(self._max_timestamps, timestamp) - 1
        return (self._offsets[index], self._positions[index]) if index >= 0 else (self.base_offset, 0)

    def encode(self, start: int) -> bytes:
        """The entries from number `start` on."""
        rows = np.empty(len(self) - start, ENTRY)
        rows["offset"] = np.frombuffer(self._offsets[start:], np.int64) - self.base_offset
        rows["position"] = self._positions[start:]
        rows["max_timestamp"] = self._max_timestamps[start:]
        return rows.tobytes()

    def load(self, data: bytes) -> None:
        """Replace the entries with those in `data`, which must be the output of `encode`."""
        rows = np.frombuffer(data, ENTRY)
        self._offsets = array("q", (rows["offset"].astype(np.int64) + self.base_offset).tobytes())
        self._positions = array("q", rows["position"].astype(np.int64).tobytes())
        self._max_timestamps = array("q", rows["max_timestamp"].astype(np.int64).tobytes())
        self._next_position = self._positions[-1] + self._interval_bytes if len(rows) else 0
