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


_ZERO: Final = b"\0"
_ABSENT: Final = _varint(-1)


def encode_few(keys: Sequence[bytes | None], values: Sequence[bytes | None], timestamps: Sequence[int]) -> bytearray:
    """As `batch.encode` of the same records, which have no headers; not compressed, without a producer. At least one record."""
    out = bytearray(HEADER_BYTES)
    base = timestamps[0]
    for index, (key, value, timestamp) in enumerate(zip(keys, values, timestamps, strict=True)):
        key_size, value_size = _ABSENT if key is None else _varint(len(key)), _ABSENT if value is None else _varint(len(value))
        # Attributes, times, key, value, and the count of headers.
        record = b"".join((_ZERO, _varint(timestamp - base), _varint(index), key_size, key or b"", value_size, value or b"", _ZERO))
        out += _varint(len(record))
        out += record
    write_header(out, 0, len(keys), (base, max(timestamps)))
    return out
