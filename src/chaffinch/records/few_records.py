"""Codec for batches of a few records, directly from and to lists: creating columns would take longer than all the rest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, TypeAlias

from chaffinch.identifiers import NO_PRODUCER, NO_SEQUENCE, ProducerIdentity
from chaffinch.records.batch_codec import DECOMPRESSED_BYTES_MAX, decode, decompressed_payload, write_header
from chaffinch.records.batch_header import HEADER_BYTES, BatchView
from chaffinch.records.kernels_reference.varints import INT32_BYTES_MAX, INT64_BYTES_MAX, read_varint, wrap_int64, write_varint

FEW_RECORDS: Final = 8
"""Up to this many records it is faster, as measured; it is correct for any number."""

PlainRecord: TypeAlias = tuple[int, bytes | None, bytes | None]
"""Offset, key and value."""


@lru_cache(maxsize=1024)
def _varint(value: int) -> bytes:
    """Cached: lengths and timestamp deltas repeat often."""
    written = bytearray()
    write_varint(written, value)
    return bytes(written)


_ZERO: Final = b"\0"
_ABSENT: Final = _varint(-1)


def encode_few(
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    timestamps: Sequence[int],
    *,
    attributes: int = 0,
    identity: ProducerIdentity = NO_PRODUCER,
    base_sequence: int = NO_SEQUENCE,
    base_offset: int = 0,
) -> bytearray:
    """Like `batch.encode` for the same records, without headers and compression. At least one record."""
    out = bytearray(HEADER_BYTES)
    base = timestamps[0]
    for index, (key, value, timestamp) in enumerate(zip(keys, values, timestamps, strict=True)):
        key_size, value_size = _ABSENT if key is None else _varint(len(key)), _ABSENT if value is None else _varint(len(value))
        # Attributes, times, key, value, and the count of headers.
        record = b"".join((_ZERO, _varint(timestamp - base), _varint(index), key_size, key or b"", value_size, value or b"", _ZERO))
        out += _varint(len(record))
        out += record
    write_header(
        out, attributes, len(keys), (base, max(timestamps)), identity=identity, base_sequence=base_sequence, base_offset=base_offset
    )
    return out


def plain_records(view: BatchView, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX) -> list[PlainRecord]:
    """The records that `batch.decode` returns, without headers and timestamps; raises the same errors."""
    found = _few(view, decompressed_bytes_max)
    if found is None:
        columns = decode(view, decompressed_bytes_max=decompressed_bytes_max)
        assert columns.offsets is not None, "records that were read have offsets"
        found = [(offset, columns.key(index), columns.value(index)) for index, offset in enumerate(columns.offsets.tolist())]
    return found


def _few(view: BatchView, decompressed_bytes_max: int) -> list[PlainRecord] | None:
    """The records of a batch such as `encode_few` writes, compressed or not; None for any other or invalid batch, which `decode`
    handles.
    """
    header = view.header
    if not 0 < header.count <= FEW_RECORDS:
        return None
    data, found, position = bytes(decompressed_payload(view, decompressed_bytes_max)), list[PlainRecord](), 0
    try:
        for _ in range(header.count):
            size, position = _number(data, position)
            end = position + size
            _, position = _number(data, position + 1, INT64_BYTES_MAX)  # The timestamp delta, after the attributes.
            offset_delta, position = _number(data, position)
            key, position = _field(data, position)
            value, position = _field(data, position)
            header_count, position = _number(data, position)
            if header_count or position != end:
                return None
            found.append((wrap_int64(header.base_offset + offset_delta), key, value))
    except _NotSimple:
        return None
    return found if position == len(data) else None


class _NotSimple(Exception):
    """The batch must be read by `decode`."""


def _number(data: bytes, position: int, bytes_max: int = INT32_BYTES_MAX) -> tuple[int, int]:
    """The varint at `position`, and its end."""
    if position < len(data) and data[position] < 0x80:
        return (data[position] >> 1) ^ -(data[position] & 1), position + 1
    number, end = read_varint(data, position, len(data), bytes_max)
    if end < 0:
        raise _NotSimple
    return number, end


def _field(data: bytes, position: int) -> tuple[bytes | None, int]:
    """The bytes after a length, and their end, which may be beyond the data."""
    size, start = _number(data, position)
    return (None, start) if size < 0 else (data[start : start + size], start + size)
