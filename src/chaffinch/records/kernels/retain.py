"""Compiled twin of `kernels_reference/retain.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from chaffinch.records.kernels.compiled import BYTES, BYTES_OUT, INT64, INT64S_OUT, compiled, copy_bytes, inlined, prefetch
from chaffinch.records.kernels_reference.byte_lists import Bytes, Int64s
from chaffinch.records.kernels_reference.retain import BASE, LARGEST, NOT_IN_PLACE
from chaffinch.records.kernels_reference.varints import INT32_BYTES_MAX, INT64_BYTES_MAX

FETCHED_AHEAD_BYTES = 2048
"""Prefetch distance: the position of a record is known only after the previous one was read."""
CACHE_LINE_BYTES = 64


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


@compiled(BYTES, BYTES, INT64, BYTES_OUT)
def retain(payload: Bytes, keeps: Bytes, timestamp_shift: int, out: Bytes) -> int:
    position, written = 0, 0
    for index in range(keeps.size):
        length, body = _read(payload, position, payload.size, INT32_BYTES_MAX)
        if body < 0 or length < 1 or length > payload.size - body:
            return -1
        end = body + length
        if keeps[index] and timestamp_shift == 0:
            if out.size - written < end - position:
                return -1
            copy_bytes(out, written, payload, position, end - position)
            written += end - position
        elif keeps[index]:
            delta, rest = _read(payload, body + 1, end, INT64_BYTES_MAX)
            if rest < 0:
                return -1
            delta = delta + timestamp_shift
            size = 1 + _varint_size(delta) + end - rest
            if out.size - written < _varint_size(size) + size:
                return -1
            written = _write_varint(out, written, size)
            out[written] = payload[body]
            written = _write_varint(out, written + 1, delta)
            copy_bytes(out, written, payload, rest, end - rest)
            written += end - rest
        position = end
    return written


@compiled(BYTES, BYTES, INT64S_OUT, INT64S_OUT)
def find_keys(payload: Bytes, keeps: Bytes, starts: Int64s, lengths: Int64s) -> int:
    position, keys = 0, 0
    for index in range(keeps.size):
        prefetch(payload, position + FETCHED_AHEAD_BYTES)
        length, body = _read(payload, position, payload.size, INT32_BYTES_MAX)
        if body < 0 or length < 1 or length > payload.size - body:
            return -1
        position = body + length
        if keeps[index]:
            continue
        _, at = _read(payload, body + 1, position, INT64_BYTES_MAX)
        if at < 0:
            return -1
        _, at = _read(payload, at, position, INT32_BYTES_MAX)
        if at < 0:
            return -1
        length, at = _read(payload, at, position, INT32_BYTES_MAX)
        if at < 0 or length > position - at or keys >= min(starts.size, lengths.size):
            return -1
        starts[keys], lengths[keys] = at, max(length, -1)
        keys += 1
    return keys if position == payload.size else -1


@compiled(BYTES, BYTES, INT64, BYTES_OUT, INT64S_OUT)
def extract_records(payload: Bytes, keeps: Bytes, base_timestamp: int, out: Bytes, times: Int64s) -> int:
    position, written, number = 0, 0, 0
    base: Any = np.int64(base_timestamp)
    largest: Any = base
    for index in range(keeps.size):
        length, body = _read(payload, position, payload.size, INT32_BYTES_MAX)
        if body < 0 or length < 1 or length > payload.size - body:
            return -1
        position = body + length
        if not keeps[index]:
            continue
        delta, rest = _read(payload, body + 1, position, INT64_BYTES_MAX)
        if rest < 0:
            return -1
        _, rest = _read(payload, rest, position, INT32_BYTES_MAX)
        if rest < 0:
            return -1
        timestamp: Any = base_timestamp + delta
        if number == 0:
            base = largest = timestamp
        largest = max(largest, timestamp)
        delta = timestamp - base
        size = 1 + _varint_size(delta) + _varint_size(number) + position - rest
        # The only bounds check of the output: the code below writes `size` bytes, preceded by their length.
        if out.size - written < _varint_size(size) + size:
            return -1
        written = _write_varint(out, written, size)
        out[written] = payload[body]
        written = _write_varint(out, written + 1, delta)
        written = _write_varint(out, written, number)
        copy_bytes(out, written, payload, rest, position - rest)
        written += position - rest
        number += 1
    if position != payload.size:
        return -1
    if number:
        times[BASE], times[LARGEST] = base, largest
    return written


@compiled(BYTES_OUT, BYTES, INT64, INT64S_OUT)
def extract_in_place(payload: Bytes, keeps: Bytes, base_timestamp: int, times: Int64s) -> int:
    position, written, number = 0, 0, 0
    largest: Any = np.int64(base_timestamp)
    for index in range(keeps.size):
        prefetch(payload, position + FETCHED_AHEAD_BYTES)
        prefetch(payload, position + FETCHED_AHEAD_BYTES + CACHE_LINE_BYTES)
        length, body = _read(payload, position, payload.size, INT32_BYTES_MAX)
        if body < 0 or length < 1 or length > payload.size - body:
            return -1
        position = body + length
        if not keeps[index]:
            continue
        delta, rest = _read(payload, body + 1, position, INT64_BYTES_MAX)
        if rest < 0:
            return -1
        _, rest = _read(payload, rest, position, INT32_BYTES_MAX)
        if rest < 0:
            return -1
        if number == 0 and delta != 0:
            return NOT_IN_PLACE
        timestamp: Any = base_timestamp + delta
        largest = max(largest, timestamp)
        delta_size, number_size = _varint_size(delta), _varint_size(number)
        size = 1 + delta_size + number_size + position - rest
        # The fields before the key must end before the key, which they would overwrite. All of them have been read by now.
        if written + _varint_size(size) + 1 + delta_size + number_size > rest:
            return -1
        attributes = payload[body]
        written = _write_varint(payload, written, size)
        payload[written] = attributes
        written = _write_varint(payload, written + 1, delta)
        written = _write_varint(payload, written, number)
        copy_bytes(payload, written, payload, rest, position - rest)
        written += position - rest
        number += 1
    if position != payload.size:
        return -1
    if number:
        times[BASE], times[LARGEST] = base_timestamp, largest
    return written
