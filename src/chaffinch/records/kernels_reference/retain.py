"""Record filter: copies some of a payload's records, unchanged for compaction, or renumbered as a new batch without culprits."""

from __future__ import annotations

import numpy as np

from chaffinch.records.kernels_reference.byte_lists import Bytes, Int64s
from chaffinch.records.kernels_reference.varints import INT32_BYTES_MAX, INT64_BYTES_MAX, read_varint, wrap_int64, write_varint

GROWTH_BYTES_MAX = 14
"""Largest growth of a record whose timestamp delta changes: 9 bytes of the delta, 4 of the length, and one spare."""
RENUMBERED_GROWTH_BYTES_MAX = GROWTH_BYTES_MAX + 4
"""Largest growth if the offset delta changes too: a wrong delta may become longer."""
BASE, LARGEST = 0, 1
TIMES_LENGTH = 2
"""Timestamps returned by `extract_records`: the first one, and the largest."""
NOT_IN_PLACE = -2
"""Result of `extract_in_place` if the remaining records may need more space."""


def retain(payload: Bytes, keeps: Bytes, timestamp_shift: int, out: Bytes) -> int:
    """Copy record i of `payload` to `out` where `keeps[i]` is not 0; returns the bytes written.

    Returns -1 if `out` is too small or the payload holds fewer records. `timestamp_shift` (ms) is added to each timestamp delta, modulo
    2^64; if it is 0, records are copied unchanged. Only lengths and deltas are checked: the caller has scanned the payload.
    """
    data = payload.tobytes()
    written = bytearray()
    position = 0
    for keep in keeps.tolist():
        length, body = read_varint(data, position, len(data), INT32_BYTES_MAX)
        if body < 0 or length < 1 or length > len(data) - body:
            return -1
        end = body + length
        if keep and timestamp_shift == 0:
            written += data[position:end]
        elif keep:
            delta, rest = read_varint(data, body + 1, end, INT64_BYTES_MAX)
            if rest < 0:
                return -1
            record = bytearray(data[body : body + 1])
            write_varint(record, wrap_int64(delta + timestamp_shift))
            record += data[rest:end]
            write_varint(written, len(record))
            written += record
        position = end
    if len(written) > len(out):
        return -1
    out[: len(written)] = np.frombuffer(bytes(written), np.uint8)
    return len(written)


def find_keys(payload: Bytes, keeps: Bytes, starts: Int64s, lengths: Int64s) -> int:
    """Start and length of the keys of the records whose `keeps` is 0, in order; length -1 for null. Returns their number.

    Returns -1 if the payload holds a different number of records, or if the outputs are too small. Of the other records only the lengths
    are read.
    """
    data = payload.tobytes()
    keys: list[tuple[int, int]] = []
    position = 0
    for keep in keeps.tolist():
        length, body = read_varint(data, position, len(data), INT32_BYTES_MAX)
        if body < 0 or length < 1 or length > len(data) - body:
            return -1
        position = body + length
        if keep:
            continue
        at = body + 1
        for bytes_max in (INT64_BYTES_MAX, INT32_BYTES_MAX, INT32_BYTES_MAX):
            if at >= 0:
                length, at = read_varint(data, at, position, bytes_max)
        if at < 0 or length > position - at or len(keys) == min(len(starts), len(lengths)):
            return -1
        keys.append((at, max(length, -1)))
    if position != len(data):
        return -1
    for number, (start, length) in enumerate(keys):
        starts[number], lengths[number] = start, length
    return len(keys)


def extract_records(payload: Bytes, keeps: Bytes, base_timestamp: int, out: Bytes, times: Int64s) -> int:
    """Like `retain`, but as a new batch: offset deltas from 0 on, timestamp deltas relative to the first copied record.

    Returns -1 also if `payload` holds more records. `base_timestamp` (ms): that of `payload`. `times`: BASE and LARGEST of the copied
    records, modulo 2^64; unchanged if there are none.
    """
    data = payload.tobytes()
    written = bytearray()
    stamps: list[int] = []
    position = 0
    for keep in keeps.tolist():
        length, body = read_varint(data, position, len(data), INT32_BYTES_MAX)
        if body < 0 or length < 1 or length > len(data) - body:
            return -1
        position = body + length
        if not keep:
            continue
        delta, rest = read_varint(data, body + 1, position, INT64_BYTES_MAX)
        if rest < 0:
            return -1
        _, rest = read_varint(data, rest, position, INT32_BYTES_MAX)
        if rest < 0:
            return -1
        stamps.append(wrap_int64(base_timestamp + delta))
        record = bytearray(data[body : body + 1])
        write_varint(record, wrap_int64(stamps[-1] - stamps[0]))
        write_varint(record, len(stamps) - 1)
        record += data[rest:position]
        write_varint(written, len(record))
        written += record
    if position != len(data) or len(written) > len(out):
        return -1
    if stamps:
        times[BASE], times[LARGEST] = stamps[0], max(stamps)
    out[: len(written)] = np.frombuffer(bytes(written), np.uint8)
    return len(written)


def extract_in_place(payload: Bytes, keeps: Bytes, base_timestamp: int, times: Int64s) -> int:
    """Like `extract_records`, but within `payload`: the remaining records move to its front.

    Returns NOT_IN_PLACE, with nothing changed, if the timestamp of the first remaining record is not `base_timestamp`: the deltas of the
    others would change, and might need more space. Returns -1 also if a record needs more space than before, because its offset delta was
    wrong. Then, and for wrong lengths, the contents of `payload` are undefined.
    """
    data = payload.tobytes()
    position, written = 0, 0
    number = 0
    for keep in keeps.tolist():
        length, body = read_varint(data, position, len(data), INT32_BYTES_MAX)
        if body < 0 or length < 1 or length > len(data) - body:
            return -1
        position = body + length
        if not keep:
            continue
        delta, rest = read_varint(data, body + 1, position, INT64_BYTES_MAX)
        if rest < 0:
            return -1
        _, rest = read_varint(data, rest, position, INT32_BYTES_MAX)
        if rest < 0:
            return -1
        if number == 0 and delta != 0:
            return NOT_IN_PLACE
        record = bytearray()
        write_varint(record, delta)
        write_varint(record, number)
        head = bytearray()
        write_varint(head, 1 + len(record) + position - rest)
        written += len(head) + 1 + len(record)
        if written > rest:
            return -1
        written += position - rest
        number += 1
    return extract_records(payload, keeps, base_timestamp, payload, times)
