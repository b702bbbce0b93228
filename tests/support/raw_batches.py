"""Record batches of format 2 built by hand, so that any field can be wrong. Independent of the encoder under test."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TypeAlias

from chaffinch.records.batch import BatchView, read_header
from chaffinch.records.checksum import crc32c
from chaffinch.records.compression import Compression, compress

NOW_MS = 1_700_000_000_000


def varint(value: int) -> bytes:
    """Zigzag varint of any length."""
    raw = (value << 1) ^ (value >> 63)
    raw &= 2**64 - 1
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


Content: TypeAlias = bytes | int | None
"""Content of a field: bytes, null, or only a length that no bytes follow."""


def field(content: Content) -> bytes:
    if isinstance(content, int):
        return varint(content)
    return varint(-1) if content is None else varint(len(content)) + content


def record(
    offset_delta: int = 0,
    key: Content = b"key",
    value: Content = b"value",
    *,
    timestamp_delta: int = 0,
    headers: Sequence[tuple[Content, Content]] = (),
    length_off_by: int = 0,
) -> bytes:
    body = b"\x00" + varint(timestamp_delta) + varint(offset_delta) + field(key) + field(value) + varint(len(headers))
    body += b"".join(field(name) + field(content) for name, content in headers)
    return varint(len(body) + length_off_by) + body


def raw_batch(
    payload: bytes | Sequence[bytes],
    *,
    count: int | None = None,
    last_offset_delta: int | None = None,
    base_offset: int = 0,
    magic: int = 2,
    crc: int | None = None,
    compression: Compression = Compression.NONE,
    attributes: int = 0,
    base_timestamp: int = NOW_MS,
    max_timestamp: int = NOW_MS,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytearray:
    """A batch of records, compressed here, or of bytes that become the payload unchanged, whatever `compression` is."""
    if not isinstance(payload, bytes):
        count = len(payload) if count is None else count
        payload = bytes(compress(compression, b"".join(payload)))
    count = 1 if count is None else count
    last_offset_delta = count - 1 if last_offset_delta is None else last_offset_delta
    checked = struct.pack(
        ">hiqqqhii",
        attributes | compression,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    checked += payload
    head = struct.pack(">qiibI", base_offset, 9 + len(checked), -1, magic, crc32c(checked) if crc is None else crc)
    return bytearray(head + checked)


def view(batch: bytes | bytearray) -> BatchView:
    """The batch as slicing returns it, even one that slicing would reject."""
    return BatchView(memoryview(batch), read_header(batch))
