"""Compiled twin of `kernels_reference/walk.py`, where arguments, results and faults are described.

Almost every record is ordinary: no headers, short varints, no rule broken. `_skip_ordinary` runs over those and stops before the first
record that is anything else. `_record` then checks that one field by field, and the run continues. Only `_record` reports faults, so the
fast path cannot disagree with it; it can only hand over too often.

The fast path is fast because the next record's position is the end that this record's length claims, and every other check branches away
instead of selecting a value. So the processor predicts the checks and loads the next record while it makes them; merged control flow costs
a third of the speed. Keys and values are skipped, never read.

Bounds: the fast path checks once before the record that `_HEAD_BYTES` are left, and once after the key that `_TAIL_BYTES` are. The slow
path checks before every byte. Positions stay below 2^33, so no sum overflows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from chaffinch.records.errors import Fault
from chaffinch.records.kernels.compiled import BOOL, BYTES, BYTES_OUT, INT64, INT64S_OUT, THREE_INT64S, compiled, inlined, prefetch
from chaffinch.records.kernels_reference.byte_lists import Bytes, Int64s
from chaffinch.records.kernels_reference.varints import INT32_BYTES_MAX, INT64_BYTES_MAX
from chaffinch.records.kernels_reference.walk import (
    CULPRITS,
    HEADER_BYTES_MIN,
    INDEX,
    KEY_MISSING,
    MAX_TIMESTAMP,
    NO_TIMESTAMP,
    NULL_LENGTH,
    OFFSET_DELTA_WRONG,
    POSITION,
    RECORD_BYTES_MIN,
    TIMESTAMP_WRONG,
)

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

_INT64_MIN = -(2**63)
_NULL_ZIGZAG = 1
"""Result of `_read_short` for the -1 of null; every other odd number is a lower length, or a varint that is too long."""
_SHORT_BYTES_MAX = 4
_HEAD_BYTES = 4 * _SHORT_BYTES_MAX + 1
"""Bytes that the fast path reads before the key: four short varints and the attributes."""
_AHEAD_BYTES = 256
"""Prefetch distance of the fast path: the processor predicts addresses only if all records have one size."""
_TAIL_BYTES = _SHORT_BYTES_MAX
"""Bytes that it reads after the key: one short varint. The header count is read only at the record's end."""


@inlined
def _byte(data: Bytes, position: int) -> Any:
    # An unsigned index avoids the check for negative indices.
    return np.int64(data[np.uint64(position)])


@inlined
def _read_short(data: Bytes, position: int) -> tuple[Any, int]:
    """A varint of up to four bytes, zigzag not undone, and the position after it; -1 for a longer one. Checks no end."""
    byte = _byte(data, position)
    if byte < 0x80:
        return byte, position + 1
    raw = byte & 0x7F
    byte = _byte(data, position + 1)
    raw |= (byte & 0x7F) << 7
    if byte < 0x80:
        return raw, position + 2
    byte = _byte(data, position + 2)
    raw |= (byte & 0x7F) << 14
    if byte < 0x80:
        return raw, position + 3
    byte = _byte(data, position + 3)
    raw |= byte << 21
    return (raw, position + 4) if byte < 0x80 else (np.int64(-1), position)


@inlined
def _skip_ordinary(
    data: Bytes, start: int, first: int, count: int, base_timestamp: int, timestamp_min: int, timestamp_max: int, must_have_key: bool
) -> tuple[int, int, Any]:
    """Step over ordinary records; (index, position) of the first that is not, and the largest timestamp on the way."""
    index, position, largest = first, start, np.int64(_INT64_MIN)
    while index < count and data.size - position >= _HEAD_BYTES:
        length, at = _read_short(data, position)
        prefetch(data, position + _AHEAD_BYTES)
        end = at + (length >> 1)
        if length < 0 or length & 1 or end > data.size:
            break
        timestamp_delta, at = _read_short(data, at + 1)
        if timestamp_delta < 0:
            break
        offset_delta, at = _read_short(data, at)
        if offset_delta != 2 * index:
            break
        key_length, at = _read_short(data, at)
        if key_length & 1:
            if must_have_key or key_length != _NULL_ZIGZAG:
                break
        else:
            at += key_length >> 1
        if data.size - at < _TAIL_BYTES:
            break
        value_length, at = _read_short(data, at)
        if value_length & 1:
            if value_length != _NULL_ZIGZAG:
                break
        else:
            at += value_length >> 1
        if at + 1 != end or _byte(data, at) != 0:
            break
        timestamp = base_timestamp + ((timestamp_delta >> 1) ^ -(timestamp_delta & 1))
        if timestamp < timestamp_min or timestamp > timestamp_max:
            break
        largest = max(largest, timestamp)
        position = end
        index += 1
    return index, position, largest


@inlined
def _read(data: Bytes, position: int, end: int, bytes_max: int) -> tuple[Any, int]:
    """A varint that must end by `end`; position -1 when it does not, or when it has more than `bytes_max` bytes."""
    raw = np.int64(0)
    for index in range(bytes_max):
        if position + index >= end:
            return np.int64(0), -1
        byte = np.int64(data[position + index])
        raw |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if bytes_max == INT32_BYTES_MAX:
                raw &= 0xFFFFFFFF
            return ((raw >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(raw & 1), position + index + 1
    return np.int64(0), -1


@inlined
def _skip_headers(data: Bytes, start: int, end: int) -> tuple[int, int]:
    """(fault, position): end of the headers whose count is at `start`, or beginning of the invalid field."""
    count, position = _read(data, start, end, INT32_BYTES_MAX)
    if position < 0 or count < 0 or count > (end - position) // HEADER_BYTES_MIN:
        return _HEADER_COUNT, start
    for _ in range(count):
        start = position
        length, position = _read(data, start, end, INT32_BYTES_MAX)
        if position < 0 or length < 0 or length > end - position:
            return _HEADER_KEY_LENGTH, start
        start = position + length
        length, position = _read(data, start, end, INT32_BYTES_MAX)
        if position < 0 or length < NULL_LENGTH or length > end - position:
            return _HEADER_VALUE_LENGTH, start
        position += max(length, 0)
    return _NONE, position


@inlined
def _record(data: Bytes, start: int) -> tuple[int, int, Any, Any, Any]:
    """(fault, position, offset delta, timestamp delta, key length) of the record at `start`, as in the twin."""
    nothing = np.int64(0)
    if start == data.size:
        return _RECORD_COUNT, start, nothing, nothing, nothing
    length, position = _read(data, start, data.size, INT32_BYTES_MAX)
    if position < 0 or length < 0:
        return _RECORD_LENGTH, start, nothing, nothing, nothing
    if length > data.size - position:
        return _RECORD_CUT_SHORT, start, nothing, nothing, nothing
    end = position + length
    start = position + 1
    timestamp_delta, position = _read(data, start, end, INT64_BYTES_MAX)
    if position < 0:
        return _TIMESTAMP_DELTA, start, nothing, nothing, nothing
    start = position
    offset_delta, position = _read(data, start, end, INT32_BYTES_MAX)
    if position < 0:
        return _OFFSET_DELTA, start, nothing, nothing, nothing
    start = position
    key_length, position = _read(data, start, end, INT32_BYTES_MAX)
    if position < 0 or key_length < NULL_LENGTH or key_length > end - position:
        return _KEY_LENGTH, start, nothing, nothing, nothing
    start = position + max(key_length, 0)
    length, position = _read(data, start, end, INT32_BYTES_MAX)
    if position < 0 or length < NULL_LENGTH or length > end - position:
        return _VALUE_LENGTH, start, nothing, nothing, nothing
    fault, position = _skip_headers(data, position + max(length, 0), end)
    if fault == _NONE and position != end:
        fault = _RECORD_LENGTH_UNUSED
    return fault, position, offset_delta, timestamp_delta, key_length


@compiled(BYTES, INT64, INT64, INT64, INT64, BOOL, BOOL, returns=THREE_INT64S)
def walk_valid(
    payload: Bytes,
    count: int,
    base_timestamp: int,
    timestamp_min: int,
    timestamp_max: int,
    may_lack_timestamp: bool,
    must_have_key: bool,
) -> tuple[int, int, int]:
    index, position = 0, 0
    largest: Any = np.int64(_INT64_MIN)
    if count > payload.size // RECORD_BYTES_MIN:
        count = 0
    while index < count:
        index, position, skipped_largest = _skip_ordinary(
            payload, position, index, count, base_timestamp, timestamp_min, timestamp_max, must_have_key
        )
        largest = max(largest, skipped_largest)
        if index == count:
            break
        fault, end, offset_delta, timestamp_delta, key_length = _record(payload, position)
        if fault != _NONE or offset_delta != index or (must_have_key and key_length < 0):
            break
        timestamp: Any = base_timestamp + timestamp_delta
        if (timestamp < timestamp_min or timestamp > timestamp_max) and not (may_lack_timestamp and timestamp == NO_TIMESTAMP):
            break
        largest = max(largest, timestamp)
        position = end
        index += 1
    return index, position, largest


@compiled(BYTES, INT64, INT64, INT64, INT64, BOOL, BOOL, INT64S_OUT, BYTES_OUT, INT64S_OUT, INT64S_OUT)
def walk(
    payload: Bytes,
    count: int,
    base_timestamp: int,
    timestamp_min: int,
    timestamp_max: int,
    may_lack_timestamp: bool,
    must_have_key: bool,
    culprit_indices: Int64s,
    culprit_reasons: Bytes,
    culprit_seen: Int64s,
    summary: Int64s,
) -> int:
    fault, index, position, culprits = _NONE, 0, 0, 0
    largest: Any = np.int64(_INT64_MIN)
    if count < 0 or count > payload.size // RECORD_BYTES_MIN:
        fault, count = _RECORD_COUNT, 0
    while index < count:
        index, position, skipped_largest = _skip_ordinary(
            payload, position, index, count, base_timestamp, timestamp_min, timestamp_max, must_have_key
        )
        largest = max(largest, skipped_largest)
        if index == count:
            break
        fault, position, offset_delta, timestamp_delta, key_length = _record(payload, position)
        if fault != _NONE:
            break
        timestamp: Any = base_timestamp + timestamp_delta
        largest = max(largest, timestamp)
        reason, seen = 0, np.int64(0)
        if offset_delta != index:
            reason, seen = OFFSET_DELTA_WRONG, offset_delta
        elif must_have_key and key_length < 0:
            reason = KEY_MISSING
        elif (timestamp < timestamp_min or timestamp > timestamp_max) and not (may_lack_timestamp and timestamp == NO_TIMESTAMP):
            reason, seen = TIMESTAMP_WRONG, timestamp
        if reason:
            if culprits < min(culprit_indices.size, culprit_reasons.size, culprit_seen.size):
                culprit_indices[culprits] = index
                culprit_reasons[culprits] = reason
                culprit_seen[culprits] = seen
            culprits += 1
        index += 1
    if fault == _NONE and position != payload.size:
        fault = _TRAILING_BYTES
    summary[INDEX] = index
    summary[POSITION] = position
    summary[CULPRITS] = culprits
    summary[MAX_TIMESTAMP] = largest
    return fault
