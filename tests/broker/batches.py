"""Record batches for broker tests, right and wrong."""

from __future__ import annotations

from collections.abc import Sequence

from chaffinch.identifiers import NO_PRODUCER, NO_SEQUENCE, ProducerIdentity
from chaffinch.records.batch import encode
from chaffinch.records.batch_header import write_crc
from chaffinch.records.columns import RecordColumns
from chaffinch.records.compression import Compression

NOW_MS = 1_700_000_000_000


def batch_of(
    *values: bytes,
    keys: Sequence[bytes | None] | None = None,
    timestamps: Sequence[int] | None = None,
    identity: ProducerIdentity = NO_PRODUCER,
    sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    compression: Compression = Compression.NONE,
) -> bytearray:
    """One batch; keys b"k" and timestamps NOW_MS unless given."""
    keys = [b"k"] * len(values) if keys is None else keys
    timestamps = [NOW_MS] * len(values) if timestamps is None else timestamps
    columns = RecordColumns.from_lists(list(keys), list(values), list(timestamps))
    return encode(columns, compression=compression, identity=identity, base_sequence=sequence, is_transactional=transactional)


def changed(batch: bytearray, position: int, value: bytes, *, fix_crc: bool = True) -> bytearray:
    """The batch with other bytes at a position, and a right checksum unless `fix_crc` is false."""
    result = bytearray(batch)
    result[position : position + len(value)] = value
    if fix_crc:
        write_crc(result)
    return result
