"""Snappy in xerial framing, for streams of very many small blocks.

One codec call per block costs more than the block: a megabyte of empty blocks takes half a second. These loops process all blocks in one
call. Ordinary streams, with 32 KiB blocks, are faster through the codec.

A stream has frame headers of 16 bytes (magic, two numbers) and blocks (size i32, big-endian, and that many bytes) in any order. A block
(snappy's format_description) is its decompressed size, a varint, then elements: literals and copies from earlier in the block.
"""

from __future__ import annotations

from typing import Final

from chaffinch.records.kernels_reference.byte_lists import Bytes

MAGIC: Final = b"\x82SNAPPY\x00"
HEADER_BYTES: Final = 16
SIZE_BYTES: Final = 4
VARINT_BYTES_MAX: Final = 5
EXPANSION_MAX: Final = 22
"""Largest expansion of an element: three bytes copy at most 64."""

HEADER_CUT_SHORT, TRAILING_BYTES, BLOCK_SIZE_WRONG, NO_SIZE, DAMAGED, OUTPUT_FULL = range(-1, -7, -1)
"""Error results of `unframe_snappy`."""

_LITERAL, _COPY_1 = 0, 1
_LITERAL_SHORT_MAX = 60


def unframe_snappy(data: Bytes, out: Bytes) -> int:
    """Decompress every block of `data` into `out`; returns how many bytes were written, or one of the negative numbers above."""
    raw, written, position = data.tobytes(), bytearray(), 0
    while position < len(raw):
        if raw[position : position + len(MAGIC)] == MAGIC:
            position += HEADER_BYTES
            if position > len(raw):
                return HEADER_CUT_SHORT
            continue
        if len(raw) - position < SIZE_BYTES:
            return TRAILING_BYTES
        size = int.from_bytes(raw[position : position + SIZE_BYTES], "big", signed=True)
        position += SIZE_BYTES
        if not 0 < size <= len(raw) - position:
            return BLOCK_SIZE_WRONG
        problem = _block(raw[position : position + size], written, len(out))
        if problem:
            return problem
        position += size
    out.data[: len(written)] = written
    return len(written)


def _block(block: bytes, written: bytearray, bytes_max: int) -> int:
    """Append the contents of a block to `written`; returns 0 or an error."""
    size = position = 0
    while True:
        if position == min(len(block), VARINT_BYTES_MAX):
            return NO_SIZE
        byte = block[position]
        size |= (byte & 0x7F) << 7 * position
        position += 1
        if byte < 0x80:
            break
    if size >= 2**32:
        return NO_SIZE
    if size > bytes_max - len(written):
        return OUTPUT_FULL
    start, end = len(written), len(written) + size
    while position < len(block):
        kind, number = block[position] & 3, block[position] >> 2
        position += 1
        if kind == _LITERAL:
            length_bytes = max(number - _LITERAL_SHORT_MAX + 1, 0)
            length = 1 + (int.from_bytes(block[position : position + length_bytes], "little") if length_bytes else number)
            position += length_bytes
            if length > len(block) - position or length > end - len(written):
                return DAMAGED
            written += block[position : position + length]
            position += length
            continue
        offset_bytes = 1 if kind == _COPY_1 else 2 * (kind - 1)
        length = (number & 7) + 4 if kind == _COPY_1 else number + 1
        offset = int.from_bytes(block[position : position + offset_bytes], "little") + ((number >> 3 << 8) if kind == _COPY_1 else 0)
        position += offset_bytes
        if position > len(block) or not 0 < offset <= len(written) - start or length > end - len(written):
            return DAMAGED
        for _ in range(length):
            written.append(written[-offset])
    return 0 if len(written) == end else DAMAGED
