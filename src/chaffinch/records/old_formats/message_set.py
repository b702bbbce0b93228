"""Message sets of formats 0 and 1, as in Produce versions 0 to 2: plain messages, or one that contains the others compressed.

Only the layout, the first message and the decompression of a wrapper. `kernels/messages.py` reads all messages, `validation_rules.py` has
the rules, and `validation.py` applies them and converts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from struct import Struct
from typing import Final
from zlib import crc32

from chaffinch.records.compression import Compression, decompress
from chaffinch.records.errors import CorruptBatch, Fault
from chaffinch.records.kernels_reference.messages import (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_LOG_APPEND_TIME,
    FIELDS_POSITION,
    LOG_OVERHEAD,
    MESSAGE_BYTES_MIN,
    SIZE_MIN,
    TIMESTAMP_BYTES,
)

OLD_FORMATS = (0, 1)
CODECS_OF_OLD_FORMATS = (Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4)
"""zstd came with format 2 (KIP-110)."""

_HEAD = Struct(">qiIbb")
_LENGTH = Struct(">i")
_CHECKED_POSITION = 16


# Without slots, because of `cached_property`.
@dataclass(frozen=True, kw_only=True)
class MessageSet:
    """A set and the head of its first message. Nothing has been checked except that this message is complete."""

    data: memoryview
    offset: int
    message_size: int
    """Size of the first message including its offset and size; all of `data` for a wrapper."""
    crc: int
    magic: int
    attributes: int

    @property
    def codec_id(self) -> int:
        return self.attributes & ATTRIBUTE_CODEC

    @property
    def is_wrapper(self) -> bool:
        """Whether the first message contains others, compressed."""
        return self.codec_id != 0

    @property
    def codec(self) -> Compression:
        """The codec; raises ValueError if `codec_id` was not validated."""
        return Compression(self.codec_id)

    @property
    def claims_append_time(self) -> bool:
        return self.magic > 0 and bool(self.attributes & ATTRIBUTE_LOG_APPEND_TIME)

    @property
    def first(self) -> memoryview:
        return self.data[: self.message_size]

    def computed_crc(self) -> int:
        """The actual checksum of the first message's bytes."""
        return crc32(self.first[_CHECKED_POSITION:])

    def crc_is_valid(self) -> bool:
        return self.computed_crc() == self.crc

    @cached_property
    def wrapped(self) -> memoryview | None:
        """The first message's value, still compressed; None if it is null or does not fill the message exactly."""
        position = FIELDS_POSITION + (TIMESTAMP_BYTES if self.magic else 0)
        for is_value in (False, True):
            if self.message_size - position < _LENGTH.size:
                return None
            (length,) = _LENGTH.unpack_from(self.data, position)
            position += _LENGTH.size
            if is_value:
                return self.data[position : self.message_size] if 0 <= length == self.message_size - position else None
            position += max(length, 0)
        return None


def read_message_set(data: bytes | bytearray | memoryview) -> MessageSet:
    """The set that begins with a message of format 0 or 1.

    Raises CorruptBatch (BATCH_LENGTH, BATCH_CUT_SHORT, BATCH_MAGIC) if `data` does not begin with a whole message of these formats.
    """
    view = memoryview(data)
    if len(view) < MESSAGE_BYTES_MIN:
        raise CorruptBatch(Fault.BATCH_CUT_SHORT, position=0, detail=f"{len(view)} bytes, a message has at least {MESSAGE_BYTES_MIN}")
    offset, size, crc, magic, attributes = _HEAD.unpack_from(view)
    if size < SIZE_MIN:
        raise CorruptBatch(Fault.BATCH_LENGTH, position=0, detail=f"size {size}, a message has at least {SIZE_MIN}")
    if size > len(view) - LOG_OVERHEAD:
        raise CorruptBatch(Fault.BATCH_CUT_SHORT, position=0, detail=f"{len(view)} bytes of {size + LOG_OVERHEAD}")
    if magic not in OLD_FORMATS:
        raise CorruptBatch(Fault.BATCH_MAGIC, position=0, detail=f"magic {magic}, expected 0 or 1")
    return MessageSet(data=view, offset=offset, message_size=size + LOG_OVERHEAD, crc=crc, magic=magic, attributes=attributes)


def unwrapped(message_set: MessageSet, bytes_max: int) -> memoryview:
    """The messages, decompressed, at most `bytes_max` bytes. Raises CompressionError."""
    if not message_set.is_wrapper:
        return message_set.data
    wrapped = message_set.wrapped
    assert wrapped is not None, "the rules about wrappers come first"
    if message_set.codec is Compression.LZ4 and message_set.magic == 0:
        return decompress(Compression.LZ4, with_right_checksum(wrapped), bytes_max)
    return decompress(message_set.codec, wrapped, bytes_max)


# The lz4 frames of format 0 have a wrong checksum (KIP-57): clients before Kafka 0.10 included the frame's magic number. Brokers ignore it
# in format 0, so any byte may be there. The frame decompressor checks it, so it is corrected first.
#
# A frame begins: magic number u32 | FLG u8 | BD u8 | content size u64 if FLG bit 3 | dictionary id u32 if FLG bit 0 | checksum u8
# (lz4_Frame_format.md). The checksum is the second byte of the xxHash-32 of FLG to dictionary id.
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_FLG_POSITION: Final = 4
_DESCRIPTOR_BYTES_MIN: Final = 2
_HAS_CONTENT_SIZE: Final = 0b1000
_HAS_DICTIONARY: Final = 0b0001

_PRIMES: Final = (0, 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)
_MASK: Final = 2**32 - 1
_INPUT_BYTES_MAX: Final = 15


def with_right_checksum(data: bytes | memoryview) -> bytearray:
    """A copy of `data` with a correct checksum in the first lz4 frame header; other bytes are unchanged."""
    patched = bytearray(data)
    if patched[:_FLG_POSITION] != _LZ4_MAGIC or len(patched) <= _FLG_POSITION:
        return patched
    flags = patched[_FLG_POSITION]
    end = _FLG_POSITION + _DESCRIPTOR_BYTES_MIN + (8 if flags & _HAS_CONTENT_SIZE else 0) + (4 if flags & _HAS_DICTIONARY else 0)
    if end < len(patched):
        patched[end] = xxhash32(patched[_FLG_POSITION:end]) >> 8 & 0xFF
    return patched


def xxhash32(data: bytes | bytearray) -> int:
    """xxHash-32 with seed 0 of at most 15 bytes: a frame header needs no more, and longer inputs have further rounds."""
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
