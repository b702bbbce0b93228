"""Compiled twin of `kernels_reference/messages.py`, where arguments, results and faults are described.

Old formats are rare, so this is simple code without a fast path; the CRC-32, a byte at a time from a table, takes most of the time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from chaffinch.records.errors import Fault
from chaffinch.records.kernels.compiled import BOOL, BYTES, BYTES_OUT, INT64, INT64S_OUT, compiled, copy_bytes, inlined
from chaffinch.records.kernels_reference.byte_lists import Bytes, Int64s
from chaffinch.records.kernels_reference.messages import (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_LOG_APPEND_TIME,
    BASE_TIMESTAMP,
    CONVERTED_BYTES,
    COUNT,
    CRC_WRONG,
    CULPRITS,
    FIELDS_POSITION,
    INNER_COMPRESSION,
    KNOWN_MAGIC_MAX,
    LOG_OVERHEAD,
    MAGIC_DIFFERS,
    MAX_TIMESTAMP,
    MESSAGE_TOO_LARGE,
    NO_KEY,
    NO_TIMESTAMP,
    OFFSET_WRONG,
    POSITION,
    SIZE_MIN,
    TIMESTAMP_BYTES,
    TIMESTAMP_OUTSIDE,
    TIMESTAMP_TYPE_WRONG,
)
from chaffinch.records.kernels_reference.walk import NULL_LENGTH

_NONE = int(Fault.NONE)
_BATCH_MAGIC = int(Fault.BATCH_MAGIC)
_MESSAGE_SIZE = int(Fault.MESSAGE_SIZE)
_MESSAGE_CUT_SHORT = int(Fault.MESSAGE_CUT_SHORT)
_MESSAGE_KEY_LENGTH = int(Fault.MESSAGE_KEY_LENGTH)
_MESSAGE_VALUE_LENGTH = int(Fault.MESSAGE_VALUE_LENGTH)
_MESSAGE_TIMESTAMP = int(Fault.MESSAGE_TIMESTAMP)
_RECORD_LENGTH_UNUSED = int(Fault.RECORD_LENGTH_UNUSED)
_TRAILING_BYTES = int(Fault.TRAILING_BYTES)
_INT64_MIN = -(2**63)


def _crc_table() -> Any:
    """The reflected CRC-32 of IEEE 802.3: what each value of a byte does to the remainder."""
    table = []
    for value in range(256):
        remainder = value
        for _ in range(8):
            remainder = remainder >> 1 ^ (0xEDB88320 if remainder & 1 else 0)
        table.append(remainder)
    return np.array(table, np.int64)


_CRC_TABLE = _crc_table()


@inlined
def _crc32(data: Bytes, start: int, end: int) -> Any:
    remainder = np.int64(0xFFFFFFFF)
    for position in range(start, end):
        remainder = _CRC_TABLE[np.uint64((remainder ^ data[np.uint64(position)]) & 0xFF)] ^ (remainder >> 8)
    return remainder ^ 0xFFFFFFFF


@inlined
def _unsigned(data: Bytes, position: int, size: int) -> Any:
    number = np.int64(0)
    for index in range(size):
        number = number << 8 | np.int64(data[np.uint64(position + index)])
    return number


@inlined
def _int32(data: Bytes, position: int) -> Any:
    number = _unsigned(data, position, 4)
    return number - (np.int64(1) << 32) if number >= np.int64(1) << 31 else number


@inlined
def _extent(data: Bytes, start: int, is_wrapped: bool) -> tuple[int, int]:
    at_hand = data.size - start
    if at_hand < LOG_OVERHEAD:
        return _TRAILING_BYTES, start
    size = _int32(data, start + 8)
    if size < SIZE_MIN:
        return _MESSAGE_SIZE, start
    if size > at_hand - LOG_OVERHEAD:
        return _MESSAGE_CUT_SHORT, start
    if not is_wrapped and data[start + 16] > KNOWN_MAGIC_MAX:
        return _BATCH_MAGIC, start
    return _NONE, start + LOG_OVERHEAD + size


@inlined
def _envelope_reason(
    data: Bytes, start: int, end: int, magic: int, index: int, is_wrapped: bool, message_bytes_max: int
) -> tuple[int, Any]:
    codec = np.int64(data[start + 17]) & ATTRIBUTE_CODEC
    if data[start + 16] <= 1 and codec:
        return INNER_COMPRESSION, codec
    if data[start + 16] != magic:
        return MAGIC_DIFFERS, np.int64(data[start + 16])
    crc = _unsigned(data, start + LOG_OVERHEAD, 4)
    if _crc32(data, start + 16, end) != crc:
        return CRC_WRONG, crc
    if end - start > message_bytes_max and not is_wrapped:
        return MESSAGE_TOO_LARGE, np.int64(end - start)
    offset = _unsigned(data, start, 8)
    if is_wrapped and magic and offset != index:
        return OFFSET_WRONG, offset
    return 0, np.int64(0)


@inlined
def _field(data: Bytes, position: int, end: int) -> tuple[int, Any]:
    if end - position < 4:
        return -1, np.int64(0)
    length = _int32(data, position)
    if length < NULL_LENGTH or length > end - position - 4:
        return -1, np.int64(0)
    return position + 4, length


@inlined
def _fields(data: Bytes, start: int, end: int, magic: int) -> tuple[int, int, Any, Any, Any, Any, Any]:
    """Result: (fault, position of the fault, timestamp, key start, key length, value start, value length)."""
    position = start + FIELDS_POSITION
    timestamp, nothing = np.int64(NO_TIMESTAMP), np.int64(-1)
    if magic:
        if end - position < TIMESTAMP_BYTES:
            return _MESSAGE_TIMESTAMP, position, timestamp, nothing, nothing, nothing, nothing
        timestamp = _unsigned(data, position, 8)
        position += TIMESTAMP_BYTES
    key_start, key_length = _field(data, position, end)
    if key_start < 0:
        return _MESSAGE_KEY_LENGTH, position, timestamp, nothing, nothing, nothing, nothing
    position = key_start + max(key_length, np.int64(0))
    value_start, value_length = _field(data, position, end)
    if value_start < 0:
        return _MESSAGE_VALUE_LENGTH, position, timestamp, nothing, nothing, nothing, nothing
    position = value_start + max(value_length, np.int64(0))
    fault = _NONE if position == end else _RECORD_LENGTH_UNUSED
    return fault, position, timestamp, np.int64(key_start), key_length, np.int64(value_start), value_length


@inlined
def _varint_size(value: int) -> int:
    zigzag = np.uint64((value << 1) ^ (value >> 63))
    size = 1
    while zigzag > 0x7F:
        zigzag >>= np.uint64(7)
        size += 1
    return size


@inlined
def _write_varint(out: Bytes, position: int, value: int) -> int:
    zigzag = np.uint64((value << 1) ^ (value >> 63))
    while zigzag > 0x7F:
        out[position] = np.uint8(zigzag & np.uint64(0x7F) | np.uint64(0x80))
        zigzag >>= np.uint64(7)
        position += 1
    out[position] = np.uint8(zigzag)
    return position + 1


@inlined
def _body_size(index: int, timestamp_delta: Any, key_length: Any, value_length: Any) -> Any:
    size = 2 + _varint_size(timestamp_delta) + _varint_size(index) + _varint_size(key_length) + _varint_size(value_length)
    return size + max(key_length, 0) + max(value_length, 0)


@compiled(BYTES, INT64, BOOL, BOOL, INT64, INT64, BOOL, INT64, INT64S_OUT, BYTES_OUT, INT64S_OUT, INT64S_OUT)
def walk_messages(
    data: Bytes,
    magic: int,
    is_wrapped: bool,
    is_append_time: bool,
    timestamp_min: int,
    timestamp_max: int,
    must_have_key: bool,
    message_bytes_max: int,
    culprit_indices: Int64s,
    culprit_reasons: Bytes,
    culprit_seen: Int64s,
    summary: Int64s,
) -> int:
    count, position, culprits, fault = 0, 0, 0, _NONE
    base, largest, converted = np.int64(0), np.int64(_INT64_MIN), np.int64(0)
    while position < data.size:
        fault, end = _extent(data, position, is_wrapped)
        if fault != _NONE:
            break
        reason, seen = _envelope_reason(data, position, end, magic, count, is_wrapped, message_bytes_max)
        if not reason or reason > CRC_WRONG:
            fault, wrong_at, timestamp, _, key_length, _, value_length = _fields(data, position, end, magic)
            if fault != _NONE:
                position = wrong_at
                break
            if count == 0:
                base = timestamp
            largest = max(largest, timestamp)
            size = _body_size(count, timestamp - base, key_length, value_length)
            converted += size + _varint_size(size)
            says_append_time = is_append_time or data[position + 17] & ATTRIBUTE_LOG_APPEND_TIME
            if not reason and must_have_key and key_length < 0:
                reason = NO_KEY
            elif not reason and magic and says_append_time:
                reason = TIMESTAMP_TYPE_WRONG
            elif not reason and magic and timestamp != NO_TIMESTAMP and (timestamp < timestamp_min or timestamp > timestamp_max):
                reason, seen = TIMESTAMP_OUTSIDE, timestamp
        if reason:
            if culprits < min(culprit_indices.size, culprit_reasons.size, culprit_seen.size):
                culprit_indices[culprits] = count
                culprit_reasons[culprits] = reason
                culprit_seen[culprits] = seen
            culprits += 1
        count, position = count + 1, end
    summary[COUNT] = count
    summary[POSITION] = position
    summary[CULPRITS] = culprits
    summary[MAX_TIMESTAMP] = largest
    summary[BASE_TIMESTAMP] = base
    summary[CONVERTED_BYTES] = converted
    return fault


@compiled(BYTES, INT64, INT64, BYTES_OUT, INT64)
def convert_messages(data: Bytes, magic: int, base_timestamp: int, out: Bytes, position: int) -> int:
    if position < 0 or position > out.size:
        return -1
    index, start = 0, 0
    while start < data.size:
        fault, end = _extent(data, start, False)
        if fault != _NONE:
            return -1
        fault, _, timestamp, key_start, key_length, value_start, value_length = _fields(data, start, end, magic)
        if fault != _NONE:
            return -1
        delta = timestamp - base_timestamp
        size = _body_size(index, delta, key_length, value_length)
        # The only bounds check of the output: the code below writes `size` bytes, preceded by their length.
        if out.size - position < _varint_size(size) + size:
            return -1
        position = _write_varint(out, position, size)
        out[position] = 0
        position = _write_varint(out, position + 1, delta)
        position = _write_varint(out, position, index)
        position = _write_varint(out, position, key_length)
        if key_length > 0:
            copy_bytes(out, position, data, key_start, key_length)
            position += key_length
        position = _write_varint(out, position, value_length)
        if value_length > 0:
            copy_bytes(out, position, data, value_start, value_length)
            position += value_length
        out[position] = 0
        position += 1
        index, start = index + 1, end
    return position
