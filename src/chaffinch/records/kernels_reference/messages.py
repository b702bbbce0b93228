"""Messages of formats 0 and 1: one pass that checks them, and one that writes them as records of format 2.

A message (Kafka's `LegacyRecord`; every number big-endian), one after the other in a set:

    offset i64 | size i32 | crc u32 | magic i8 | attributes i8 | timestamp i64 (format 1 only) |
    keyLength i32, key | valueLength i32, value

`size` counts what follows it; the CRC-32 covers everything from `magic` on. A length of -1 is null.
"""

from __future__ import annotations

from struct import Struct
from zlib import crc32

from chaffinch.records.errors import Fault
from chaffinch.records.kernels_reference.byte_lists import Bytes, Int64s
from chaffinch.records.kernels_reference.varints import varint_size, wrap_int64, write_varint
from chaffinch.records.kernels_reference.walk import NULL_LENGTH

INNER_COMPRESSION = 1
MAGIC_DIFFERS = 2
CRC_WRONG = 3
MESSAGE_TOO_LARGE = 4
OFFSET_WRONG = 5
NO_KEY = 6
TIMESTAMP_TYPE_WRONG = 7
TIMESTAMP_OUTSIDE = 8
"""Why a message is a culprit, in order of precedence: a message has at most one reason."""

COUNT, POSITION, CULPRITS, MAX_TIMESTAMP, BASE_TIMESTAMP, CONVERTED_BYTES = range(6)
SUMMARY_LENGTH = 6
"""Entries of the `summary` of `walk_messages`."""

NO_TIMESTAMP = -1
LOG_OVERHEAD = 12
"""Bytes of offset and size, which `size` does not count."""
SIZE_MIN = 14
"""The smallest size, that of format 0; its name in Kafka is `LegacyRecord.RECORD_OVERHEAD_V0`."""
MESSAGE_BYTES_MIN = LOG_OVERHEAD + SIZE_MIN
FIELDS_POSITION = 18
"""Position within a message of the timestamp in format 1, and of the key length in format 0."""
TIMESTAMP_BYTES = 8
KNOWN_MAGIC_MAX = 2
ATTRIBUTE_CODEC = 0b0111
ATTRIBUTE_LOG_APPEND_TIME = 0b1000

_INT64_MIN = -(2**63)
_OFFSET_SIZE = Struct(">qi")
_CRC = Struct(">I")
_LENGTH = Struct(">i")
_TIMESTAMP = Struct(">q")


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
    """Check every length, checksum and rule of a set whose messages should all have this `magic` (0 or 1).

    `is_wrapped`: the set is what a compressed message held; then offsets of format 1 must be 0, 1, 2, ..., and no message is
    too large. `is_append_time`: that message claimed LogAppendTime, so each of these does. Timestamps (ms) are those of format 1; -1 is
    none, and allowed.

    The first `len(culprit_indices)` culprits are written to the three arrays, ascending: index, reason, and the wrong value (0 for a key
    and a timestamp type). Returns Fault.NONE, or the Fault that makes the set unreadable. `summary` (6 numbers) gets: messages walked,
    or index of the faulty one; bytes walked, or position of the invalid field; culprits so far; largest timestamp so far (-1 if
    there is none); the first message's timestamp; bytes that `convert_messages` will write.
    """
    raw = data.tobytes()
    count = position = culprits = converted = base = 0
    largest = _INT64_MIN
    fault = Fault.NONE
    while position < len(raw):
        fault, end = _extent(raw, position, is_wrapped)
        if fault:
            break
        reason, seen = _envelope_reason(raw, position, end, magic, count, is_wrapped, message_bytes_max)
        if not reason or reason > CRC_WRONG:
            fault, wrong_at, timestamp, key, value = _fields(raw, position, end, magic)
            if fault:
                position = wrong_at
                break
            if count == 0:
                base = timestamp
            largest = max(largest, timestamp)
            converted += _converted_size(count, wrap_int64(timestamp - base), key[1], value[1])
            says_append_time = is_append_time or bool(raw[position + 17] & ATTRIBUTE_LOG_APPEND_TIME)
            if not reason and must_have_key and key[1] < 0:
                reason, seen = NO_KEY, 0
            elif not reason and magic and says_append_time:
                reason, seen = TIMESTAMP_TYPE_WRONG, 0
            elif not reason and magic and timestamp != NO_TIMESTAMP and not timestamp_min <= timestamp <= timestamp_max:
                reason, seen = TIMESTAMP_OUTSIDE, timestamp
        if reason:
            if culprits < len(culprit_indices):
                culprit_indices[culprits], culprit_reasons[culprits], culprit_seen[culprits] = count, reason, seen
            culprits += 1
        count, position = count + 1, end
    summary[:] = count, position, culprits, largest, base, converted
    return fault


def _extent(raw: bytes, start: int, is_wrapped: bool) -> tuple[Fault, int]:
    """(fault, end) of the message at `start`. An unknown magic makes a plain set unreadable; a wrapped message with one is a culprit."""
    at_hand = len(raw) - start
    if at_hand < LOG_OVERHEAD:
        return Fault.TRAILING_BYTES, start
    _, size = _OFFSET_SIZE.unpack_from(raw, start)
    if size < SIZE_MIN:
        return Fault.MESSAGE_SIZE, start
    if size > at_hand - LOG_OVERHEAD:
        return Fault.MESSAGE_CUT_SHORT, start
    if not is_wrapped and raw[start + 16] > KNOWN_MAGIC_MAX:
        return Fault.BATCH_MAGIC, start
    return Fault.NONE, start + LOG_OVERHEAD + size


def _envelope_reason(raw: bytes, start: int, end: int, magic: int, index: int, is_wrapped: bool, message_bytes_max: int) -> tuple[int, int]:
    """(reason, value seen) from the bytes before a message's own fields; (0, 0) if nothing is wrong."""
    codec = raw[start + 17] & ATTRIBUTE_CODEC
    if raw[start + 16] <= 1 and codec:
        return INNER_COMPRESSION, codec
    if raw[start + 16] != magic:
        return MAGIC_DIFFERS, raw[start + 16]
    (crc,) = _CRC.unpack_from(raw, start + LOG_OVERHEAD)
    if crc32(raw[start + 16 : end]) != crc:
        return CRC_WRONG, crc
    if end - start > message_bytes_max and not is_wrapped:
        return MESSAGE_TOO_LARGE, end - start
    offset, _ = _OFFSET_SIZE.unpack_from(raw, start)
    if is_wrapped and magic and offset != index:
        return OFFSET_WRONG, offset
    return 0, 0


def _fields(raw: bytes, start: int, end: int, magic: int) -> tuple[Fault, int, int, tuple[int, int], tuple[int, int]]:
    """(fault, position of the invalid field, timestamp, (start, length) of the key, the same of the value). Length -1 is null."""
    nothing = (0, -1)
    position = start + FIELDS_POSITION
    timestamp = NO_TIMESTAMP
    if magic:
        if end - position < TIMESTAMP_BYTES:
            return Fault.MESSAGE_TIMESTAMP, position, timestamp, nothing, nothing
        (timestamp,) = _TIMESTAMP.unpack_from(raw, position)
        position += TIMESTAMP_BYTES
    key_start, key_length = _field(raw, position, end)
    if key_start < 0:
        return Fault.MESSAGE_KEY_LENGTH, position, timestamp, nothing, nothing
    position = key_start + max(key_length, 0)
    value_start, value_length = _field(raw, position, end)
    if value_start < 0:
        return Fault.MESSAGE_VALUE_LENGTH, position, timestamp, nothing, nothing
    position = value_start + max(value_length, 0)
    if position != end:
        return Fault.RECORD_LENGTH_UNUSED, position, timestamp, nothing, nothing
    return Fault.NONE, position, timestamp, (key_start, key_length), (value_start, value_length)


def _field(raw: bytes, position: int, end: int) -> tuple[int, int]:
    """(start, length) of the bytes whose length is at `position`; start -1 if they are cut off."""
    if end - position < _LENGTH.size:
        return -1, 0
    (length,) = _LENGTH.unpack_from(raw, position)
    start = position + _LENGTH.size
    if not NULL_LENGTH <= length <= end - start:
        return -1, 0
    return start, length


def _body_size(index: int, timestamp_delta: int, key_length: int, value_length: int) -> int:
    """Bytes of a record of format 2 after its length: attributes, two deltas, key, value, no headers."""
    size = 2 + varint_size(timestamp_delta) + varint_size(index) + varint_size(key_length) + varint_size(value_length)
    return size + max(key_length, 0) + max(value_length, 0)


def _converted_size(index: int, timestamp_delta: int, key_length: int, value_length: int) -> int:
    size = _body_size(index, timestamp_delta, key_length, value_length)
    return varint_size(size) + size


def convert_messages(data: Bytes, magic: int, base_timestamp: int, out: Bytes, position: int) -> int:
    """Write the messages of a set in which `walk_messages` found nothing wrong into `out` from `position` on, as records of format 2.

    Offset deltas are 0, 1, 2, ... Returns the position after the last record, or -1 if `out` is too small or the set is a different one.
    """
    raw = data.tobytes()
    if not 0 <= position <= len(out):
        return -1
    written = bytearray()
    index = start = 0
    while start < len(raw):
        fault, end = _extent(raw, start, False)
        if fault:
            return -1
        fault, _, timestamp, key, value = _fields(raw, start, end, magic)
        if fault:
            return -1
        delta = wrap_int64(timestamp - base_timestamp)
        write_varint(written, _body_size(index, delta, key[1], value[1]))
        written.append(0)
        write_varint(written, delta)
        write_varint(written, index)
        for field_start, length in (key, value):
            write_varint(written, length)
            written += raw[field_start : field_start + max(length, 0)]
        written.append(0)
        if position + len(written) > len(out):
            return -1
        index, start = index + 1, end
    out.data[position : position + len(written)] = written
    return position + len(written)
