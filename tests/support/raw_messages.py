"""Messages of formats 0 and 1 built by hand, so that any field can be wrong. Independent of the code under test."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from chaffinch.records.compression import Compression, compress
from tests.support.raw_batches import NOW_MS

LZ4_CHECKSUM_POSITION = 6
"""Position of the header checksum in the LZ4 frames that `compress` writes: no content size, no dictionary."""


def message(
    key: bytes | None = b"key",
    value: bytes | None = b"value",
    *,
    magic: int = 1,
    offset: int = 0,
    attributes: int = 0,
    timestamp: int = NOW_MS,
    crc: int | None = None,
    size_off_by: int = 0,
    key_length: int | None = None,
    value_length: int | None = None,
) -> bytes:
    """One message. Magic other than 0 and 1 gets the layout of 1."""
    checked = struct.pack(">bb", magic if magic < 128 else magic - 256, attributes)
    checked += b"" if magic == 0 else struct.pack(">q", timestamp)
    for content, length in ((key, key_length), (value, value_length)):
        declared_length = (-1 if content is None else len(content)) if length is None else length
        checked += struct.pack(">i", declared_length) + (content or b"")
    checksum = zlib.crc32(checked) if crc is None else crc
    return struct.pack(">qiI", offset, 4 + len(checked) + size_off_by, checksum) + checked


def wrapper(
    inner: bytes | Sequence[bytes],
    compression: Compression,
    *,
    magic: int = 1,
    offset: int | None = None,
    attributes: int = 0,
    **fields: int,
) -> bytes:
    """A message whose value is a compressed message set: a list is compressed here, bytes become the value unchanged."""
    count = 1
    if not isinstance(inner, bytes):
        count = len(inner)
        inner = compressed(b"".join(inner), compression, magic)
    offset = max(count - 1, 0) if offset is None else offset
    return message(None, inner, magic=magic, offset=offset, attributes=attributes | compression, **fields)


def compressed(data: bytes, compression: Compression, magic: int = 1) -> bytes:
    """Compress like old clients: the checksum in the LZ4 frame header of format 0 covers too many bytes (KIP-57); here it is just wrong."""
    out = bytearray(compress(compression, data))
    if compression is Compression.LZ4 and magic == 0:
        out[LZ4_CHECKSUM_POSITION] ^= 0x5A
    return bytes(out)


def message_set(messages: Sequence[bytes], compression: Compression, *, magic: int = 1) -> bytes:
    """The messages, in a wrapper if they are compressed."""
    return b"".join(messages) if compression is Compression.NONE else wrapper(messages, compression, magic=magic)
