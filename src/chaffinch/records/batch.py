"""Record batches of format 2 as bytes: the one door to everything about them.

`batch_header` reads and patches headers, `batch_codec` turns `RecordColumns` into batches and back, `control_batch` does the
markers of transactions; their names are passed on here. In this file: taking records out of a batch, splitting it, and looking at
single keys, all without reading the rest of the records.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from chaffinch.identifiers import NO_SEQUENCE, sequence_add
from chaffinch.records import kernels
from chaffinch.records.batch_codec import (
    DECOMPRESSED_BYTES_MAX,
    Buffer,
    Scanned,
    decode,
    decode_offsets,
    decompressed_payload,
    encode,
    first_view,
)
from chaffinch.records.batch_header import (
    BATCH_BYTES_MAX,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    BatchHeader,
    BatchView,
    TimestampType,
    patch_log_append_time,
    patch_max_timestamp,
    patch_offset,
    patch_producer,
    read_header,
    views,
    write_crc,
)
from chaffinch.records.byte_columns import ByteColumn, Bytes, Int64s, gather
from chaffinch.records.compression import Compression, compress
from chaffinch.records.control_batch import encode_control_batch, read_control
from chaffinch.records.faults import BatchTooLarge, CorruptBatch, Fault, RecordsError
from chaffinch.records.kernels_reference.retain import BASE, LARGEST, RENUMBERED_GROWTH_BYTES_MAX, TIMES_LENGTH

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
    "keys_at",
    "patch_log_append_time",
    "patch_max_timestamp",
    "patch_offset",
    "patch_producer",
    "payload_of",
    "read_control",
    "read_header",
    "split_in_half",
    "views",
    "without",
]


def payload_of(batch: BatchView | Buffer) -> Buffer:
    """The records of a batch, decompressed: for those who ask for several things of one batch. Raises RecordsError."""
    return decompressed_payload(_view(batch), DECOMPRESSED_BYTES_MAX)


def without(batch: BatchView | Buffer, indices: Iterable[int], payload: Buffer | None = None) -> bytearray | None:
    """The batch without the records at `indices` (0-based within it); None when no record is left. `payload`: if it is known.

    Codec, producer identity, base sequence, base offset and transactional bit stay; the records that stay are numbered anew
    from 0, so whoever sends the batch patches the sequence. IndexError for an index outside the batch. Of the records only lengths and
    deltas are looked at: whoever calls has made the batch, or checked it. CorruptBatch where these lie.
    """
    view = _view(batch)
    data, keeps = _all_kept(view, payload)
    gone = np.fromiter(indices, np.int64)
    outside = gone[(gone < 0) | (gone >= len(keeps))]
    if len(outside):
        raise IndexError(f"record {outside[0]} of {len(keeps)}")
    keeps[gone] = 0
    return _part(view.header, data, keeps, 0) if keeps.any() else None


def split_in_half(batch: BatchView | Buffer) -> list[bytearray]:
    """Two batches with the first and the second half of the records, sequences and offsets running on; one if it has one record."""
    view = _view(batch)
    data, keeps = _all_kept(view, None)
    half = (len(keeps) + 1) // 2
    keeps[half:] = 0
    return [_part(view.header, data, part, start) for start, part in ((0, keeps), (half, 1 - keeps)) if part.any()]


def keys_at(batch: BatchView | Buffer, indices: Int64s, bytes_max: int, payload: Buffer | None = None) -> ByteColumn:
    """The keys of the records at `indices` (ascending, within the batch), of each the first `bytes_max` bytes, copied. CorruptBatch where
    lengths lie. `payload`: if it is known."""
    data = np.frombuffer(payload_of(batch) if payload is None else payload, np.uint8)
    starts, lengths = np.empty((2, len(indices)), np.int64)
    found = kernels.choose(len(indices)).find_keys(data, indices, starts, lengths)
    if found < len(indices):
        raise CorruptBatch(Fault.KEY_LENGTH, int(indices[found]))
    offsets = np.zeros(len(indices) + 1, np.int64)
    lengths.clip(0, bytes_max).cumsum(out=offsets[1:])
    return ByteColumn(offsets, gather(data, starts, offsets), (lengths >= 0).view(np.uint8))


def _view(batch: BatchView | Buffer) -> BatchView:
    return batch if isinstance(batch, BatchView) else first_view(batch)


def _all_kept(view: BatchView, payload: Buffer | None) -> tuple[Bytes, Bytes]:
    """The payload, and a one for each of its records."""
    data, count = np.frombuffer(payload_of(view) if payload is None else payload, np.uint8), view.header.count
    if not Scanned.fits(count, len(data)):
        raise CorruptBatch(Fault.RECORD_COUNT, detail=f"{count} records in {len(data)} bytes")
    return data, np.ones(count, np.uint8)


def _part(header: BatchHeader, payload: Bytes, keeps: Bytes, start: int) -> bytearray:
    """A batch of the records whose `keeps` is 1, one at least, like the one that had `header`, `start` records after its first."""
    count = int(np.count_nonzero(keeps))
    times = np.empty(TIMES_LENGTH, np.int64)
    out = bytearray(HEADER_BYTES + len(payload) + RENUMBERED_GROWTH_BYTES_MAX * count)
    size = kernels.choose(len(keeps)).renumber(payload, keeps, header.base_timestamp, np.frombuffer(out, np.uint8)[HEADER_BYTES:], times)
    if size < 0:
        raise CorruptBatch(Fault.RECORD_LENGTH)
    if header.compression is Compression.NONE:
        del out[HEADER_BYTES + size :]
    else:
        out[HEADER_BYTES:] = compress(header.compression, memoryview(out)[HEADER_BYTES : HEADER_BYTES + size])
    if len(out) > BATCH_BYTES_MAX:
        raise BatchTooLarge(len(out), BATCH_BYTES_MAX)
    is_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    changed = header._replace(
        base_offset=header.base_offset + start,
        length=len(out) - LENGTH_END,
        last_offset_delta=count - 1,
        base_timestamp=int(times[BASE]),
        max_timestamp=header.max_timestamp if is_append_time else int(times[LARGEST]),
        base_sequence=NO_SEQUENCE if header.base_sequence == NO_SEQUENCE else sequence_add(header.base_sequence, start),
        count=count,
    )
    HEADER.pack_into(out, 0, *changed)
    write_crc(out)
    return out
