"""Compiled twin of `kernels_reference/keys.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from chaffinch.records.kernels.compiled import BYTES, INT64S, INT64S_OUT, compiled, inlined
from chaffinch.records.kernels_reference.byte_lists import Bytes, Int64s
from chaffinch.records.kernels_reference.varints import INT32_BYTES_MAX, INT64_BYTES_MAX


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


@compiled(BYTES, INT64S, INT64S_OUT, INT64S_OUT)
def find_keys(payload: Bytes, indices: Int64s, starts: Int64s, lengths: Int64s) -> int:
    position, at = 0, 0
    for found in range(indices.size):
        index = indices[found]
        if index < at or found >= min(starts.size, lengths.size):
            return found
        body = position
        while at <= index:
            length, body = _read(payload, position, payload.size, INT32_BYTES_MAX)
            if body < 0 or length < 0 or length > payload.size - body:
                return found
            position = body + length
            at += 1
        _, after = _read(payload, body + 1, position, INT64_BYTES_MAX)
        if after < 0:
            return found
        _, after = _read(payload, after, position, INT32_BYTES_MAX)
        if after < 0:
            return found
        length, after = _read(payload, after, position, INT32_BYTES_MAX)
        if after < 0 or length > position - after:
            return found
        starts[found], lengths[found] = after, max(length, -1)
    return indices.size
