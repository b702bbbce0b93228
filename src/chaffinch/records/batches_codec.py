"""Several record batches decoded at once, into one set of columns: one call of the compiled loops however small the batches are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chaffinch.records import kernels
from chaffinch.records.batch_codec import DECOMPRESSED_BYTES_MAX, Scanned, decode, decompressed_payload
from chaffinch.records.batch_header import BatchView, TimestampType
from chaffinch.records.byte_columns import Int64s
from chaffinch.records.columns import RecordColumns
from chaffinch.records.faults import CorruptBatch, Fault
from chaffinch.records.old_formats import OldBatch


def decode_batches(batches: Sequence[BatchView]) -> RecordColumns:
    """The records of all batches, in order, copied. Otherwise as `batch_codec.decode`; which batch is damaged is for that to say."""
    if len(batches) > 1 and not any(isinstance(view, OldBatch) for view in batches):
        return _decode_together(batches)
    return RecordColumns.concat([view.columns if isinstance(view, OldBatch) else decode(view) for view in batches])


def _decode_together(batches: Sequence[BatchView]) -> RecordColumns:
    payloads = [decompressed_payload(view, DECOMPRESSED_BYTES_MAX) for view in batches]
    headers = [view.header for view in batches]
    counts = np.array([header.count for header in headers], np.int64)
    ends: Int64s = np.cumsum([len(payload) for payload in payloads], dtype=np.int64)
    payload = np.frombuffer(b"".join(payloads), np.uint8)
    total = int(counts.sum())
    if int(counts.min()) < 0 or not Scanned.fits(total, len(payload)):
        raise CorruptBatch(Fault.RECORD_COUNT, detail=f"{total} records in {len(payload)} bytes")
    scanned = Scanned(total)
    fault = kernels.choose(total).scan_batches(
        payload,
        ends,
        counts,
        np.array([header.base_offset for header in headers], np.int64),
        np.array([header.base_timestamp for header in headers], np.int64),
        *scanned.arrays,
    )
    columns = scanned.columns(payload, fault)
    is_appended = np.array([header.timestamp_type is TimestampType.LOG_APPEND_TIME for header in headers])
    if is_appended.any():
        appended = np.repeat(np.array([header.max_timestamp for header in headers], np.int64), counts)
        np.copyto(columns.timestamps, appended, where=np.repeat(is_appended, counts))
    return columns
