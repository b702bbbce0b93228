"""Compiled twin of `kernels_reference/encode.py`: on one core it encodes 66 million records of 100 bytes per second, read from memory."""

from __future__ import annotations

import numpy as np

from chaffinch.records.kernels.compiled import BYTES, BYTES_OUT, INT64, INT64S, INT64S_OUT, compiled, copy_bytes, inlined, prefetch
from chaffinch.records.kernels_reference.byte_lists import Bytes, Int64s

_CORRUPT = -2
_AHEAD, _LINE = 1024, 64
"""Prefetch distance in bytes, and the size of a cache line. The processor prefetches neighbours itself, but not across pages: with this,
a record of 100 bytes takes 15 ns instead of 21."""
_PICKS_AHEAD = 8
"""Prefetch distance in records if they are selected by `rows`: 30 ns instead of 42."""


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
def _length(offsets: Int64s, data: Bytes, valid: Bytes, index: int) -> int:
    """Length of an entry, -1 for null, _CORRUPT when its offsets do not ascend within the data."""
    start, end = offsets[index], offsets[index + 1]
    if start < 0 or end < start or end > data.size:
        return _CORRUPT
    if valid.size and not valid[index]:
        return -1
    return int(end - start)


@inlined
def _write_field(out: Bytes, position: int, data: Bytes, start: int, length: int) -> int:
    position = _write_varint(out, position, length)
    if length > 0:
        copy_bytes(out, position, data, start, length)
        position += length
    return position


@compiled(
    *(INT64S, BYTES, BYTES),
    *(INT64S, BYTES, BYTES),
    INT64S,
    *(INT64S, INT64S, BYTES, INT64S, BYTES, BYTES),
    INT64,
    BYTES_OUT,
    INT64,
    INT64S,
    INT64S_OUT,
)
def encode(
    key_offsets: Int64s,
    key_data: Bytes,
    key_valid: Bytes,
    value_offsets: Int64s,
    value_data: Bytes,
    value_valid: Bytes,
    timestamps: Int64s,
    header_offsets: Int64s,
    header_key_offsets: Int64s,
    header_key_data: Bytes,
    header_value_offsets: Int64s,
    header_value_data: Bytes,
    header_value_valid: Bytes,
    base_timestamp: int,
    out: Bytes,
    position: int,
    rows: Int64s,
    written: Int64s,
) -> int:
    written[0] = 0
    header_count = header_key_offsets.size - 1
    for number in range(rows.size if rows.size else timestamps.size):
        index = rows[number] if rows.size else number
        if index < 0 or index >= timestamps.size:
            return -(number + 1)
        key = _length(key_offsets, key_data, key_valid, index)
        value = _length(value_offsets, value_data, value_valid, index)
        first, last = header_offsets[index], header_offsets[index + 1]
        if key == _CORRUPT or value == _CORRUPT or first < 0 or last < first or last > header_count:
            return -(number + 1)
        if rows.size:
            pick = rows[min(number + _PICKS_AHEAD, rows.size - 1)]
            coming = value_offsets[pick] if 0 <= pick < timestamps.size else 0
        else:
            coming = value_offsets[index] + _AHEAD
        prefetch(value_data, coming)
        prefetch(value_data, coming + _LINE)
        delta = timestamps[index] - base_timestamp
        size = 1 + _varint_size(delta) + _varint_size(number) + _varint_size(key) + _varint_size(value) + _varint_size(last - first)
        size += max(key, 0) + max(value, 0)
        for entry in range(first, last):
            header_key = _length(header_key_offsets, header_key_data, header_value_valid[:0], entry)
            header_value = _length(header_value_offsets, header_value_data, header_value_valid, entry)
            if header_key == _CORRUPT or header_value == _CORRUPT:
                return -(number + 1)
            size += _varint_size(header_key) + header_key + _varint_size(header_value) + max(header_value, 0)
        # The only bounds check of the output: the code below writes `size` bytes, preceded by their length.
        if position < 0 or out.size - position < _varint_size(size) + size:
            return position
        position = _write_varint(out, position, size)
        out[position] = 0
        position = _write_varint(out, position + 1, delta)
        position = _write_varint(out, position, number)
        position = _write_field(out, position, key_data, key_offsets[index], key)
        position = _write_field(out, position, value_data, value_offsets[index], value)
        position = _write_varint(out, position, last - first)
        for entry in range(first, last):
            header_key = _length(header_key_offsets, header_key_data, header_value_valid[:0], entry)
            header_value = _length(header_value_offsets, header_value_data, header_value_valid, entry)
            position = _write_field(out, position, header_key_data, header_key_offsets[entry], header_key)
            position = _write_field(out, position, header_value_data, header_value_offsets[entry], header_value)
        written[0] = number + 1
    return position
