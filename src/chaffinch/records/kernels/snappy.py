"""Compiled twin of `kernels_reference/snappy.py`, where the format, arguments and results are described."""

from __future__ import annotations

from typing import Any

import numpy as np

from chaffinch.records.kernels.compiled import BYTES, BYTES_OUT, compiled, copy_bytes, inlined
from chaffinch.records.kernels_reference.byte_lists import Bytes
from chaffinch.records.kernels_reference.snappy import (
    BLOCK_SIZE_WRONG,
    DAMAGED,
    HEADER_BYTES,
    HEADER_CUT_SHORT,
    MAGIC,
    NO_SIZE,
    OUTPUT_FULL,
    SIZE_BYTES,
    TRAILING_BYTES,
    VARINT_BYTES_MAX,
)

_MAGIC = np.frombuffer(MAGIC, np.uint8)


@inlined
def _number(data: Bytes, position: int, size: Any) -> Any:
    """Little-endian, without a sign."""
    number = np.int64(0)
    for index in range(size):
        number |= np.int64(data[np.uint64(position + index)]) << np.int64(8 * index)
    return number


@inlined
def _begins_frame(data: Bytes, position: int) -> bool:
    if data.size - position < _MAGIC.size:
        return False
    same = 0
    while same < _MAGIC.size and data[np.uint64(position + same)] == _MAGIC[same]:
        same += 1
    return same == _MAGIC.size


@inlined
def _size(data: Bytes, position: int, end: Any) -> tuple[Any, int]:
    """(size, position after it) of the varint at a block's head; (NO_SIZE, position) where there is none."""
    size = np.int64(0)
    for index in range(min(VARINT_BYTES_MAX, end - position)):
        byte = np.int64(data[np.uint64(position + index)])
        size |= (byte & 0x7F) << np.int64(7 * index)
        if byte < 0x80:
            return (size, position + index + 1) if size < np.int64(1) << 32 else (np.int64(NO_SIZE), position)
    return np.int64(NO_SIZE), position


@inlined
def _literal(data: Bytes, position: int, end: Any, number: Any) -> tuple[Any, int]:
    """(length, position of its bytes) of a literal whose tag ended at `position`; length -1 if its length is cut off."""
    length_bytes = max(number - 59, np.int64(0))
    if length_bytes == 0:
        return number + 1, position
    if length_bytes > end - position:
        return np.int64(-1), position
    return _number(data, position, length_bytes) + 1, position + length_bytes


@inlined
def _elements(data: Bytes, start: int, end: Any, out: Bytes, first: int, last: Any) -> int:
    """Decompress the elements of one block to out[first:last]; 0, or DAMAGED."""
    position: Any = start
    at: Any = first
    while position < end:
        tag = np.int64(data[np.uint64(position)])
        kind, number = tag & 3, tag >> 2
        position += 1
        if kind == 0:
            length, position = _literal(data, position, end, number)
            if length < 0 or length > end - position or length > last - at:
                return DAMAGED
            copy_bytes(out, at, data, position, length)
            position += length
            at += length
            continue
        offset_bytes = 1 if kind == 1 else 2 * (kind - 1)
        if offset_bytes > end - position:
            return DAMAGED
        offset = _number(data, position, offset_bytes)
        length = number + 1
        if kind == 1:
            offset |= number >> 3 << 8
            length = (number & 7) + 4
        position += offset_bytes
        if offset == 0 or offset > at - first or length > last - at:
            return DAMAGED
        for _ in range(length):
            out[at] = out[np.uint64(at - offset)]
            at += 1
    return 0 if at == last else DAMAGED


@compiled(BYTES, BYTES_OUT)
def unframe_snappy(data: Bytes, out: Bytes) -> int:
    position: Any = 0
    written: Any = 0
    while position < data.size:
        if _begins_frame(data, position):
            position += HEADER_BYTES
            if position > data.size:
                return HEADER_CUT_SHORT
            continue
        if data.size - position < SIZE_BYTES:
            return TRAILING_BYTES
        size = np.int64(0)
        for index in range(SIZE_BYTES):
            size = size << 8 | np.int64(data[np.uint64(position + index)])
        position += SIZE_BYTES
        # A size with the highest bit set is negative, and as an unsigned number larger than any buffer.
        if size == 0 or size > data.size - position:
            return BLOCK_SIZE_WRONG
        end = position + size
        claimed, position = _size(data, position, end)
        if claimed < 0:
            return NO_SIZE
        if claimed > out.size - written:
            return OUTPUT_FULL
        if _elements(data, position, end, out, written, written + claimed) != 0:
            return DAMAGED
        written += claimed
        position = end
    return written  # type: ignore[no-any-return]
