"""Record filter for log compaction: reads the keys of a batch, and rewrites it with some of its records.

The remaining batch keeps its offsets, sequences, producer and attributes, as in Kafka's `MemoryRecords.filterTo`. Base offset and last
offset delta stay even if their records are removed, so that neither the log nor a producer's sequence has an unexplained gap.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chaffinch.records import kernels
from chaffinch.records.batch_codec import Buffer, decompressed_payload
from chaffinch.records.batch_header import (
    ATTRIBUTE_COMPRESSION,
    ATTRIBUTE_DELETE_HORIZON,
    BATCH_BYTES_MAX,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    BatchView,
    TimestampType,
    write_crc,
)
from chaffinch.records.byte_columns import Bytes, Int64s
from chaffinch.records.compression import Compression, compress
from chaffinch.records.errors import BatchTooLarge, CorruptBatch, Fault
from chaffinch.records.kernels_reference.retain import GROWTH_BYTES_MAX

_RECORD_BYTES_MIN = 7
_SUMMARY_LENGTH = 4


class KeyedRecords(NamedTuple):
    """The records of a batch for compaction. `keys`: None for a null key; `key_bytes` is their total length. `has_value` is 0 for
    tombstones.

    `payload`: the decompressed records; `timestamps` in ms.
    """

    keys: list[bytes | None]
    key_bytes: int
    offsets: Int64s
    timestamps: Int64s
    has_value: Bytes
    payload: Buffer


def read_keys(view: BatchView, decompressed_bytes_max: int) -> KeyedRecords:
    """Read the keys of a batch in one pass, without copying values. Raises RecordsError for an unreadable batch."""
    header, payload = view.header, decompressed_payload(view, decompressed_bytes_max)
    data, count = np.frombuffer(payload, np.uint8), header.count
    if not 0 <= count <= len(data) // _RECORD_BYTES_MIN:
        raise CorruptBatch(Fault.RECORD_COUNT, detail=f"{count} records in {len(data)} bytes")
    offsets, timestamps, key_starts, value_starts, header_starts = np.empty((5, count), np.int64)
    key_offsets, value_offsets, header_offsets = np.empty((3, count + 1), np.int64)
    key_valid, has_value = np.empty((2, count), np.uint8)
    summary = np.zeros(_SUMMARY_LENGTH, np.int64)
    fault = kernels.choose(count).scan(
        data,
        count,
        header.base_offset,
        header.base_timestamp,
        offsets,
        timestamps,
        key_starts,
        key_offsets,
        key_valid,
        value_starts,
        value_offsets,
        has_value,
        header_starts,
        header_offsets,
        summary,
    )
    if fault:
        raise CorruptBatch(Fault(fault), int(summary[0]), int(summary[1]))
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        timestamps.fill(header.max_timestamp)
    ends = (key_starts + key_offsets[1:] - key_offsets[:-1]).tolist()
    whole = bytes(payload)
    keys: list[bytes | None] = [whole[start:end] for start, end in zip(key_starts.tolist(), ends, strict=True)]
    if summary[2]:
        keys = [key if is_valid else None for key, is_valid in zip(keys, key_valid.tolist(), strict=True)]
    return KeyedRecords(keys, int(key_offsets[-1]), offsets, timestamps, has_value, payload)


def retained(view: BatchView, records: KeyedRecords, keeps: Bytes, delete_horizon_ms: int | None) -> bytearray:
    """The batch with only the records whose `keeps` is 1, at least one of them. Compressed as before, with a new CRC.

    `delete_horizon_ms`: time from which tombstones and markers in it may be removed (KIP-534); it replaces the base timestamp.
    """
    header = view.header
    base_timestamp = header.base_timestamp if delete_horizon_ms is None else delete_horizon_ms
    shift = header.base_timestamp - base_timestamp
    data = np.frombuffer(records.payload, np.uint8)
    count = int(np.count_nonzero(keeps))
    out = np.empty(len(data) + (GROWTH_BYTES_MAX * count if shift else 0), np.uint8)
    size = kernels.choose(len(keeps)).retain(data, keeps, _wrapped(shift), out)
    if size < 0:
        raise CorruptBatch(Fault.RECORD_LENGTH)
    payload: Buffer = out[:size].data
    if header.compression is not Compression.NONE:
        payload = compress(header.compression, payload, None)
    batch = bytearray(HEADER_BYTES)
    batch += payload
    if len(batch) > BATCH_BYTES_MAX:
        raise BatchTooLarge(len(batch), BATCH_BYTES_MAX)
    is_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    changed = header._replace(
        length=len(batch) - LENGTH_END,
        attributes=header.attributes if delete_horizon_ms is None else header.attributes | ATTRIBUTE_DELETE_HORIZON,
        base_timestamp=base_timestamp,
        max_timestamp=header.max_timestamp if is_append_time else int(records.timestamps[keeps != 0].max()),
        count=count,
    )
    HEADER.pack_into(batch, 0, *changed)
    write_crc(batch)
    return batch


def emptied(view: BatchView) -> bytearray:
    """The batch without records: it preserves its offsets, sequences and producer."""
    attributes = view.header.attributes & ~(ATTRIBUTE_COMPRESSION | ATTRIBUTE_DELETE_HORIZON)
    batch = bytearray(HEADER_BYTES)
    changed = view.header._replace(
        length=HEADER_BYTES - LENGTH_END, attributes=attributes, base_timestamp=view.header.max_timestamp, count=0
    )
    HEADER.pack_into(batch, 0, *changed)
    write_crc(batch)
    return batch


def _wrapped(value: int) -> int:
    """`value` as a signed 64-bit number, wrapped."""
    return (value + 2**63) % 2**64 - 2**63
