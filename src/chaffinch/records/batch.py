"""Record batches of format 2 as bytes: the one door to everything about them.

`batch_header` reads and patches headers, `batch_codec` turns `RecordColumns` into batches and back, `control_batch` does the
markers of transactions; their names are passed on here. In this file: taking records out of a batch, and splitting it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from chaffinch.identifiers import NO_SEQUENCE, sequence_add
from chaffinch.records.batch_codec import Buffer, decode, decode_offsets, encode, encode_with_attributes, first_view
from chaffinch.records.batch_header import (
    HEADER_BYTES,
    BatchHeader,
    BatchView,
    TimestampType,
    patch_log_append_time,
    patch_max_timestamp,
    patch_offset,
    patch_producer,
    read_header,
    views,
)
from chaffinch.records.columns import RecordColumns
from chaffinch.records.compression import Compression
from chaffinch.records.control_batch import encode_control_batch, read_control
from chaffinch.records.faults import BatchTooLarge, CorruptBatch, RecordsError

__all__ = [
    "HEADER_BYTES",
    "BatchHeader",
    "BatchTooLarge",
    "BatchView",
    "Compression",
    "CorruptBatch",
    "RecordsError",
    "TimestampType",
    "decode",
    "decode_offsets",
    "encode",
    "encode_control_batch",
    "patch_log_append_time",
    "patch_max_timestamp",
    "patch_offset",
    "patch_producer",
    "read_control",
    "read_header",
    "split_in_half",
    "views",
    "without",
]


def without(batch: BatchView | Buffer, indices: Iterable[int], columns: RecordColumns | None = None) -> bytearray | None:
    """The batch without the records at `indices` (0-based within it); None when no record is left. `columns`: if it is decoded already.

    Codec, producer identity, base sequence, base offset and transactional bit stay; the records that stay are numbered anew
    from 0, so whoever sends the batch patches the sequence. IndexError for an index outside the batch.
    """
    view = batch if isinstance(batch, BatchView) else first_view(batch)
    columns = decode(view) if columns is None else columns
    stays = np.ones(columns.count, bool)
    for index in indices:
        if not 0 <= index < columns.count:
            raise IndexError(f"record {index} of {columns.count}")
        stays[index] = False
    kept = np.flatnonzero(stays)
    return _encode_like(view.header, columns.take(kept), 0) if len(kept) else None


def split_in_half(batch: BatchView | Buffer) -> list[bytearray]:
    """Two batches with the first and the second half of the records, sequences and offsets running on; one if it has one record."""
    view = batch if isinstance(batch, BatchView) else first_view(batch)
    columns = decode(view)
    half = (columns.count + 1) // 2
    parts = [(0, columns.slice(0, half)), (half, columns.slice(half, columns.count))]
    return [_encode_like(view.header, part, start) for start, part in parts if part.count]


def _encode_like(header: BatchHeader, columns: RecordColumns, start: int) -> bytearray:
    """A batch of `columns` with the attributes and identity of `header`, `start` records after its first."""
    has_sequence = header.base_sequence != NO_SEQUENCE
    out = encode_with_attributes(
        columns,
        header.attributes,
        level=None,
        identity=header.identity,
        base_sequence=sequence_add(header.base_sequence, start) if has_sequence else NO_SEQUENCE,
        base_offset=header.base_offset + start,
    )
    patch_offset(out, 0, header.base_offset + start, header.leader_epoch)
    return out
