"""Compiled twin of `kernels_reference/decode.py`.

Every read is preceded by a comparison with the end of its record, every record's end by one with the end of the payload. A
reader returns the position after what it read, or -1; lengths are compared with what is left instead of being added to a
position first, so that no sum can go beyond 64 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from chaffinch.records.errors import Fault
from chaffinch.records.kernels.compiled import BYTES, BYTES_OUT, INT64, INT64S, INT64S_OUT, compiled, inlined
from chaffinch.records.kernels_reference.byte_lists import Bytes, Int64s
from chaffinch.records.kernels_reference.decode import AT_POSITION, AT_RECORD, NULL_KEYS, NULL_VALUES, RECORD_BYTES_MIN

_NONE = int(Fault.NONE)
_RECORD_COUNT = int(Fault.RECORD_COUNT)
_RECORD_LENGTH = int(Fault.RECORD_LENGTH)
_RECORD_CUT_SHORT = int(Fault.RECORD_CUT_SHORT)
_TIMESTAMP_DELTA = int(Fault.TIMESTAMP_DELTA)
_OFFSET_DELTA = int(Fault.OFFSET_DELTA)
_KEY_LENGTH = int(Fault.KEY_LENGTH)
_VALUE_LENGTH = int(Fault.VALUE_LENGTH)
_HEADER_COUNT = int(Fault.HEADER_COUNT)
_HEADER_KEY_LENGTH = int(Fault.HEADER_KEY_LENGTH)
_HEADER_VALUE_LENGTH = int(Fault.HEADER_VALUE_LENGTH)
_RECORD_LENGTH_UNUSED = int(Fault.RECORD_LENGTH_UNUSED)
_TRAILING_BYTES = int(Fault.TRAILING_BYTES)


@inlined
def _read_long_varint(data: Bytes, position: int, end: int, bytes_max: int) -> tuple[Any, int]:
    raw = np.uint64(0)
    for index in range(bytes_max):
        if position + index >= end:
            return 0, -1
        byte = np.uint64(data[position + index])
        raw |= (byte & np.uint64(0x7F)) << np.uint64(7 * index)
        if byte < np.uint64(0x80):
            if bytes_max == 5:
                raw &= np.uint64(0xFFFFFFFF)
            return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), position + index + 1
    return 0, -1


@inlined
def _read_varint(data: Bytes, position: int, end: int, bytes_max: int) -> tuple[Any, int]:
    if position < end:
        byte = np.int64(data[position])
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), position + 1
    return _read_long_varint(data, position, end, bytes_max)


@inlined
def _read_length(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """A length whose bytes must end by `end`: -1 for any negative one; position -1 if they do not fit."""
    length, start = _read_varint(data, position, end, 5)
    if start < 0 or length > end - start:
        return 0, -1
    return max(length, -1), start


@inlined
def _scan_field(data: Bytes, position: int, end: int, index: int, starts: Int64s, offsets: Int64s, valid: Bytes) -> tuple[int, int]:
    """A key or value with its length before it, into row `index`: 1 if it is null, and the position after it; -1 when it does not fit."""
    length, start = _read_length(data, position, end)
    if start < 0:
        return 0, -1
    size, is_null = max(length, 0), int(length < 0)
    starts[index] = start
    offsets[index + 1] = offsets[index] + size
    valid[index] = 1 - is_null
    return is_null, start + size


@inlined
def _skip_headers(data: Bytes, position: int, end: int, count: int) -> tuple[int, int]:
    """Fault and position after `count` headers, which fill the record; with a fault, the position of the field that has it."""
    for _ in range(count):
        length, start = _read_length(data, position, end)
        if start < 0 or length < 0:
            return _HEADER_KEY_LENGTH, position
        position = start + length
        length, start = _read_length(data, position, end)
        if start < 0:
            return _HEADER_VALUE_LENGTH, position
        position = start + max(length, 0)
    return _NONE if position == end else _RECORD_LENGTH_UNUSED, position


@inlined
def _fault(summary: Int64s, fault: int, index: int, position: int) -> int:
    summary[AT_RECORD] = index
    summary[AT_POSITION] = position
    return fault


@inlined
def _scan_records(
    payload: Bytes,
    start: int,
    payload_end: int,
    first: int,
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
    """`count` records that fill the payload from `start` to `payload_end`, into the rows from `first` on."""
    if count < 0 or count > (payload_end - start) // RECORD_BYTES_MIN:
        return _RECORD_COUNT
    position = start
    null_keys = null_values = 0
    for index in range(first, first + count):
        length, body = _read_varint(payload, position, payload_end, 5)
        if body < 0 or length < 0:
            return _fault(summary, _RECORD_LENGTH, index, position)
        if length > payload_end - body:
            return _fault(summary, _RECORD_CUT_SHORT, index, position)
        end = body + length

        position = body + 1
        delta, after = _read_varint(payload, position, end, 10)
        if after < 0:
            return _fault(summary, _TIMESTAMP_DELTA, index, position)
        timestamps[index] = base_timestamp + delta

        position = after
        delta, after = _read_varint(payload, position, end, 5)
        if after < 0:
            return _fault(summary, _OFFSET_DELTA, index, position)
        offsets[index] = base_offset + delta
        position = after

        is_null, after = _scan_field(payload, position, end, index, key_starts, key_offsets, key_valid)
        if after < 0:
            return _fault(summary, _KEY_LENGTH, index, position)
        null_keys += is_null
        position = after
        is_null, after = _scan_field(payload, position, end, index, value_starts, value_offsets, value_valid)
        if after < 0:
            return _fault(summary, _VALUE_LENGTH, index, position)
        null_values += is_null
        position = after

        header_count, after = _read_varint(payload, position, end, 5)
        if after < 0 or header_count < 0 or header_count > (end - after) // 2:
            return _fault(summary, _HEADER_COUNT, index, position)
        header_starts[index] = after
        header_offsets[index + 1] = header_offsets[index] + header_count
        fault, position = _skip_headers(payload, after, end, header_count)
        if fault:
            return _fault(summary, fault, index, position)
    if position != payload_end:
        return _fault(summary, _TRAILING_BYTES, first + count, position)
    summary[NULL_KEYS] += null_keys
    summary[NULL_VALUES] += null_values
    return 0


@compiled(
    *(BYTES, INT64, INT64, INT64, INT64S_OUT, INT64S_OUT),
    *(INT64S_OUT, INT64S_OUT, BYTES_OUT),
    *(INT64S_OUT, INT64S_OUT, BYTES_OUT),
    *(INT64S_OUT, INT64S_OUT, INT64S_OUT),
)
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
    key_offsets[0] = value_offsets[0] = header_offsets[0] = 0
    summary[:] = 0
    return _scan_records(
        payload,
        0,
        payload.size,
        0,
        count,
        base_offset,
        base_timestamp,
        offsets,
        timestamps,
        key_starts,
        key_offsets,
        key_valid,
        value_starts,
        value_offsets,
        value_valid,
        header_starts,
        header_offsets,
        summary,
    )


@compiled(
    *(BYTES, INT64S, INT64S, INT64S, INT64S, INT64S_OUT, INT64S_OUT),
    *(INT64S_OUT, INT64S_OUT, BYTES_OUT),
    *(INT64S_OUT, INT64S_OUT, BYTES_OUT),
    *(INT64S_OUT, INT64S_OUT, INT64S_OUT),
)
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
    key_offsets[0] = value_offsets[0] = header_offsets[0] = 0
    summary[:] = 0
    first = start = 0
    for batch in range(min(ends.size, counts.size, base_offsets.size, base_timestamps.size)):
        count, end = counts[batch], ends[batch]
        if end < start or end > payload.size or count > offsets.size - first:
            return _RECORD_COUNT
        fault = _scan_records(
            payload,
            start,
            end,
            first,
            count,
            base_offsets[batch],
            base_timestamps[batch],
            offsets,
            timestamps,
            key_starts,
            key_offsets,
            key_valid,
            value_starts,
            value_offsets,
            value_valid,
            header_starts,
            header_offsets,
            summary,
        )
        if fault:
            return fault
        first, start = first + count, end
    return 0


@compiled(BYTES, INT64S, INT64S, INT64S_OUT, INT64S_OUT, INT64S_OUT, INT64S_OUT, BYTES_OUT, INT64S_OUT)
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
    key_offsets[0] = value_offsets[0] = 0
    summary[:] = 0
    nulls = 0
    for index in range(header_starts.size):
        position = header_starts[index]
        for entry in range(max(header_offsets[index], 0), min(header_offsets[index + 1], key_starts.size)):
            length, after = _read_length(payload, position, payload.size)
            if after < 0 or length < 0:
                return _fault(summary, _HEADER_KEY_LENGTH, index, position)
            key_starts[entry] = after
            key_offsets[entry + 1] = key_offsets[entry] + length
            position = after + length
            is_null, after = _scan_field(payload, position, payload.size, entry, value_starts, value_offsets, value_valid)
            if after < 0:
                return _fault(summary, _HEADER_VALUE_LENGTH, index, position)
            nulls += is_null
            position = after
    summary[NULL_VALUES] = nulls
    return 0
