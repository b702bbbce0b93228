"""Codec of record batch format 2: `RecordColumns` to bytes and back.

Follows Kafka's `DefaultRecordBatch` and `MemoryRecordsBuilder`; everything after the header of a batch is compressed.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from chaffinch.identifiers import NO_PRODUCER, NO_SEQUENCE, ProducerIdentity
from chaffinch.records import kernels
from chaffinch.records.batch_header import (
    ATTRIBUTE_COMPRESSION,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_BYTES_MAX,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    BatchHeader,
    BatchView,
    TimestampType,
    views,
    write_crc,
)
from chaffinch.records.byte_columns import ByteColumn, Bytes, Int64s, gather
from chaffinch.records.columns import RECORD_BYTES_MIN, RecordColumns, measure
from chaffinch.records.compression import Compression, compress, decompress
from chaffinch.records.errors import BatchTooLarge, CorruptBatch, Fault
from chaffinch.records.uninitialized_buffer import uninitialized_buffer

DECOMPRESSED_BYTES_MAX = 128 << 20
"""Default limit of a decompressed payload: the broker's default for `max.decompressed.bytes`."""

Buffer: TypeAlias = bytes | bytearray | memoryview
_NO_SIZES: Int64s = np.empty(0, np.int64)
ALL_ROWS: Int64s = np.empty(0, np.int64)
_NO_LEADER_EPOCH = -1
_SUMMARY_LENGTH = 4


def encode(
    columns: RecordColumns,
    *,
    compression: Compression = Compression.NONE,
    level: int | None = None,
    identity: ProducerIdentity = NO_PRODUCER,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    base_offset: int = 0,
) -> bytearray:
    """One batch with these records: offset deltas 0, 1, 2, ..., base timestamp that of the first record.

    `level` is in the codec's own scale; None is its default. Raises ValueError without records, BatchTooLarge beyond 2 GiB.
    """
    attributes = int(compression) | (ATTRIBUTE_TRANSACTIONAL if is_transactional else 0)
    return encode_with_attributes(columns, attributes, level=level, identity=identity, base_sequence=base_sequence, base_offset=base_offset)


def encode_with_attributes(
    columns: RecordColumns, attributes: int, *, level: int | None, identity: ProducerIdentity, base_sequence: int, base_offset: int
) -> bytearray:
    """Like `encode`, with all attribute bits given."""
    if not columns.count:
        raise ValueError("a record batch holds at least one record")
    base_timestamp = int(columns.timestamps[0])
    compression = Compression(attributes & ATTRIBUTE_COMPRESSION)
    size = measure(columns, base_timestamp, _NO_SIZES)
    if HEADER_BYTES + size > BATCH_BYTES_MAX:
        raise BatchTooLarge(HEADER_BYTES + size, BATCH_BYTES_MAX)
    start = HEADER_BYTES if compression is Compression.NONE else 0
    out = uninitialized_buffer(start + size)
    end, written = _write_records(columns, base_timestamp, out, start)
    assert (end, written) == (len(out), columns.count), f"{end - start} bytes written, {size} measured: the columns were changed in between"
    out = _compress_if_needed(out, compression, level)
    times = (base_timestamp, int(columns.timestamps.max()))
    write_header(out, attributes, columns.count, times, identity=identity, base_sequence=base_sequence, base_offset=base_offset)
    return out


def encode_measured(
    columns: RecordColumns,
    size_max: int,
    *,
    rows: Int64s = ALL_ROWS,
    compression: Compression = Compression.NONE,
    level: int | None = None,
    is_transactional: bool = False,
) -> bytearray:
    """Like `encode`, for records that take at most `size_max` bytes in all, as measured by `RecordColumns.sizes`.

    They are read only once. `rows`: the records to write, in this order; empty means all. They are written without copying them first.
    """
    timestamps = columns.timestamps[rows] if len(rows) else columns.timestamps
    if not len(timestamps):
        raise ValueError("a record batch holds at least one record")
    base_timestamp = int(timestamps[0])
    out, count = _fill(columns, base_timestamp, size_max, compression, level, rows)
    assert count == len(timestamps), f"more than {size_max} bytes: the columns were changed in between"
    attributes = int(compression) | (ATTRIBUTE_TRANSACTIONAL if is_transactional else 0)
    write_header(out, attributes, count, (base_timestamp, int(timestamps.max())))
    return out


def encode_filling(
    columns: RecordColumns, size_max: int, *, compression: Compression = Compression.NONE, level: int | None = None
) -> tuple[bytearray, int]:
    """A batch of the first records that fit into `size_max` bytes, uncompressed and without the header, and their number, which may be
    0.

    Those records are read once, the others not at all. Raises ValueError like `measure`.
    """
    if not columns.count:
        raise ValueError("a record batch holds at least one record")
    base_timestamp = int(columns.timestamps[0])
    out, count = _fill(columns, base_timestamp, size_max, compression, level)
    if count:
        write_header(out, int(compression), count, (base_timestamp, int(columns.timestamps[:count].max())))
    return out, count


def _fill(
    columns: RecordColumns, base_timestamp: int, size_max: int, compression: Compression, level: int | None, rows: Int64s = ALL_ROWS
) -> tuple[bytearray, int]:
    """A batch without its header, and its number of records."""
    start = HEADER_BYTES if compression is Compression.NONE else 0
    out = uninitialized_buffer(start + size_max)
    end, count = _write_records(columns, base_timestamp, out, start, rows)
    if HEADER_BYTES + end - start > BATCH_BYTES_MAX:
        raise BatchTooLarge(HEADER_BYTES + end - start, BATCH_BYTES_MAX)
    has_spare_memory = end < len(out) * 7 // 8
    del out[end:]
    if has_spare_memory and compression is Compression.NONE:
        out = bytearray(out)  # A shortened bytearray keeps its allocation, which no memory accounting counts.
    return _compress_if_needed(out, compression, level), count


def _compress_if_needed(out: bytearray, compression: Compression, level: int | None) -> bytearray:
    """The records compressed after an empty header; uncompressed ones already have room for it."""
    return out if compression is Compression.NONE else bytearray(HEADER_BYTES) + compress(compression, memoryview(out), level)


def write_header(
    out: bytearray,
    attributes: int,
    count: int,
    times: tuple[int, int],
    *,
    identity: ProducerIdentity = NO_PRODUCER,
    base_sequence: int = NO_SEQUENCE,
    base_offset: int = 0,
) -> None:
    """Write the header and the checksum of a batch whose payload is complete. `times`: base and largest timestamp, ms."""
    HEADER.pack_into(
        out,
        0,
        base_offset,
        len(out) - LENGTH_END,
        _NO_LEADER_EPOCH,
        MAGIC,
        0,
        attributes,
        count - 1,
        *times,
        identity.producer_id,
        identity.epoch,
        base_sequence,
        count,
    )
    write_crc(out)


def _write_records(columns: RecordColumns, base_timestamp: int, out: bytearray, position: int, rows: Int64s = ALL_ROWS) -> tuple[int, int]:
    """Write the records that fit: end position, and their number. Raises ValueError for offsets that do not ascend within their data."""
    written = np.empty(1, np.int64)
    end = kernels.choose(columns.count).encode(
        columns.key_offsets,
        columns.key_data,
        columns.keys.validity,
        columns.value_offsets,
        columns.value_data,
        columns.values.validity,
        columns.timestamps,
        columns.header_offsets,
        columns.header_key_offsets,
        columns.header_key_data,
        columns.header_value_offsets,
        columns.header_value_data,
        columns.header_values.validity,
        base_timestamp,
        np.frombuffer(out, np.uint8),
        position,
        rows,
        written,
    )
    if end < 0:
        raise ValueError(f"the offsets of record {-end - 1} do not ascend within the data")
    return end, int(written[0])


def decode(batch: BatchView | Buffer, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX) -> RecordColumns:
    """The records of one batch, copied; `offsets` are their log offsets, including the gaps of a compacted batch.

    If `batch` is bytes, the batch at their beginning is read. Timestamps of a LOG_APPEND_TIME batch are its max timestamp, as consumers see
    them. Neither the CRC nor the offset deltas are checked: that is validation. Raises only RecordsError: CorruptBatch names the field, the
    record and the byte; compression errors come from `compression`. Memory: a copy of the bytes, and 66 bytes per record; a payload has at
    most one record for each seven bytes.
    """
    view = batch if isinstance(batch, BatchView) else first_view(batch)
    header, payload = view.header, decompressed_payload(view, decompressed_bytes_max)
    columns = _read_records(np.frombuffer(payload, np.uint8), header)
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        columns.timestamps.fill(header.max_timestamp)
    return columns


def decode_offsets(batch: BatchView | Buffer, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX) -> Int64s:
    """The offsets of the records; otherwise like `decode`."""
    offsets = decode(batch, decompressed_bytes_max=decompressed_bytes_max).offsets
    assert offsets is not None
    return offsets


def first_view(data: Buffer) -> BatchView:
    for view in views(data):
        return view
    raise CorruptBatch(Fault.BATCH_CUT_SHORT, position=0, detail="no bytes")


def decompressed_payload(view: BatchView, bytes_max: int) -> Buffer:
    """The decompressed records of a batch; the payload itself if it is not compressed."""
    compression = view.header.compression
    if compression is Compression.NONE:
        return view.payload
    return decompress(compression, view.payload, bytes_max)


class ScanBuffers:
    """Output arrays of `scan` and `scan_batches` for `count` records, converted to columns afterwards."""

    def __init__(self, count: int) -> None:
        # Separate allocations for arrays that are kept and those that are not.
        self._offsets, self._timestamps = np.empty(count, np.int64), np.empty(count, np.int64)
        self._key_offsets, self._value_offsets, self._header_offsets = (np.empty(count + 1, np.int64) for _ in range(3))
        self._key_valid, self._value_valid = np.empty(count, np.uint8), np.empty(count, np.uint8)
        self._key_starts, self._value_starts, self._header_starts = np.empty((3, count), np.int64)
        self._summary = np.zeros(_SUMMARY_LENGTH, np.int64)

    @staticmethod
    def fits(count: int, size: int) -> bool:
        """Whether `size` bytes can hold `count` records: checked before anything is allocated for them."""
        return 0 <= count <= size // RECORD_BYTES_MIN

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """The outputs, in the order of the loops' arguments."""
        keys = self._key_starts, self._key_offsets, self._key_valid
        values = self._value_starts, self._value_offsets, self._value_valid
        return self._offsets, self._timestamps, *keys, *values, self._header_starts, self._header_offsets, self._summary

    def columns(self, payload: Bytes, fault: int) -> RecordColumns:
        """The scanned records, copied out of the payload. Raises CorruptBatch for a fault."""
        summary = self._summary
        if fault:
            raise CorruptBatch(Fault(fault), int(summary[0]), int(summary[1]))
        header_keys, header_values = _read_headers(payload, self._header_starts, self._header_offsets)
        keys, values = gather(payload, self._key_starts, self._key_offsets), gather(payload, self._value_starts, self._value_offsets)
        return RecordColumns.of(
            ByteColumn(self._key_offsets, keys, self._key_valid if summary[2] else None),
            ByteColumn(self._value_offsets, values, self._value_valid if summary[3] else None),
            self._timestamps,
            header_offsets=self._header_offsets,
            header_keys=header_keys,
            header_values=header_values,
            offsets=self._offsets,
        )


def _read_records(payload: Bytes, header: BatchHeader) -> RecordColumns:
    count = header.count
    if not ScanBuffers.fits(count, len(payload)):
        raise CorruptBatch(Fault.RECORD_COUNT, detail=f"{count} records in {len(payload)} bytes")
    buffers = ScanBuffers(count)
    fault = kernels.choose(count).scan(payload, count, header.base_offset, header.base_timestamp, *buffers.arrays)
    return buffers.columns(payload, fault)


def _read_headers(payload: Bytes, header_starts: Int64s, header_offsets: Int64s) -> tuple[ByteColumn, ByteColumn]:
    count = int(header_offsets[-1])
    if not count:
        return ByteColumn.nulls(0), ByteColumn.nulls(0)
    key_offsets, value_offsets = np.empty(count + 1, np.int64), np.empty(count + 1, np.int64)
    value_valid = np.empty(count, np.uint8)
    key_starts, value_starts = np.empty((2, count), np.int64)
    summary = np.zeros(_SUMMARY_LENGTH, np.int64)
    fault = kernels.choose(len(header_starts)).scan_headers(
        payload, header_starts, header_offsets, key_starts, key_offsets, value_starts, value_offsets, value_valid, summary
    )
    if fault:
        raise CorruptBatch(Fault(fault), int(summary[0]), int(summary[1]))
    keys = ByteColumn(key_offsets, gather(payload, key_starts, key_offsets), None)
    values = ByteColumn(value_offsets, gather(payload, value_starts, value_offsets), value_valid if summary[3] else None)
    return keys, values
