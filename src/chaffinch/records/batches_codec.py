"""Several record batches decoded at once, into one set of columns: one call of the compiled loops however small the batches are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chaffinch.records import kernels
from chaffinch.records.batch_codec import DECOMPRESSED_BYTES_MAX, Buffer, Scanned, decode, decompressed_payload
from chaffinch.records.batch_header import BatchView, TimestampType
from chaffinch.records.byte_columns import Int64s
from chaffinch.records.columns import RecordColumns
from chaffinch.records.faults import CorruptBatch, Fault
from chaffinch.records.old_formats.reading import OldBatch


def decode_batches(batches: Sequence[BatchView], payload_bytes: int) -> tuple[RecordColumns, int]:
    """The records of the first batches, in order, copied, and how many batches: those after `payload_bytes` bytes uncompressed are left.

    Otherwise as `batch_codec.decode`; which batch is damaged is for that to say.
    """
    if len(batches) == 1 or any(isinstance(view, OldBatch) for view in batches):
        return RecordColumns.concat([view.columns if isinstance(view, OldBatch) else decode(view) for view in batches]), len(batches)
    payloads: list[Buffer] = []
    size = 0
    for view in batches:
        if size >= payload_bytes:
            break
        payloads.append(decompressed_payload(view, DECOMPRESSED_BYTES_MAX))
        size += len(payloads[-1])
    return _decode_together(batches[: len(payloads)], payloads), len(payloads)


def _decode_together(batches: Sequence[BatchView], payloads: Sequence[Buffer]) -> RecordColumns:
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
