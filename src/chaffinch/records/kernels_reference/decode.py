"""Record decoder: positions of the fields of each record in a payload. `gather` copies them.

No number in the bytes is trusted: every read is checked against the end of its record, and every record against the end of the payload.
"""

from __future__ import annotations

import numpy as np

from chaffinch.records.errors import Fault
from chaffinch.records.kernels_reference.byte_lists import Bytes, Int64s
from chaffinch.records.kernels_reference.varints import INT32_BYTES_MAX, INT64_BYTES_MAX, read_varint, wrap_int64

RECORD_BYTES_MIN = 7
"""The shortest record: its length, attributes, two deltas, two nulls, no headers."""

AT_RECORD, AT_POSITION, NULL_KEYS, NULL_VALUES = range(4)
"""Entries of a summary."""
SUMMARY_LENGTH = 4


class _Malformed(Exception):
    """Ends a scan."""

    def __init__(self, fault: Fault, position: int) -> None:
        self.fault = fault
        self.position = position


class _Reader:
    """A position within one record; `end` is where the record ends."""

    def __init__(self, data: bytes, position: int, end: int) -> None:
        self.data = data
        self.position = position
        self.end = end

    def number(self, fault: Fault, bytes_max: int = INT32_BYTES_MAX) -> int:
        value, position = read_varint(self.data, self.position, self.end, bytes_max)
        if position < 0:
            raise _Malformed(fault, self.position)
        self.position = position
        return value

    def field(self, fault: Fault, *, is_nullable: bool = True) -> tuple[int, int]:
        """Start and length of the bytes after a length; length -1 for null."""
        at = self.position
        length = self.number(fault)
        if length > self.end - self.position or (length < 0 and not is_nullable):
            raise _Malformed(fault, at)
        start = self.position
        self.position += max(length, 0)
        return start, max(length, -1)


def scan(
    payload: Bytes,
    count: int,
    base_offset: int,
    base_timestamp: int,
    offsets: Int64s,
    timestamps: Int64s,
    key_starts: Int64s,
    key_offsets: Int64s,
    key_valid: Bytes,
    value_starts: Int64s,
    value_offsets: Int64s,
    value_valid: Bytes,
    header_starts: Int64s,
    header_offsets: Int64s,
    summary: Int64s,
) -> int:
    """Find the fields of `count` records that fill `payload`; returns Fault.NONE or the first fault.

    Per record: `offsets` and `timestamps` (deltas added to the bases, modulo 2^64), where key and value begin (`*_starts`), their
    lengths added up (`*_offsets`, n+1 entries, null counts 0), validity, where the headers begin, and their counts added up.
    `summary` gets the record and byte position of a fault (0 and 0 for RECORD_COUNT, record `count` for bytes after the last one),
    or else the numbers of null keys and null values.
    """
    summary[:] = 0
    data = payload.tobytes()
    if count < 0 or count > len(data) // RECORD_BYTES_MIN:
        return Fault.RECORD_COUNT
    rows: list[tuple[int, ...]] = []
    position = 0
    try:
        for _ in range(count):
            reader = _record_at(data, position)
            timestamp = wrap_int64(base_timestamp + reader.number(Fault.TIMESTAMP_DELTA, INT64_BYTES_MAX))
            offset = wrap_int64(base_offset + reader.number(Fault.OFFSET_DELTA))
            key, value = reader.field(Fault.KEY_LENGTH), reader.field(Fault.VALUE_LENGTH)
            headers = _skip_headers(reader)
            if reader.position != reader.end:
                raise _Malformed(Fault.RECORD_LENGTH_UNUSED, reader.position)
            rows.append((offset, timestamp, *key, *value, *headers))
            position = reader.end
        if position != len(data):
            raise _Malformed(Fault.TRAILING_BYTES, position)
    except _Malformed as malformed:
        summary[AT_RECORD], summary[AT_POSITION] = len(rows), malformed.position
        return malformed.fault
    table = np.array(rows, np.int64).reshape(count, 8).T
    offsets[:], timestamps[:] = table[0], table[1]
    summary[NULL_KEYS] = _fill(table[2], table[3], key_starts, key_offsets, key_valid)
    summary[NULL_VALUES] = _fill(table[4], table[5], value_starts, value_offsets, value_valid)
    header_starts[:] = table[6]
    header_offsets[0] = 0
    np.cumsum(table[7], out=header_offsets[1:])
    return Fault.NONE


def scan_batches(
    payload: Bytes,
    ends: Int64s,
    counts: Int64s,
    base_offsets: Int64s,
    base_timestamps: Int64s,
    offsets: Int64s,
    timestamps: Int64s,
    key_starts: Int64s,
    key_offsets: Int64s,
    key_valid: Bytes,
    value_starts: Int64s,
    value_offsets: Int64s,
    value_valid: Bytes,
    header_starts: Int64s,
    header_offsets: Int64s,
    summary: Int64s,
) -> int:
    """Like `scan`, for several concatenated payloads: payload i ends at `ends[i]`, where the next begins, and has `counts[i]` records.

    The outputs hold the rows of all payloads. After a fault they are undefined; scan the payloads one by one to locate it.
    """
    summary[:] = 0
    key_offsets[0] = value_offsets[0] = header_offsets[0] = 0
    found = np.zeros(SUMMARY_LENGTH, np.int64)
    first = start = 0
    for count, end, base_offset, base_timestamp in zip(
        *(array.tolist() for array in (counts, ends, base_offsets, base_timestamps)), strict=False
    ):
        rows, longer = slice(first, first + count), slice(first, first + count + 1)
        if end < start or end > payload.size or not 0 <= count <= min(offsets.size - first, (end - start) // RECORD_BYTES_MIN):
            return Fault.RECORD_COUNT
        lengths = np.empty((3, count + 1), np.int64)
        fault = scan(
            payload[start:end],
            count,
            base_offset,
            base_timestamp,
            offsets[rows],
            timestamps[rows],
            key_starts[rows],
            lengths[0],
            key_valid[rows],
            value_starts[rows],
            lengths[1],
            value_valid[rows],
            header_starts[rows],
            lengths[2],
            found,
        )
        if fault:
            summary[AT_RECORD], summary[AT_POSITION] = first + found[AT_RECORD], start + found[AT_POSITION]
            return fault
        for starts in (key_starts, value_starts, header_starts):
            starts[rows] += start
        for total, own in zip((key_offsets, value_offsets, header_offsets), lengths, strict=True):
            total[longer] = own + total[first]
        summary[NULL_KEYS:] += found[NULL_KEYS:]
        first, start = first + count, end
    return Fault.NONE


def _fill(found_starts: Int64s, lengths: Int64s, starts: Int64s, offsets: Int64s, valid: Bytes) -> int:
    """Write the scanned fields of one column to its buffers; returns the number of nulls."""
    starts[:] = found_starts
    valid[:] = lengths >= 0
    offsets[0] = 0
    np.cumsum(np.maximum(lengths, 0), out=offsets[1:])
    return int(np.count_nonzero(lengths < 0))


def _record_at(data: bytes, position: int) -> _Reader:
    """A reader that has passed the length and the attributes of the record at `position`."""
    length, body = read_varint(data, position, len(data), INT32_BYTES_MAX)
    if body < 0 or length < 0:
        raise _Malformed(Fault.RECORD_LENGTH, position)
    if length > len(data) - body:
        raise _Malformed(Fault.RECORD_CUT_SHORT, position)
    return _Reader(data, body + 1, body + length)


def _skip_headers(reader: _Reader) -> tuple[int, int]:
    """Start of the headers, and their number."""
    at = reader.position
    count = reader.number(Fault.HEADER_COUNT)
    # A header takes at least two bytes.
    if not 0 <= count <= (reader.end - reader.position) // 2:
        raise _Malformed(Fault.HEADER_COUNT, at)
    start = reader.position
    for _ in range(count):
        reader.field(Fault.HEADER_KEY_LENGTH, is_nullable=False)
        reader.field(Fault.HEADER_VALUE_LENGTH)
    return start, count


def scan_headers(
    payload: Bytes,
    header_starts: Int64s,
    header_offsets: Int64s,
    key_starts: Int64s,
    key_offsets: Int64s,
    value_starts: Int64s,
    value_offsets: Int64s,
    value_valid: Bytes,
    summary: Int64s,
) -> int:
    """Find the fields of the headers that `scan` counted. The last five arrays are like those of `scan`, with one entry per header."""
    summary[:] = 0
    data = payload.tobytes()
    entries: list[tuple[int, ...]] = []
    record = 0
    try:
        for start, count in zip(header_starts.tolist(), np.diff(header_offsets).tolist(), strict=True):
            reader = _Reader(data, start, len(data))
            for _ in range(count):
                entries.append((*reader.field(Fault.HEADER_KEY_LENGTH, is_nullable=False), *reader.field(Fault.HEADER_VALUE_LENGTH)))
            record += 1
    except _Malformed as malformed:
        summary[AT_RECORD], summary[AT_POSITION] = record, malformed.position
        return malformed.fault
    table = np.array(entries, np.int64).reshape(len(entries), 4).T
    _fill(table[0], table[1], key_starts, key_offsets, np.empty(len(entries), np.uint8))
    summary[NULL_VALUES] = _fill(table[2], table[3], value_starts, value_offsets, value_valid)
    return Fault.NONE
