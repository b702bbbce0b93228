"""The partition of a key, as Java's client computes it (Kafka's `Utils.murmur2` and `Utils.toPositive`)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chaffinch.records.kernels_reference.byte_lists import CORRUPT, NULL, Bytes, Int64s, lengths

_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes | memoryview) -> int:
    """The 32-bit hash of `data`, as an unsigned number."""
    hashed = _SEED ^ len(data)
    whole = len(data) // 4 * 4
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little") * _FACTOR & _MASK
        word = (word ^ word >> 24) * _FACTOR & _MASK
        hashed = hashed * _FACTOR & _MASK ^ word
    if whole < len(data):
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * _FACTOR & _MASK
    hashed = (hashed ^ hashed >> 13) * _FACTOR & _MASK
    return hashed ^ hashed >> 15


def murmur2_partitions(key_offsets: Int64s, key_data: Bytes, key_valid: Bytes, partition_count: int, out: npt.NDArray[np.int32]) -> int:
    """Write the partition of each key to `out`, -1 for a null key.

    Returns -1, or the index of the first key whose offsets do not ascend within the data.
    """
    whole = key_data.data
    for index, (start, length) in enumerate(zip(key_offsets.tolist(), lengths(key_offsets, len(key_data), key_valid), strict=False)):
        if length == CORRUPT:
            return index
        out[index] = -1 if length == NULL else (murmur2(whole[start : start + length]) & 0x7FFFFFFF) % partition_count
    return -1


def murmur2_of_key(key: bytes, length: int) -> int:
    """The hash of one key of `length` bytes."""
    return murmur2(key)
