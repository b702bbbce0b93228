"""Reader for the records of a fetch response: decodes consecutive batches into one set of columns, as many as requested.

Batches stay encoded until their records are read. Invisible batches (control batches, batches of aborted transactions) are skipped and
`position` moves past them. Batches of formats 0 and 1 are read as well. Several batches are decoded by one call of the compiled loops,
however small they are. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

import numpy as np

from chaffinch.records import kernels
from chaffinch.records.batch_codec import DECOMPRESSED_BYTES_MAX, Buffer, ScanBuffers, decode, decompressed_payload
from chaffinch.records.batch_header import MAGIC_POSITION, BatchView, TimestampType
from chaffinch.records.byte_columns import Int64s
from chaffinch.records.columns import RecordColumns
from chaffinch.records.control_batch import committed
from chaffinch.records.errors import CorruptBatch, Fault, RecordsError
from chaffinch.records.old_formats.reading import OldBatch, mixed_views

# Batches are decoded together up to this many bytes, both encoded and decompressed, regardless of the number of records requested.
PART_BYTES: Final = 8 << 20

_OFFSET_LENGTH: Final = Struct(">qi")
_LAST_DELTA: Final = Struct(">i")
_LAST_DELTA_POSITION: Final = 23
_LENGTH_END: Final = 12


class Piece(NamedTuple):
    """Records in the order of `columns.offsets`, from batches with one timestamp type and one leader epoch."""

    columns: RecordColumns
    timestamp_type: TimestampType
    leader_epoch: int


class FetchedRecords:
    """Reads `data`, the records of one partition, from offset `position` on.

    `aborted`: (producer id, first offset) of aborted transactions, as listed in the response. `position` is the offset to read next.
    RecordsError is raised by the read that reaches the damage, after everything before it was returned.
    """

    def __init__(
        self, data: bytes | bytearray | memoryview, position: int, *, aborted: Iterable[tuple[int, int]] = (), checks_crc: bool = True
    ) -> None:
        self.position = position
        self.leader_epoch = -1
        """Leader epoch of the batch before `position`; -1 before the first one."""
        self._checks_crc = checks_crc
        self._batches: Iterator[tuple[BatchView, bool]] = committed(mixed_views(data, checks_crc=checks_crc), aborted)
        self._next: tuple[BatchView, bool] | None = None
        self._piece: Piece | None = None
        self._row = 0
        self._position_after = position
        self._pending: list[BatchView] = []
        self._position_after_pending = position
        """Position after the batches that were taken together with others but decoded later, because of their total size."""
        self._error: RecordsError | None = None

    def read(self, records_max: int) -> Piece | None:
        """Between one and `records_max` records; None at the end."""
        while self._piece is None:
            if not self._advance(records_max):
                return None
        piece = self._piece
        columns = piece.columns
        assert columns.offsets is not None, "records that were read have offsets"
        stop = min(self._row + records_max, len(columns))
        part = columns if stop - self._row == len(columns) else columns.slice(self._row, stop)
        if stop == len(columns):
            self._piece, self._row, self.position = None, 0, self._position_after
        else:
            self._row = stop
            self.position = int(columns.offsets[stop - 1]) + 1
        self.leader_epoch = piece.leader_epoch
        return piece._replace(columns=part)

    def _advance(self, records_max: int) -> bool:
        """Decode the next batches; False at the end."""
        if self._error is not None:
            raise self._error
        group = self._next_group(records_max)
        if not group:
            if self._error is not None:
                raise self._error
            return False
        columns = self._decoded(group)
        assert columns.offsets is not None, "records that were read have offsets"
        first = int(np.searchsorted(columns.offsets, self.position))
        if first < len(columns):
            header = group[-1].header
            self._piece = Piece(columns.slice(first, len(columns)) if first else columns, header.timestamp_type, header.leader_epoch)
        else:
            self.position = self._position_after
        return True

    def _next_group(self, records_max: int) -> list[BatchView]:
        """Visible batches that can be decoded together. Sets the position after them."""
        if self._pending:
            pending, self._pending = self._pending, []
            self._position_after = self._position_after_pending
            return pending
        group: list[BatchView] = []
        count = size = 0
        while (entry := self._peek()) is not None and count < records_max and size < PART_BYTES:
            view, is_visible = entry
            header = view.header
            if header.last_offset >= self.position:
                if is_visible and group and not _are_compatible(group[-1], view):
                    break
                if not self._has_valid_crc(view):  # Invisible batches too: a wrong marker would hide or show others.
                    break
                if is_visible:
                    group.append(view)
                    count += header.count
                    size += view.size
                self._position_after = header.last_offset + 1
            self._next = None
        if not group:
            self.position = max(self.position, self._position_after)
        return group

    def _peek(self) -> tuple[BatchView, bool] | None:
        if self._next is None and self._error is None:
            try:
                self._next = next(self._batches, None)
            except RecordsError as error:
                self._error = error
        return self._next

    def _has_valid_crc(self, view: BatchView) -> bool:
        if not self._checks_crc or isinstance(view, OldBatch) or view.crc_is_valid():
            return True
        text = f"the checksum of the batch at offset {view.header.base_offset} does not match its bytes"
        self._error = CorruptBatch(Fault.PAYLOAD, detail=text)
        self._next = None
        return False

    def _decoded(self, group: list[BatchView]) -> RecordColumns:
        """The records of as many batches as may be decompressed together; if one is damaged, those of the batches before it."""
        try:
            columns, count = decode_batches(group, PART_BYTES)
        except RecordsError:
            decoded: list[RecordColumns] = []
            for view in group:
                try:
                    decoded.append(decode_batches([view], PART_BYTES)[0])
                except RecordsError as error:
                    self._error = error
                    break
                self._position_after = view.header.last_offset + 1
            if not decoded and self._error is not None:
                raise self._error from None
            return RecordColumns.concat(decoded)
        if count < len(group):
            self._pending, self._position_after_pending = group[count:], self._position_after
            self._position_after = group[count - 1].header.last_offset + 1
        return columns


def _are_compatible(one: BatchView, other: BatchView) -> bool:
    first, its = one.header, other.header
    return first.timestamp_type == its.timestamp_type and first.leader_epoch == its.leader_epoch


def whole_batches(records: bytes | bytearray | memoryview) -> tuple[int | None, int]:
    """The offset after the last whole batch (message, in formats 0 and 1), None without one; and the bytes of the whole batches.

    Brokers cut the records at the requested limit. Only lengths are read.
    """
    buffer = memoryview(records)
    position, last = 0, -1
    while len(buffer) - position > MAGIC_POSITION:
        _, length = _OFFSET_LENGTH.unpack_from(buffer, position)
        if length <= 0 or length > len(buffer) - position - _LENGTH_END:
            break
        last = position
        position += _LENGTH_END + length
    if last < 0:
        if len(buffer) <= MAGIC_POSITION or _OFFSET_LENGTH.unpack_from(buffer, 0)[1] > 0:
            return None, 0
        # The reader of the records reports the wrong length.
        return int(_OFFSET_LENGTH.unpack_from(buffer)[0]), len(buffer)
    base: int = _OFFSET_LENGTH.unpack_from(buffer, last)[0]
    if buffer[last + MAGIC_POSITION] < 2 or position - last < _LAST_DELTA_POSITION + _LAST_DELTA.size:
        return base + 1, position
    return base + int(_LAST_DELTA.unpack_from(buffer, last + _LAST_DELTA_POSITION)[0]) + 1, position


def decode_batches(batches: Sequence[BatchView], payload_bytes: int) -> tuple[RecordColumns, int]:
    """The records of the first batches, in order, copied, and the number of batches; batches after `payload_bytes` decompressed bytes
    are left.

    Otherwise like `batch_codec.decode`, which identifies a damaged batch.
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
    if int(counts.min()) < 0 or not ScanBuffers.fits(total, len(payload)):
        raise CorruptBatch(Fault.RECORD_COUNT, detail=f"{total} records in {len(payload)} bytes")
    buffers = ScanBuffers(total)
    fault = kernels.choose(total).scan_batches(
        payload,
        ends,
        counts,
        np.array([header.base_offset for header in headers], np.int64),
        np.array([header.base_timestamp for header in headers], np.int64),
        *buffers.arrays,
    )
    columns = buffers.columns(payload, fault)
    is_appended = np.array([header.timestamp_type is TimestampType.LOG_APPEND_TIME for header in headers])
    if is_appended.any():
        appended = np.repeat(np.array([header.max_timestamp for header in headers], np.int64), counts)
        np.copyto(columns.timestamps, appended, where=np.repeat(is_appended, counts))
    return columns
