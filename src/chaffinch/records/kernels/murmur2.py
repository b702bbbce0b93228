"""Compiled twin of `kernels_reference/murmur2.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from chaffinch.records.kernels.compiled import BYTES, INT32S_OUT, INT64, INT64S, compiled, inlined, of_bytes, view_at
from chaffinch.records.kernels_reference.byte_lists import Bytes, Int64s

_FACTOR = np.uint32(0x5BD1E995)
_SEED = np.uint32(0x9747B28C)


@inlined
def _murmur2(data: Bytes, start: int, length: int) -> np.uint32:
    hashed = np.uint32(_SEED ^ np.uint32(length))
    position, end = start, start + length // 4 * 4
    while position < end:
        word = np.uint32(data[position])
        word |= np.uint32(data[position + 1]) << np.uint32(8)
        word |= np.uint32(data[position + 2]) << np.uint32(16)
        word |= np.uint32(data[position + 3]) << np.uint32(24)
        word = np.uint32(word * _FACTOR)
        word = np.uint32((word ^ (word >> np.uint32(24))) * _FACTOR)
        hashed = np.uint32(np.uint32(hashed * _FACTOR) ^ word)
        position += 4
    rest = length % 4
    if rest:
        word = np.uint32(0)
        for index in range(rest):
            word |= np.uint32(data[end + index]) << np.uint32(8 * index)
        hashed = np.uint32((hashed ^ word) * _FACTOR)
    hashed = np.uint32((hashed ^ (hashed >> np.uint32(13))) * _FACTOR)
    return np.uint32(hashed ^ (hashed >> np.uint32(15)))


@compiled(INT64S, BYTES, BYTES, INT64, INT32S_OUT)
def murmur2_partitions(key_offsets: Int64s, key_data: Bytes, key_valid: Bytes, partition_count: int, out: npt.NDArray[np.int32]) -> int:
    for index in range(min(out.size, key_offsets.size - 1)):
        start, end = key_offsets[index], key_offsets[index + 1]
        if start < 0 or end < start or end > key_data.size:
            return index
        if key_valid.size and not key_valid[index]:
            out[index] = -1
        else:
            out[index] = np.int64(_murmur2(key_data, start, end - start) & np.uint32(0x7FFFFFFF)) % partition_count
    return -1


@of_bytes
def murmur2_of_key(address: Any, length: int) -> Any:
    return _murmur2(view_at(address, (length,), np.uint8), 0, length)
