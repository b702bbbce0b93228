"""A batch of a few records, from lists straight to bytes: for these, making columns would take longer than encoding them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from chaffinch.records.batch_codec import write_header
from chaffinch.records.batch_header import HEADER_BYTES
from chaffinch.records.kernels_reference.varints import write_varint

FEW_RECORDS: Final = 8
"""Up to so many this is quicker, measured; it is right for any number."""


@lru_cache(maxsize=1024)
def _varint(value: int) -> bytes:
    """Remembered: lengths and differences of time are mostly the same few."""
    written = bytearray()
    write_varint(written, value)
    return bytes(written)


def encode_few(keys: Sequence[bytes | None], values: Sequence[bytes | None], timestamps: Sequence[int]) -> bytearray:
    """As `batch.encode` of the same records, which have no headers; not compressed, without a producer. At least one record."""
    out = bytearray(HEADER_BYTES)
    base = timestamps[0]
    for index, (key, value, timestamp) in enumerate(zip(keys, values, timestamps, strict=True)):
        record = bytearray(1)
        record += _varint(timestamp - base)
        record += _varint(index)
        for content in (key, value):
            record += _varint(-1 if content is None else len(content))
            if content:
                record += content
        record.append(0)
        out += _varint(len(record))
        out += record
    write_header(out, 0, len(keys), (base, max(timestamps)))
    return out
