"""Reader for messages of formats 0 and 1 in a fetch response, for topics older than format 2.

Each plain message, and each compressed one with its contents, becomes a `BatchView` with decoded records. In a compressed message of format
0 the inner offsets are log offsets; in format 1 they count up to the offset of the outer message (KIP-31). A plain loop with an object per
message: such logs are rare.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

import numpy as np

from chaffinch.records.batch_codec import DECOMPRESSED_BYTES_MAX
from chaffinch.records.batch_header import (
    ATTRIBUTE_LOG_APPEND_TIME,
    LENGTH_END,
    BatchHeader,
    BatchView,
    views,
)
from chaffinch.records.byte_columns import ByteColumn
from chaffinch.records.columns import RecordColumns
from chaffinch.records.errors import CorruptBatch, Fault
from chaffinch.records.kernels_reference.messages import FIELDS_POSITION, MESSAGE_BYTES_MIN, NO_TIMESTAMP, TIMESTAMP_BYTES
from chaffinch.records.old_formats.message_set import CODECS_OF_OLD_FORMATS, MessageSet, read_message_set, unwrapped

_LENGTH = Struct(">i")
_TIMESTAMP = Struct(">q")
_LATER_BATCHES = frozenset({Fault.BATCH_CUT_SHORT})


@dataclass(slots=True, eq=False)
class OldBatch(BatchView):
    """A message of format 0 or 1, or the contents of a compressed one. The header has the equivalent fields of a format 2 batch."""

    columns: RecordColumns


class _Message(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def mixed_views(data: bytes | bytearray | memoryview, *, checks_crc: bool) -> Iterator[BatchView]:
    """The batches of a fetch response, of any format. An incomplete last batch is skipped.

    Raises like `batch_header.views`, CorruptBatch for inconsistent messages, and CompressionError.
    """
    buffer = memoryview(data)
    position = 0
    while position < len(buffer):
        try:
            for view in views(buffer[position:], may_be_cut_short=True):
                yield view
                position += view.size
            return
        except CorruptBatch as corrupt:
            if corrupt.fault is not Fault.BATCH_MAGIC_OLD:
                raise
        try:
            message_set = read_message_set(buffer[position:])
        except CorruptBatch as corrupt:
            if corrupt.fault in _LATER_BATCHES:
                return
            raise
        yield _read(message_set, checks_crc)
        position += message_set.message_size


def _read(message_set: MessageSet, checks_crc: bool) -> OldBatch:
    if checks_crc and not message_set.crc_is_valid():
        raise CorruptBatch(Fault.PAYLOAD, detail=f"the checksum of the message at offset {message_set.offset} does not match its bytes")
    messages = _messages_in(message_set)
    if message_set.claims_append_time:
        timestamp = _TIMESTAMP.unpack_from(message_set.data, FIELDS_POSITION)[0]
        messages = [message._replace(timestamp=timestamp) for message in messages]
    offsets = np.array([message.offset for message in messages], np.int64)
    timestamps = np.array([message.timestamp for message in messages], np.int64)
    columns = RecordColumns.of(
        ByteColumn.of([message.key for message in messages]),
        ByteColumn.of([message.value for message in messages]),
        timestamps,
        offsets=offsets,
    )
    header = BatchHeader(
        base_offset=int(offsets[0]),
        length=message_set.message_size - LENGTH_END,
        leader_epoch=-1,
        magic=message_set.magic,
        crc=message_set.crc,
        attributes=ATTRIBUTE_LOG_APPEND_TIME if message_set.claims_append_time else 0,
        last_offset_delta=message_set.offset - int(offsets[0]),
        base_timestamp=int(timestamps[0]),
        max_timestamp=int(timestamps.max()),
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        count=len(messages),
    )
    return OldBatch(message_set.first, header, columns)


def _messages_in(message_set: MessageSet) -> list[_Message]:
    if not message_set.is_wrapper:
        return [_fields(message_set)]
    if message_set.codec_id not in map(int, CODECS_OF_OLD_FORMATS) or message_set.wrapped is None:
        raise CorruptBatch(
            Fault.PAYLOAD, detail=f"the compressed message at offset {message_set.offset} holds nothing that can be unpacked"
        )
    data = unwrapped(message_set, DECOMPRESSED_BYTES_MAX)
    found: list[_Message] = []
    position = 0
    while len(data) - position >= MESSAGE_BYTES_MIN:
        inner = read_message_set(data[position:])
        found.append(_fields(inner))
        position += inner.message_size
    if not found:
        raise CorruptBatch(Fault.RECORD_COUNT, detail=f"the compressed message at offset {message_set.offset} is empty")
    if message_set.magic == 0:
        return found
    base = message_set.offset - found[-1].offset
    return [message._replace(offset=base + message.offset) for message in found]


def _fields(message: MessageSet) -> _Message:
    position = FIELDS_POSITION
    timestamp = NO_TIMESTAMP
    if message.magic:
        timestamp = _TIMESTAMP.unpack_from(message.data, position)[0]
        position += TIMESTAMP_BYTES
    key, position = _field(message, position, Fault.MESSAGE_KEY_LENGTH)
    value, _ = _field(message, position, Fault.MESSAGE_VALUE_LENGTH)
    return _Message(message.offset, timestamp, key, value)


def _field(message: MessageSet, position: int, fault: Fault) -> tuple[bytes | None, int]:
    start = position + _LENGTH.size
    if start > message.message_size:
        raise CorruptBatch(fault, 0, position)
    (length,) = _LENGTH.unpack_from(message.data, position)
    if length > message.message_size - start:
        raise CorruptBatch(fault, 0, position)
    return (None, start) if length < 0 else (bytes(message.data[start : start + length]), start + length)
