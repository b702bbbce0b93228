"""The lz4 frames of format 0, whose headers carry a checksum over the wrong bytes (KIP-57).

Clients before Kafka 0.10 computed it over the frame's magic number too. Brokers never look at it in format 0, so any byte may stand
there; what decompresses frames does look, and gets the right one.

A frame begins: magic number u32 | FLG u8 | BD u8 | content size u64 if FLG bit 3 | dictionary id u32 if FLG bit 0 | checksum u8
(lz4_Frame_format.md). The checksum is the second byte of the xxHash-32 of FLG to dictionary id.
"""

from __future__ import annotations

from typing import Final

_MAGIC: Final = b"\x04\x22\x4d\x18"
_FLG_POSITION: Final = 4
_DESCRIPTOR_BYTES_MIN: Final = 2
_HAS_CONTENT_SIZE: Final = 0b1000
_HAS_DICTIONARY: Final = 0b0001

_PRIMES: Final = (0, 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)
_MASK: Final = 2**32 - 1
_INPUT_BYTES_MAX: Final = 15


def with_right_checksum(data: bytes | memoryview) -> bytearray:
    """A copy of `data` whose first frame header has the right checksum; bytes that are no such header stay as they are."""
    mended = bytearray(data)
    if mended[:_FLG_POSITION] != _MAGIC or len(mended) <= _FLG_POSITION:
        return mended
    flags = mended[_FLG_POSITION]
    end = _FLG_POSITION + _DESCRIPTOR_BYTES_MIN + (8 if flags & _HAS_CONTENT_SIZE else 0) + (4 if flags & _HAS_DICTIONARY else 0)
    if end < len(mended):
        mended[end] = xxhash32(mended[_FLG_POSITION:end]) >> 8 & 0xFF
    return mended


def xxhash32(data: bytes | bytearray) -> int:
    """xxHash-32 with seed 0 of at most 15 bytes: longer inputs begin with rounds that a frame's header never needs."""
    if len(data) > _INPUT_BYTES_MAX:
        raise ValueError(f"{len(data)} bytes, at most {_INPUT_BYTES_MAX} are hashed here")
    sum_ = _PRIMES[5] + len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        sum_ = _rotated(sum_ + int.from_bytes(data[at : at + 4], "little") * _PRIMES[3], 17) * _PRIMES[4]
    for byte in data[whole:]:
        sum_ = _rotated(sum_ + byte * _PRIMES[5], 11) * _PRIMES[1]
    sum_ &= _MASK
    for shift, prime in ((15, _PRIMES[2]), (13, _PRIMES[3])):
        sum_ = (sum_ ^ sum_ >> shift) * prime & _MASK
    return sum_ ^ sum_ >> 16


def _rotated(value: int, bits: int) -> int:
    value &= _MASK
    return (value << bits | value >> 32 - bits) & _MASK
