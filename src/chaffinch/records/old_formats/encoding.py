"""Encoder for message sets of formats 0 and 1, as clients before Kafka 0.11 wrote them. For tools: slow, an object per record.

Layout (Kafka's `LegacyRecord`): offset i64 | size i32 | crc u32 | magic i8 | attributes i8 | timestamp i64 (format 1) | key | value, each
with an i32 length, -1 for null. A compressed set is the value of one message with the codec in its attributes and the offset of its last
message. Offsets count from 0, as format 1 requires; format 0 ignores them.
"""

from __future__ import annotations

from struct import Struct
from zlib import crc32

from chaffinch.records.columns import RecordColumns
from chaffinch.records.compression import Compression, compress

CODECS: dict[int, tuple[Compression, ...]] = {
    # Format 0 has lz4 frames whose checksum is wrong in a way of its own (KIP-57).
    0: (Compression.NONE, Compression.GZIP, Compression.SNAPPY),
    1: (Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4),
}
"""The codecs written here, by format. zstd came with format 2 (KIP-110)."""

_HEAD = Struct(">qiI")
_MAGIC_AND_ATTRIBUTES = Struct(">bb")
_TIMESTAMP = Struct(">q")
_LENGTH = Struct(">i")
_CRC_BYTES = 4


def encode_message_set(columns: RecordColumns, magic: int, compression: Compression = Compression.NONE) -> bytes:
    """Encode the records in order. Raises ValueError for an unsupported format or codec, and for headers, which format 2 introduced."""
    if magic not in CODECS:
        raise ValueError(f"format {magic}: 0 and 1 are written here")
    if compression not in CODECS[magic]:
        raise ValueError(f"format {magic} has no {compression.name.lower()} here")
    if int(columns.header_offsets[-1]) != int(columns.header_offsets[0]):
        raise ValueError(f"format {magic} has no headers")
    messages = b"".join(
        _message(magic, 0, index, int(columns.timestamps[index]), columns.key(index), columns.value(index)) for index in range(len(columns))
    )
    if compression is Compression.NONE:
        return messages
    timestamp = int(columns.timestamps.max()) if len(columns) else 0
    return _message(magic, int(compression), len(columns) - 1, timestamp, None, bytes(compress(compression, messages)))


def _message(magic: int, attributes: int, offset: int, timestamp: int, key: bytes | None, value: bytes | None) -> bytes:
    checked = (
        _MAGIC_AND_ATTRIBUTES.pack(magic, attributes) + (_TIMESTAMP.pack(timestamp) if magic else b"") + _content(key) + _content(value)
    )
    return _HEAD.pack(offset, _CRC_BYTES + len(checked), crc32(checked)) + checked


def _content(content: bytes | None) -> bytes:
    return _LENGTH.pack(-1) if content is None else _LENGTH.pack(len(content)) + content
