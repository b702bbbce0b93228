"""Record batches of format 2 as bytes: the one door to everything about them.

`batch_header` reads and patches headers, `batch_codec` turns `RecordColumns` into batches and back, `control_batch` does the
markers of transactions; their names are passed on here. In this file: taking records out of a batch, and splitting it: one pass
that reads lengths and deltas.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

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
    "TakenOut",
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
    "take_out",
    "views",
    "without",
]


class TakenOut(NamedTuple):
    """`keys`: of the records taken out, as much of each as was asked for. `rest`: a batch of the others, None when there are none."""

    keys: ByteColumn
    rest: bytearray | None


def take_out(batch: BatchView | Buffer, indices: Int64s, key_bytes_max: int = 0) -> TakenOut:
    """Part the records at `indices` (0-based within the batch, in any order) from the others, in one pass that reads lengths and deltas.

    Codec, producer identity, base sequence, base offset and transactional bit stay; the records that stay are numbered anew
    from 0, so whoever sends the rest patches the sequence. `keys`: in the order of the batch, of each the first `key_bytes_max` bytes.
    IndexError for an index outside the batch. Whoever calls has made the batch, or checked it; CorruptBatch where lengths lie.
    """
    header, payload, keeps = _all_kept(batch)
    outside = indices[(indices < 0) | (indices >= len(keeps))]
    if len(outside):
        raise IndexError(f"record {outside[0]} of {len(keeps)}")
    keeps[indices] = 0
    return _part(header, payload, keeps, 0, key_bytes_max)


def without(batch: BatchView | Buffer, indices: Iterable[int]) -> bytearray | None:
    """The batch without the records at `indices`; None when no record is left. As `take_out`."""
    return take_out(batch, np.fromiter(indices, np.int64)).rest


def split_in_half(batch: BatchView | Buffer) -> list[bytearray]:
    """Two batches with the first and the second half of the records, sequences and offsets running on; one if it has one record."""
    header, payload, keeps = _all_kept(batch)
    half = (len(keeps) + 1) // 2
    keeps[half:] = 0
    parts = (_part(header, payload, keeps, 0, 0).rest, _part(header, payload, 1 - keeps, half, 0).rest)
    return [part for part in parts if part is not None]


def _all_kept(batch: BatchView | Buffer) -> tuple[BatchHeader, Bytes, Bytes]:
    """The header, the payload, and a one for each of its records."""
    view = batch if isinstance(batch, BatchView) else first_view(batch)
    payload, count = np.frombuffer(decompressed_payload(view, DECOMPRESSED_BYTES_MAX), np.uint8), view.header.count
    if not Scanned.fits(count, len(payload)):
        raise CorruptBatch(Fault.RECORD_COUNT, detail=f"{count} records in {len(payload)} bytes")
    return view.header, payload, np.ones(count, np.uint8)


def _part(header: BatchHeader, payload: Bytes, keeps: Bytes, start: int, key_bytes_max: int) -> TakenOut:
    """Of the batch that has `header`: the records whose `keeps` is 1 as one like it, `start` records after its first, and others' keys."""
    count = int(np.count_nonzero(keeps))
    times = np.empty(TIMES_LENGTH, np.int64)
    key_starts, key_lengths = np.empty((2, len(keeps) - count), np.int64)
    out = bytearray(HEADER_BYTES + len(payload) + RENUMBERED_GROWTH_BYTES_MAX * count)
    records = np.frombuffer(out, np.uint8)[HEADER_BYTES:]
    size = kernels.choose(len(keeps)).take_out(payload, keeps, header.base_timestamp, records, times, key_starts, key_lengths)
    if size < 0:
        raise CorruptBatch(Fault.RECORD_LENGTH)
    del records  # While somebody looks into it, `out` has its length.
    key_offsets = np.zeros(len(key_starts) + 1, np.int64)
    key_lengths.clip(0, key_bytes_max).cumsum(out=key_offsets[1:])
    keys = ByteColumn(key_offsets, gather(payload, key_starts, key_offsets), (key_lengths >= 0).view(np.uint8))
    if not count:
        return TakenOut(keys, None)
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
    return TakenOut(keys, out)
