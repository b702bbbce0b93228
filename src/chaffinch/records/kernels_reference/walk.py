"""Validating walk: one pass over the records of a batch that checks everything except the contents of keys, values and headers."""

from __future__ import annotations

from chaffinch.records.errors import Fault
from chaffinch.records.kernels_reference.byte_lists import Bytes, Int64s
from chaffinch.records.kernels_reference.varints import INT32_BYTES_MAX, INT64_BYTES_MAX, read_varint, wrap_int64

OFFSET_DELTA_WRONG = 1
KEY_MISSING = 2
TIMESTAMP_WRONG = 3
"""Why a record is a culprit, in order of precedence: a record has at most one reason."""

NO_TIMESTAMP = -1
"""The timestamp of a record that has none (Kafka's `RecordBatch.NO_TIMESTAMP`)."""

NULL_LENGTH = -1
"""Length of a null key, value or header value. Apache Kafka reads any lower length as null too, but librdkafka, one of its most used
clients, never gets past such a record. So none is stored."""

INDEX, POSITION, CULPRITS, MAX_TIMESTAMP = range(4)
SUMMARY_LENGTH = 4
"""Entries of the `summary` of `walk`."""

RECORD_BYTES_MIN = 7
HEADER_BYTES_MIN = 2
"""The smallest record is its length and six fields of one byte; the smallest header two lengths."""

_INT64_MIN = -(2**63)


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
    """Check every length and count of `payload` (not compressed), which has to hold exactly `count` records.

    A record is a culprit when its offset delta is not its index, when `must_have_key` and its key is null, or when its
    timestamp (base + delta, wrapped at 64 bits) is outside timestamp_min .. timestamp_max (inclusive, ms) and is not the -1
    of a record without one (if `may_lack_timestamp`). The first `len(culprit_indices)` culprits are written to the three
    arrays, ascending: index, reason, and the wrong value itself (0 for a key); pass empty arrays to count only.

    Returns Fault.NONE, or the Fault that makes the payload unreadable. `summary` (4 numbers) gets: records walked, or index
    of the faulty record; bytes walked, or position of the faulty field; culprits so far; largest timestamp so far (the
    smallest 64-bit number when there is no record).
    """
    data = payload.tobytes()
    position, culprits, largest = 0, 0, _INT64_MIN
    if not 0 <= count <= len(data) // RECORD_BYTES_MIN:
        summary[:] = 0, position, culprits, largest
        return Fault.RECORD_COUNT
    for index in range(count):
        fault, position, offset_delta, timestamp_delta, key_length = _record(data, position)
        if fault:
            summary[:] = index, position, culprits, largest
            return fault
        timestamp = wrap_int64(base_timestamp + timestamp_delta)
        largest = max(largest, timestamp)
        if offset_delta != index:
            reason, seen = OFFSET_DELTA_WRONG, offset_delta
        elif must_have_key and key_length < 0:
            reason, seen = KEY_MISSING, 0
        elif timestamp_min <= timestamp <= timestamp_max or (may_lack_timestamp and timestamp == NO_TIMESTAMP):
            continue
        else:
            reason, seen = TIMESTAMP_WRONG, timestamp
        if culprits < len(culprit_indices):
            culprit_indices[culprits], culprit_reasons[culprits], culprit_seen[culprits] = index, reason, seen
        culprits += 1
    summary[:] = count, position, culprits, largest
    return Fault.NONE if position == len(data) else Fault.TRAILING_BYTES


def walk_valid(
    payload: Bytes,
    count: int,
    base_timestamp: int,
    timestamp_min: int,
    timestamp_max: int,
    may_lack_timestamp: bool,
    must_have_key: bool,
) -> tuple[int, int, int]:
    """(records, bytes, largest timestamp) before the first record in which `walk` finds a fault or a culprit.

    If this covers the whole batch, the batch is valid. It costs less than `walk`, and nearly every batch is valid.
    """
    data = payload.tobytes()
    position, largest = 0, _INT64_MIN
    count = max(0, count) if count <= len(data) // RECORD_BYTES_MIN else 0
    for index in range(count):
        fault, end, offset_delta, timestamp_delta, key_length = _record(data, position)
        timestamp = wrap_int64(base_timestamp + timestamp_delta)
        is_in_time = timestamp_min <= timestamp <= timestamp_max or (may_lack_timestamp and timestamp == NO_TIMESTAMP)
        if fault or offset_delta != index or (must_have_key and key_length < 0) or not is_in_time:
            return index, position, largest
        position, largest = end, max(largest, timestamp)
    return count, position, largest


def _record(data: bytes, start: int) -> tuple[Fault, int, int, int, int]:
    """(fault, position, offset delta, timestamp delta, key length) of the record at `start`; `position` is where it ends,
    or where its invalid field begins.
    """
    if start == len(data):
        return Fault.RECORD_COUNT, start, 0, 0, 0
    length, position = read_varint(data, start, len(data), INT32_BYTES_MAX)
    if position < 0 or length < 0:
        return Fault.RECORD_LENGTH, start, 0, 0, 0
    end = position + length
    if end > len(data):
        return Fault.RECORD_CUT_SHORT, start, 0, 0, 0
    start = position + 1  # Skip the attributes: no bit is defined yet.
    timestamp_delta, position = read_varint(data, start, end, INT64_BYTES_MAX)
    if position < 0:
        return Fault.TIMESTAMP_DELTA, start, 0, 0, 0
    start = position
    offset_delta, position = read_varint(data, start, end, INT32_BYTES_MAX)
    if position < 0:
        return Fault.OFFSET_DELTA, start, 0, 0, 0
    key_length, start, position = _field(data, position, end)
    if position < 0:
        return Fault.KEY_LENGTH, start, 0, 0, 0
    _, start, position = _field(data, position, end)
    if position < 0:
        return Fault.VALUE_LENGTH, start, 0, 0, 0
    fault, position = _headers(data, position, end)
    if fault:
        return fault, position, 0, 0, 0
    if position != end:
        return Fault.RECORD_LENGTH_UNUSED, position, 0, 0, 0
    return Fault.NONE, position, offset_delta, timestamp_delta, key_length


def _field(data: bytes, start: int, end: int) -> tuple[int, int, int]:
    """(length, start, position after the bytes that the length counts); position -1 if the length is invalid or the bytes are missing."""
    length, position = read_varint(data, start, end, INT32_BYTES_MAX)
    if position < 0 or not NULL_LENGTH <= length <= end - position:
        return length, start, -1
    return length, start, position + max(length, 0)


def _headers(data: bytes, start: int, end: int) -> tuple[Fault, int]:
    """(fault, position): end of the headers whose count is at `start`, or beginning of the invalid field."""
    count, position = read_varint(data, start, end, INT32_BYTES_MAX)
    if position < 0 or not 0 <= count <= (end - position) // HEADER_BYTES_MIN:
        return Fault.HEADER_COUNT, start
    for _ in range(count):
        length, start, position = _field(data, position, end)
        if position < 0 or length < 0:
            return Fault.HEADER_KEY_LENGTH, start
        _, start, position = _field(data, position, end)
        if position < 0:
            return Fault.HEADER_VALUE_LENGTH, start
    return Fault.NONE, position
