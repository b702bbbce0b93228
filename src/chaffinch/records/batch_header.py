"""Header of record batch format 2, 61 bytes: reading it, slicing bytes into batches, patching it in place.

Records are not read. Layout from Kafka's `DefaultRecordBatch`:

    baseOffset i64 | length i32 | leaderEpoch i32 | magic i8 | crc u32 | attributes i16 | lastOffsetDelta i32 |
    baseTimestamp i64 | maxTimestamp i64 | producerId i64 | producerEpoch i16 | baseSequence i32 | count i32

`length` counts the bytes after it. The CRC-32C covers everything from `attributes` to the end, so base offset and leader epoch can be
patched without recomputing it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from chaffinch.identifiers import NO_PRODUCER, NO_SEQUENCE, ProducerIdentity, sequence_add
from chaffinch.records import kernels
from chaffinch.records.checksum import crc32c
from chaffinch.records.compression import Compression
from chaffinch.records.errors import CorruptBatch, Fault

HEADER = Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LENGTH_END = 12
"""End of the `length` field; it counts the bytes after this position."""
MAGIC = 2
MAGIC_POSITION = 16
CRC_POSITION = 17
CHECKED_POSITION = 21
"""Start of the bytes that the CRC covers: the attributes."""
BATCH_BYTES_MAX = 2**31 - 1 + LENGTH_END

ATTRIBUTE_COMPRESSION = 0b0000_0111
ATTRIBUTE_LOG_APPEND_TIME = 0b0000_1000
ATTRIBUTE_TRANSACTIONAL = 0b0001_0000
ATTRIBUTE_CONTROL = 0b0010_0000
ATTRIBUTE_DELETE_HORIZON = 0b0100_0000

_LONG_BYTES_MIN = 32 * 1024
"""From this size on, the checksum is adjusted after a header change instead of recomputed; at this size both take equally long."""
_COPIED_BYTES_MAX = 2048
"""Up to this size a copy of the checked bytes costs less than two views."""
_MIN_LENGTH = 14
"""Smaller than the smallest message of format 0; Kafka's slicer uses the same number (`LegacyRecord.RECORD_OVERHEAD_V0`)."""
_COMPRESSIONS = {int(compression): compression for compression in Compression}
_LENGTH = Struct(">i")
_CRC = Struct(">I")
_OFFSET_LENGTH_EPOCH = Struct(">qii")
_ATTRIBUTES = Struct(">h")
_TIMESTAMP = Struct(">q")
_PRODUCER = Struct(">qhi")
_new_tuple = tuple.__new__  # What `_make` calls, in a third of its time.
_MAX_TIMESTAMP_POSITION = 35
_PRODUCER_POSITION = 43


class TimestampType(IntEnum):
    """Source of a batch's timestamps: bit 3 of its attributes."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """The fields of a batch header as read. Nothing has been checked except that there are 61 bytes."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment] # Kafka's name; hides the unused tuple.count.

    @property
    def size(self) -> int:
        """Size of the whole batch in bytes."""
        return self.length + LENGTH_END

    @property
    def compression_id(self) -> int:
        """The codec number, 0 to 7; 5 to 7 are undefined."""
        return self.attributes & ATTRIBUTE_COMPRESSION

    @property
    def compression(self) -> Compression:
        """The codec; raises CorruptBatch for an undefined number."""
        try:
            return _COMPRESSIONS[self.attributes & ATTRIBUTE_COMPRESSION]
        except KeyError:
            raise CorruptBatch(Fault.PAYLOAD, detail=f"codec {self.compression_id} does not exist") from None

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType.LOG_APPEND_TIME if self.attributes & ATTRIBUTE_LOG_APPEND_TIME else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & ATTRIBUTE_TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & ATTRIBUTE_CONTROL)

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER.producer_id

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, wrapped at 2^31; -1 where the batch has none."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return sequence_add(self.base_sequence, self.last_offset_delta)


@dataclass(slots=True, eq=False)
class BatchView:
    """One batch inside a larger buffer, not a copy. Not frozen, because creating a frozen instance takes three times as long."""

    data: memoryview
    header: BatchHeader

    @property
    def payload(self) -> memoryview:
        """The records, possibly compressed."""
        return self.data[HEADER_BYTES:]

    @property
    def size(self) -> int:
        return len(self.data)

    def crc_is_valid(self) -> bool:
        return crc32c(self.data[CHECKED_POSITION:]) == self.header.crc


def read_header(data: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """The header that begins at `position`, unchecked.

    Raises CorruptBatch (BATCH_CUT_SHORT) if fewer than 61 bytes are left.
    """
    if position < 0 or len(data) - position < HEADER_BYTES:
        raise CorruptBatch(Fault.BATCH_CUT_SHORT, position=position, detail=f"{len(data) - position} bytes, a header has {HEADER_BYTES}")
    return unpack_header(data, position)


def unpack_header(data: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """Like `read_header`, if the caller has checked that 61 bytes are left."""
    return _new_tuple(BatchHeader, HEADER.unpack_from(data, position))


def views(data: bytes | bytearray | memoryview, *, may_be_cut_short: bool = False) -> Iterator[BatchView]:
    """The batches of `data`, one after the other, without copying.

    Only length and magic are checked, as needed for slicing; not the CRC, not the records. Raises CorruptBatch with one of the BATCH
    faults, in Kafka's order (length, available bytes, magic); a batch of format 0 or 1 is BATCH_MAGIC_OLD. With `may_be_cut_short`, an
    incomplete batch at the end is skipped instead: a fetch response may end in one.
    """
    buffer = memoryview(data)
    position, end = 0, len(buffer)
    while end - position >= HEADER_BYTES:
        header = unpack_header(buffer, position)
        size = header.length + LENGTH_END
        if header.magic != MAGIC or not HEADER_BYTES <= size <= end - position:
            break
        yield BatchView(buffer[position : position + size], header)
        position += size
    if position < end:
        claimed = _size_at(buffer, position)
        if not may_be_cut_short:
            raise CorruptBatch(Fault.BATCH_CUT_SHORT, position=position, detail=f"{end - position} bytes of {claimed or HEADER_BYTES}")


def _size_at(buffer: memoryview, position: int) -> int | None:
    """Claimed size of the batch at `position`; None if its length and magic are incomplete."""
    at_hand = len(buffer) - position
    if at_hand < LENGTH_END:
        return None
    length: int = _LENGTH.unpack_from(buffer, position + 8)[0]
    if length < _MIN_LENGTH:
        raise CorruptBatch(Fault.BATCH_LENGTH, position=position, detail=f"length {length}")
    if at_hand <= MAGIC_POSITION:
        return None
    magic = buffer[position + MAGIC_POSITION]
    if magic != MAGIC:
        fault = Fault.BATCH_MAGIC_OLD if magic in (0, 1) else Fault.BATCH_MAGIC
        raise CorruptBatch(fault, position=position, detail=f"magic {magic}")
    if length + LENGTH_END < HEADER_BYTES:
        raise CorruptBatch(Fault.BATCH_LENGTH, position=position, detail=f"length {length}")
    return length + LENGTH_END


def write_crc(buffer: bytearray | memoryview, position: int = 0) -> int:
    """Compute the CRC-32C of the batch at `position`, write it there and return it."""
    end = position + LENGTH_END + _LENGTH.unpack_from(buffer, position + 8)[0]
    if end - position < _COPIED_BYTES_MAX:
        crc = crc32c(buffer[position + CHECKED_POSITION : end])
    else:
        with memoryview(buffer) as view, view[position + CHECKED_POSITION : end] as checked:
            crc = crc32c(checked)
    _CRC.pack_into(buffer, position + CRC_POSITION, crc)
    return crc


def _checked_header(buffer: bytearray | memoryview, position: int) -> bytes:
    """The header bytes at `position` that the CRC covers, before a change; empty for a short batch, whose CRC is recomputed."""
    if _LENGTH.unpack_from(buffer, position + 8)[0] < _LONG_BYTES_MIN:
        return b""
    return bytes(buffer[position + CHECKED_POSITION : position + HEADER_BYTES])


def _write_crc_after_change(buffer: bytearray | memoryview, position: int, before: bytes) -> None:
    """`write_crc` after a header change; `before`: result of `_checked_header` before the change, when the CRC was right.

    A long payload is not read again: it transforms the difference of two checksums as the same number of zero bytes does.
    """
    if not before:
        write_crc(buffer, position)
        return
    (crc,) = _CRC.unpack_from(buffer, position + CRC_POSITION)
    difference = crc32c(before) ^ crc32c(_checked_header(buffer, position))
    payload_bytes = _LENGTH.unpack_from(buffer, position + 8)[0] + LENGTH_END - HEADER_BYTES
    _CRC.pack_into(buffer, position + CRC_POSITION, crc ^ kernels.choose(1).shift_crc(difference, payload_bytes))


def patch_offset(buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int, length: int | None = None) -> None:
    """Write base offset and leader epoch of the batch at `position`, which the CRC does not cover. `length`: that of its header, if
    known.
    """
    if length is None:
        (length,) = _LENGTH.unpack_from(buffer, position + 8)
    _OFFSET_LENGTH_EPOCH.pack_into(buffer, position, base_offset, length, leader_epoch)


def patch_producer(
    buffer: bytearray | memoryview, position: int, identity: ProducerIdentity, base_sequence: int, *, is_transactional: bool = True
) -> None:
    """Write producer id, epoch, first sequence and the transactional bit of the batch at `position`; a right CRC stays right."""
    before = _checked_header(buffer, position)
    attributes = _ATTRIBUTES.unpack_from(buffer, position + CHECKED_POSITION)[0] & ~ATTRIBUTE_TRANSACTIONAL
    if is_transactional:
        attributes |= ATTRIBUTE_TRANSACTIONAL
    _ATTRIBUTES.pack_into(buffer, position + CHECKED_POSITION, attributes)
    _PRODUCER.pack_into(buffer, position + _PRODUCER_POSITION, identity.producer_id, identity.epoch, base_sequence)
    _write_crc_after_change(buffer, position, before)


def patch_max_timestamp(buffer: bytearray | memoryview, position: int, timestamp_type: TimestampType, max_timestamp: int) -> None:
    """Write the timestamp type and the largest timestamp of the batch at `position`; a right CRC stays right.

    With LOG_APPEND_TIME, `max_timestamp` (ms) becomes the timestamp of every record, as in Kafka's `setMaxTimestamp`.
    """
    before = _checked_header(buffer, position)
    attributes = _ATTRIBUTES.unpack_from(buffer, position + CHECKED_POSITION)[0] & ~ATTRIBUTE_LOG_APPEND_TIME
    if timestamp_type is TimestampType.LOG_APPEND_TIME:
        attributes |= ATTRIBUTE_LOG_APPEND_TIME
    _ATTRIBUTES.pack_into(buffer, position + CHECKED_POSITION, attributes)
    _TIMESTAMP.pack_into(buffer, position + _MAX_TIMESTAMP_POSITION, max_timestamp)
    _write_crc_after_change(buffer, position, before)


def patch_log_append_time(buffer: bytearray | memoryview, position: int, timestamp_ms: int) -> None:
    """Set the append time of the batch at `position`, which becomes the timestamp of every record."""
    patch_max_timestamp(buffer, position, TimestampType.LOG_APPEND_TIME, timestamp_ms)
