"""Compiled twin of `kernels_reference/sizes.py`."""

from __future__ import annotations

import numpy as np

from chaffinch.records.kernels.compiled import BYTES, INT64, INT64S, INT64S_OUT, compiled, inlined
from chaffinch.records.kernels_reference.byte_lists import Bytes, Int64s

_CORRUPT = -2


@inlined
def _varint_size(value: int) -> int:
    zigzag = np.uint64((value << 1) ^ (value >> 63))
    size = 1
    while zigzag > 0x7F:
        zigzag >>= np.uint64(7)
        size += 1
    return size


@inlined
def _length(offsets: Int64s, data_bytes: int, valid: Bytes, index: int) -> int:
    """Length of an entry, -1 for null, _CORRUPT when its offsets do not ascend within the data."""
    start, end = offsets[index], offsets[index + 1]
    if start < 0 or end < start or end > data_bytes:
        return _CORRUPT
    if valid.size and not valid[index]:
        return -1
    return int(end - start)


@inlined
def _field_size(length: int) -> int:
    return _varint_size(length) + max(length, 0)


@compiled(
    *(INT64S, INT64, BYTES), *(INT64S, INT64, BYTES), INT64S, *(INT64S, INT64S, INT64, INT64S, INT64, BYTES), INT64, INT64, INT64S_OUT
)
def measure(
    key_offsets: Int64s,
    key_bytes: int,
    key_valid: Bytes,
    value_offsets: Int64s,
    value_bytes: int,
    value_valid: Bytes,
    timestamps: Int64s,
    header_offsets: Int64s,
    header_key_offsets: Int64s,
    header_key_bytes: int,
    header_value_offsets: Int64s,
    header_value_bytes: int,
    header_value_valid: Bytes,
    base_timestamp: int,
    delta_bytes: int,
    sizes: Int64s,
) -> int:
    total = 0
    header_count = header_key_offsets.size - 1
    for index in range(timestamps.size):
        key = _length(key_offsets, key_bytes, key_valid, index)
        value = _length(value_offsets, value_bytes, value_valid, index)
        first, last = header_offsets[index], header_offsets[index + 1]
        if key == _CORRUPT or value == _CORRUPT or first < 0 or last < first or last > header_count:
            return -(index + 1)
        deltas = delta_bytes if delta_bytes else _varint_size(timestamps[index] - base_timestamp) + _varint_size(index)
        size = 1 + deltas + _field_size(key) + _field_size(value) + _varint_size(last - first)
        for entry in range(first, last):
            header_key = _length(header_key_offsets, header_key_bytes, header_value_valid[:0], entry)
            header_value = _length(header_value_offsets, header_value_bytes, header_value_valid, entry)
            if header_key == _CORRUPT or header_value == _CORRUPT:
                return -(index + 1)
            size += _field_size(header_key) + _field_size(header_value)
        size += _varint_size(size)
        if sizes.size:
            sizes[index] = size
        total += size
    return total
