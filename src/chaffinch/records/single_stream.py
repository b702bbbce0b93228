"""Portability check of compressed payloads: several lz4 frames or gzip members, and linked blocks, which other clients cannot read.

Apache Kafka's clients and brokers read only the first lz4 frame, and refuse blocks that depend on each other. Most clients read only the
first gzip member; Java reads a second one only if enough of it is in the same buffer. Decompression does not reveal this: cramjam joins the
streams.

An lz4 frame: magic number u32 | FLG u8 | BD u8 | content size u64 if FLG bit 3 | dictionary id u32 if FLG bit 0 | checksum u8 | blocks |
u32 0 | checksum u32 if FLG bit 2. A block: size u32 (bit 31: not compressed) | bytes | checksum u32 if FLG bit 4 (lz4_Frame_format.md).
"""

from __future__ import annotations

import zlib
from struct import Struct
from typing import Final

from chaffinch.records.compression import Buffer, Compression, CompressionError

_FLG_POSITION: Final = 4
_LZ4_HEADER_BYTES_MIN: Final = 7
_HAS_DICTIONARY, _HAS_CONTENT_CHECKSUM, _HAS_CONTENT_SIZE, _HAS_BLOCK_CHECKSUMS, _HAS_INDEPENDENT_BLOCKS = 1, 4, 8, 16, 32
_CHECKSUM_BYTES: Final = 4
_BLOCK_SIZE: Final = Struct("<I")
_IS_PLAIN: Final = 1 << 31

_GZIP_MAGIC: Final = b"\x1f\x8b\x08"
_GZIP_BYTES_MIN: Final = 18
_GZIP_WINDOW_BITS: Final = 31
_PIECE_BYTES: Final = 1 << 20


class PayloadNotPortable(CompressionError):
    """The payload can be decompressed here but not by other clients. `reason` is a fragment for people."""

    def __init__(self, codec: Compression, reason: str) -> None:
        super().__init__(codec, reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"other clients cannot read the {self.codec_name} payload: {self.reason}"


def check_portable(codec: Compression, payload: Buffer) -> None:
    """Check a payload that can be decompressed. Raises PayloadNotPortable.

    Cheap compared with decompression: lz4 has a block for each 64 KiB, and few gzip members contain bytes that look like another's header.
    """
    if codec is Compression.LZ4:
        if not payload[_FLG_POSITION] & _HAS_INDEPENDENT_BLOCKS:
            raise PayloadNotPortable(codec, "its blocks depend on each other, and Java reads only independent ones")
        has_more = _end_of_frame(payload) < len(payload)
    elif codec is Compression.GZIP:
        data = bytes(payload)
        has_more = data.find(_GZIP_MAGIC, _GZIP_BYTES_MIN) >= 0 and _has_second_member(data)
    else:
        return
    if has_more:
        raise PayloadNotPortable(codec, "a second stream follows, and they read only the first")


def _end_of_frame(data: Buffer) -> int:
    """End of the first frame; the end of the data if it cannot be determined."""
    flags = data[_FLG_POSITION]
    position = _LZ4_HEADER_BYTES_MIN + (8 if flags & _HAS_CONTENT_SIZE else 0) + (4 if flags & _HAS_DICTIONARY else 0)
    after_block = _CHECKSUM_BYTES if flags & _HAS_BLOCK_CHECKSUMS else 0
    while position + _BLOCK_SIZE.size <= len(data):
        size = _BLOCK_SIZE.unpack_from(data, position)[0] & ~_IS_PLAIN
        position += _BLOCK_SIZE.size
        if not size:
            return position + (_CHECKSUM_BYTES if flags & _HAS_CONTENT_CHECKSUM else 0)
        position += size + after_block
    return len(data)


def _has_second_member(data: bytes) -> bool:
    """Whether bytes follow the first member. It is decompressed in pieces that are discarded."""
    member, rest = zlib.decompressobj(_GZIP_WINDOW_BITS), data
    try:
        while not member.eof and (rest or member.unconsumed_tail):
            member.decompress(rest, _PIECE_BYTES)
            rest = member.unconsumed_tail
    except zlib.error:  # cramjam could decompress it.
        return False
    return bool(member.unused_data)
