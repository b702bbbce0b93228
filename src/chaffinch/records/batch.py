"""Record batches of format 2: the main module for reading, writing and changing them.

`batch_header` reads and patches headers, `batch_codec` converts `RecordColumns` to batches and back, `control_batch` handles transaction
markers; their names are re-exported here. This module removes records from a batch and splits it, in one pass that reads lengths and
deltas.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from chaffinch.identifiers import NO_SEQUENCE, sequence_add
from chaffinch.records import kernels
from chaffinch.records.batch_codec import (
    DECOMPRESSED_BYTES_MAX,
    Buffer,
    ScanBuffers,
    decode,
    decode_offsets,
    decompressed_payload,
    encode,
    encode_filling,
    encode_measured,
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
from chaffinch.records.errors import BatchTooLarge, CorruptBatch, Fault, RecordsError
from chaffinch.records.kernels_reference.retain import BASE, LARGEST, NOT_IN_PLACE, RENUMBERED_GROWTH_BYTES_MAX, TIMES_LENGTH

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
    "encode_filling",
    "encode_measured",
    "keys_at",
    "patch_log_append_time",
    "patch_max_timestamp",
    "patch_offset",
    "patch_producer",
    "read_control",
    "read_header",
    "remove_records_in_place",
    "split_in_half",
    "views",
    "without_records",
]


def keys_at(batch: BatchView | Buffer, indices: Int64s, key_bytes_max: int) -> ByteColumn:
    """The keys of the records at `indices` (0-based within the batch), in batch order, each cut to `key_bytes_max` bytes.

    Raises IndexError for an index outside the batch, CorruptBatch for wrong lengths.
    """
    _, payload, keeps = _selection(batch, indices)
    key_starts, key_lengths = np.empty((2, len(indices)), np.int64)
    count = kernels.choose(len(keeps)).find_keys(payload, keeps, key_starts, key_lengths)
    if count < 0:
        raise CorruptBatch(Fault.RECORD_LENGTH)
    key_starts, key_lengths = key_starts[:count], key_lengths[:count]
    key_offsets = np.zeros(count + 1, np.int64)
    key_lengths.clip(0, key_bytes_max).cumsum(out=key_offsets[1:])
    return ByteColumn(key_offsets, gather(payload, key_starts, key_offsets), (key_lengths >= 0).view(np.uint8))


def without_records(batch: BatchView | Buffer, indices: Iterable[int]) -> bytearray | None:
    """A copy of a batch without the records at `indices` (0-based within the batch, in any order); None if no record is left.

    Codec, producer identity, base sequence, base offset and transactional bit stay. The remaining records are renumbered from 0, so the
    caller patches the sequence before sending. One pass that reads lengths and deltas. The caller must have built or checked the batch.
    Raises IndexError for an index outside the batch, CorruptBatch for wrong lengths.
    """
    return _subset(*_selection(batch, np.fromiter(indices, np.int64)), 0)


def remove_records_in_place(batch: bytearray, indices: Int64s) -> bytearray | None:
    """Like `without_records`, but reuses `batch`: most uncompressed batches are changed in place and become shorter."""
    if _has_exported_views(batch):
        return without_records(batch, indices)
    header, payload, keeps = _selection(batch, indices)
    if header.compression is not Compression.NONE:
        return _subset(header, payload, keeps, 0)
    times, count = np.empty(TIMES_LENGTH, np.int64), int(np.count_nonzero(keeps))
    size = kernels.choose(len(keeps)).extract_in_place(payload, keeps, header.base_timestamp, times)
    if size == NOT_IN_PLACE:
        return _subset(header, payload, keeps, 0)
    if size < 0:
        raise CorruptBatch(Fault.RECORD_LENGTH)
    del payload  # A view of `batch` prevents resizing it.
    if not count:
        return None
    del batch[HEADER_BYTES + size :]
    return _with_header(batch, header, times, count, 0)


def _has_exported_views(data: bytearray) -> bool:
    """Whether views of these bytes exist: they may still be being sent."""
    try:
        data.append(data.pop())
    except BufferError:
        return True
    return False


def split_in_half(batch: BatchView | Buffer) -> list[bytearray]:
    """Two batches with the first and the second half of the records, with consecutive sequences and offsets; one if it has one record."""
    header, payload, keeps = _select_all(batch)
    half = (len(keeps) + 1) // 2
    keeps[half:] = 0
    parts = (_subset(header, payload, keeps, 0), _subset(header, payload, 1 - keeps, half))
    return [part for part in parts if part is not None]


def _select_all(batch: BatchView | Buffer) -> tuple[BatchHeader, Bytes, Bytes]:
    """The header, the decompressed payload, and a mask with 1 for each record."""
    view = batch if isinstance(batch, BatchView) else first_view(batch)
    payload, count = np.frombuffer(decompressed_payload(view, DECOMPRESSED_BYTES_MAX), np.uint8), view.header.count
    if not ScanBuffers.fits(count, len(payload)):
        raise CorruptBatch(Fault.RECORD_COUNT, detail=f"{count} records in {len(payload)} bytes")
    return view.header, payload, np.ones(count, np.uint8)


def _selection(batch: BatchView | Buffer, indices: Int64s) -> tuple[BatchHeader, Bytes, Bytes]:
    """Like `_select_all`, with 0 for the records at `indices`."""
    header, payload, keeps = _select_all(batch)
    outside = indices[(indices < 0) | (indices >= len(keeps))]
    if len(outside):
        raise IndexError(f"record {outside[0]} of {len(keeps)}")
    keeps[indices] = 0
    return header, payload, keeps


def _subset(header: BatchHeader, payload: Bytes, keeps: Bytes, start: int) -> bytearray | None:
    """A batch like that of `header` with the records whose `keeps` is 1; its numbering starts `start` records after the first one."""
    count = int(np.count_nonzero(keeps))
    times = np.empty(TIMES_LENGTH, np.int64)
    out = bytearray(HEADER_BYTES + len(payload) + RENUMBERED_GROWTH_BYTES_MAX * count)
    records = np.frombuffer(out, np.uint8)[HEADER_BYTES:]
    size = kernels.choose(len(keeps)).extract_records(payload, keeps, header.base_timestamp, records, times)
    if size < 0:
        raise CorruptBatch(Fault.RECORD_LENGTH)
    del records  # A view of `out` prevents resizing it.
    if not count:
        return None
    if header.compression is Compression.NONE:
        del out[HEADER_BYTES + size :]
    else:
        out[HEADER_BYTES:] = compress(header.compression, memoryview(out)[HEADER_BYTES : HEADER_BYTES + size])
    if len(out) > BATCH_BYTES_MAX:
        raise BatchTooLarge(len(out), BATCH_BYTES_MAX)
    return _with_header(out, header, times, count, start)


def _with_header(out: bytearray, header: BatchHeader, times: Int64s, count: int, start: int) -> bytearray:
    """Write the header of a partial batch into `out`: `count` records, `start` records after the first one of `header`."""
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
