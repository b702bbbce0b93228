"""Reading records: where the fields of each record lie in a payload. Copying them is `gather`'s work.

No number found in the bytes is trusted: every read is checked against the end of its record, and every record against the end
of the payload.
"""

from __future__ import annotations

from chaffinch.records.faults import Fault
from chaffinch.records.kernels_reference.byte_lists import Bytes, Int64s
from chaffinch.records.kernels_reference.varints import INT32_BYTES_MAX, INT64_BYTES_MAX, read_varint, wrap_int64

RECORD_BYTES_MIN = 7
"""The shortest record: its length, attributes, two deltas, two nulls, no headers."""

AT_RECORD, AT_POSITION, NULL_KEYS, NULL_VALUES = range(4)
"""What the entries of a summary are."""
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
    `summary` gets the record and byte position of a fault (position 0 and record 0 for faults outside records), and the
    numbers of null keys and null values.
    """
    key_offsets[0] = value_offsets[0] = header_offsets[0] = 0
    summary[:] = 0
    data = payload.tobytes()
    if count < 0 or count > len(data) // RECORD_BYTES_MIN:
        return Fault.RECORD_COUNT
    position = index = 0
    try:
        for index in range(count):
            reader = _record_at(data, position)
            timestamps[index] = wrap_int64(base_timestamp + reader.number(Fault.TIMESTAMP_DELTA, INT64_BYTES_MAX))
            offsets[index] = wrap_int64(base_offset + reader.number(Fault.OFFSET_DELTA))
            key_starts[index], key_length = reader.field(Fault.KEY_LENGTH)
            key_valid[index] = key_length >= 0
            key_offsets[index + 1] = key_offsets[index] + max(key_length, 0)
            value_starts[index], value_length = reader.field(Fault.VALUE_LENGTH)
            value_valid[index] = value_length >= 0
            value_offsets[index + 1] = value_offsets[index] + max(value_length, 0)
            header_starts[index], header_count = _skip_headers(reader)
            header_offsets[index + 1] = header_offsets[index] + header_count
            if reader.position != reader.end:
                raise _Malformed(Fault.RECORD_LENGTH_UNUSED, reader.position)
            summary[NULL_KEYS] += key_length < 0
            summary[NULL_VALUES] += value_length < 0
            position = reader.end
        if position != len(data):
            index = count
            raise _Malformed(Fault.TRAILING_BYTES, position)
    except _Malformed as malformed:
        summary[AT_RECORD], summary[AT_POSITION] = index, malformed.position
        return malformed.fault
    return Fault.NONE


def _record_at(data: bytes, position: int) -> _Reader:
    """A reader that has passed the length and the attributes of the record at `position`."""
    length, body = read_varint(data, position, len(data), INT32_BYTES_MAX)
    if body < 0 or length < 0:
        raise _Malformed(Fault.RECORD_LENGTH, position)
    if length > len(data) - body:
        raise _Malformed(Fault.RECORD_CUT_SHORT, position)
    return _Reader(data, body + 1, body + length)


def _skip_headers(reader: _Reader) -> tuple[int, int]:
    """Where the headers begin, and how many there are."""
    at = reader.position
    count = reader.number(Fault.HEADER_COUNT)
    # A header takes two bytes at least.
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
    """Find the fields of the headers that `scan` counted: as there, with one entry per header in the last five arrays."""
    key_offsets[0] = value_offsets[0] = 0
    summary[:] = 0
    data = payload.tobytes()
    ends = header_offsets.tolist()
    entry = index = 0
    try:
        for index, start in enumerate(header_starts.tolist()):
            reader = _Reader(data, start, len(data))
            for entry in range(ends[index], ends[index + 1]):
                key_starts[entry], key_length = reader.field(Fault.HEADER_KEY_LENGTH, is_nullable=False)
                key_offsets[entry + 1] = key_offsets[entry] + key_length
                value_starts[entry], value_length = reader.field(Fault.HEADER_VALUE_LENGTH)
                value_valid[entry] = value_length >= 0
                value_offsets[entry + 1] = value_offsets[entry] + max(value_length, 0)
                summary[NULL_VALUES] += value_length < 0
    except _Malformed as malformed:
        summary[AT_RECORD], summary[AT_POSITION] = index, malformed.position
        return malformed.fault
    return Fault.NONE
