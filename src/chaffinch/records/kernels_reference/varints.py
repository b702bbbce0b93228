"""Zigzag varints as Kafka's `ByteUtils` writes and reads them: at most 5 bytes for 32 bits, at most 10 for 64."""

from __future__ import annotations

INT32_BYTES_MAX = 5
INT64_BYTES_MAX = 10
_INT64_MASK = 2**64 - 1


def wrap_int64(value: int) -> int:
    """`value` modulo 2^64 as a signed number, as Java's arithmetic leaves it."""
    value &= _INT64_MASK
    return value - 2**64 if value >> 63 else value


def varint_size(value: int) -> int:
    """Bytes that the signed 64-bit `value` takes."""
    zigzag = ((value << 1) ^ (value >> 63)) & _INT64_MASK
    return max(1, (zigzag.bit_length() + 6) // 7)


def write_varint(out: bytearray, value: int) -> None:
    """Append the signed 64-bit `value`."""
    zigzag = ((value << 1) ^ (value >> 63)) & _INT64_MASK
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)


def read_varint(data: bytes, position: int, end: int, bytes_max: int) -> tuple[int, int]:
    """The number at `position` and the position after it; position -1 when it goes beyond `end` or `bytes_max`.

    Bits beyond 32 (5 bytes) or 64 (10 bytes) are dropped, as Java's shifts drop them.
    """
    raw = 0
    for index in range(bytes_max):
        if position + index >= end:
            return 0, -1
        byte = data[position + index]
        raw |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            raw &= 0xFFFFFFFF if bytes_max == INT32_BYTES_MAX else _INT64_MASK
            return (raw >> 1) ^ -(raw & 1), position + index + 1
    return 0, -1
