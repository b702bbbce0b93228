"""The 61 bytes of a header: fields, slicing, patching."""

import pickle
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaffinch.identifiers import NO_PRODUCER, ProducerIdentity
from chaffinch.records.batch_header import (
    CRC_POSITION,
    HEADER_BYTES,
    BatchHeader,
    TimestampType,
    patch_log_append_time,
    patch_max_timestamp,
    patch_offset,
    patch_producer,
    read_header,
    views,
    write_crc,
)
from chaffinch.records.compression import Compression
from chaffinch.records.errors import BatchTooLarge, CorruptBatch, Fault, InvalidColumn, RecordsError

PAYLOAD = bytes(range(40))
FIELDS = {
    "base_offset": 7,
    "length": HEADER_BYTES - 12 + len(PAYLOAD),
    "leader_epoch": 3,
    "magic": 2,
    "crc": 0,
    "attributes": 0,
    "last_offset_delta": 4,
    "base_timestamp": 1000,
    "max_timestamp": 2000,
    "producer_id": 99,
    "producer_epoch": 5,
    "base_sequence": 2**31 - 2,
    "count": 5,
}


def batch(**fields: Any) -> bytearray:
    """A batch of an opaque payload; its CRC is right unless it is given."""
    header = BatchHeader(**(FIELDS | fields))
    data = bytearray(struct.pack(">qiibIhiqqqhii", *header) + PAYLOAD)
    if "crc" not in fields:
        patch_max_timestamp(data, 0, header.timestamp_type, header.max_timestamp)
    return data


def test_fields_and_derived_properties_are_read() -> None:
    header = read_header(b"xx" + batch(), 2)
    assert header._replace(crc=0)._asdict() == FIELDS
    assert header.size == HEADER_BYTES + len(PAYLOAD)
    assert header.last_offset == 11
    assert header.identity == ProducerIdentity(99, 5)
    assert header.has_producer_id
    assert header.compression is Compression.NONE
    assert not header.is_transactional
    assert not header.is_control
    assert header.timestamp_type is TimestampType.CREATE_TIME


def test_last_sequence_wraps_and_absent_sequence_stays_absent() -> None:
    assert read_header(batch()).last_sequence == 2
    assert read_header(batch(base_sequence=-1)).last_sequence == -1
    assert not read_header(batch(producer_id=-1)).has_producer_id


@pytest.mark.parametrize(
    ("attributes", "name", "value"),
    [
        (1, "compression", Compression.GZIP),
        (4, "compression", Compression.ZSTD),
        (0b1000, "timestamp_type", TimestampType.LOG_APPEND_TIME),
        (0b1_0000, "is_transactional", True),
        (0b10_0000, "is_control", True),
    ],
)
def test_attribute_bits_are_read(attributes: int, name: str, value: Compression | TimestampType | bool) -> None:
    assert getattr(read_header(batch(attributes=attributes)), name) == value


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec_is_corrupt(codec: int) -> None:
    header = read_header(batch(attributes=codec))
    assert header.compression_id == codec
    with pytest.raises(CorruptBatch, match=f"codec {codec} does not exist"):
        _ = header.compression


def test_batches_are_sliced_without_copying() -> None:
    data = batch() + batch(base_offset=12)
    found = list(views(data))
    assert [view.header.base_offset for view in found] == [7, 12]
    assert all(view.crc_is_valid() and view.payload == PAYLOAD and view.size == len(data) // 2 for view in found)
    data[-1] ^= 1
    assert [view.crc_is_valid() for view in found] == [True, False]


@pytest.mark.parametrize(
    ("data", "fault", "position"),
    [
        (batch(length=-1), Fault.BATCH_LENGTH, 0),
        (batch(length=10), Fault.BATCH_LENGTH, 0),
        (batch(length=48), Fault.BATCH_LENGTH, 0),
        (batch(magic=1, length=13), Fault.BATCH_LENGTH, 0),
        (batch(length=2**31 - 1), Fault.BATCH_CUT_SHORT, 0),
        (batch()[:-1], Fault.BATCH_CUT_SHORT, 0),
        (batch()[:11], Fault.BATCH_CUT_SHORT, 0),
        (batch()[:16], Fault.BATCH_CUT_SHORT, 0),
        (batch()[:60], Fault.BATCH_CUT_SHORT, 0),
        (batch(magic=0), Fault.BATCH_MAGIC_OLD, 0),
        (batch(magic=1), Fault.BATCH_MAGIC_OLD, 0),
        (batch(magic=3), Fault.BATCH_MAGIC, 0),
        (batch(magic=-1), Fault.BATCH_MAGIC, 0),
        (batch(magic=9, length=20), Fault.BATCH_MAGIC, 0),
        (batch() + batch(magic=9), Fault.BATCH_MAGIC, len(batch())),
        (batch() + b"x", Fault.BATCH_CUT_SHORT, len(batch())),
    ],
)
def test_invalid_length_names_fault_and_position(data: bytearray, fault: Fault, position: int) -> None:
    with pytest.raises(CorruptBatch) as caught:
        list(views(data))
    assert (caught.value.fault, caught.value.position) == (fault, position)


@given(st.integers(0, 2 * len(batch())))
def test_incomplete_last_batch_can_be_skipped(size: int) -> None:
    data = (batch() + batch())[:size]
    assert len(list(views(data, may_be_cut_short=True))) == size // len(batch())


def test_empty_bytes_have_no_batches() -> None:
    assert list(views(b"")) == []


@pytest.mark.parametrize("position", [-1, 1, 102, 10**9])
def test_header_outside_the_bytes_is_cut_short(position: int) -> None:
    with pytest.raises(CorruptBatch) as caught:
        read_header(batch()[:HEADER_BYTES], position)
    assert caught.value.fault is Fault.BATCH_CUT_SHORT


def changed(before: BatchHeader, after: BatchHeader) -> set[str]:
    """The fields in which two headers differ, but for the CRC."""
    return {name for name in FIELDS if name != "crc" and getattr(before, name) != getattr(after, name)}


def test_patching_the_offset_keeps_the_crc() -> None:
    data = bytearray(b"pad" + batch())
    before, crc = read_header(data, 3), data[3 + CRC_POSITION : 3 + CRC_POSITION + 4]
    patch_offset(data, 3, 2**40, 17)
    after = read_header(data, 3)
    assert changed(before, after) == {"base_offset", "leader_epoch"}
    assert (after.base_offset, after.leader_epoch) == (2**40, 17)
    assert data[3 + CRC_POSITION : 3 + CRC_POSITION + 4] == crc


@pytest.mark.parametrize("is_transactional", [False, True])
@pytest.mark.parametrize("attributes", [0, 0b1_0000 | 4])
def test_producer_is_patched(is_transactional: bool, attributes: int) -> None:
    data = bytearray(b"pad" + batch(attributes=attributes))
    before = read_header(data, 3)
    patch_producer(data, 3, ProducerIdentity(2**40, 8), 77, is_transactional=is_transactional)
    (view,) = views(data[3:])
    assert view.crc_is_valid()
    assert view.header.identity == ProducerIdentity(2**40, 8)
    assert view.header.base_sequence == 77
    assert view.header.is_transactional == is_transactional
    assert view.header.compression_id == attributes & 7
    assert changed(before, view.header) <= {"attributes", "producer_id", "producer_epoch", "base_sequence"}
    patch_producer(data, 3, NO_PRODUCER, -1, is_transactional=False)
    assert not read_header(data, 3).has_producer_id


def test_log_append_time_is_patched_and_reverted() -> None:
    data = batch()
    patch_log_append_time(data, 0, 123_456)
    (view,) = views(data)
    assert view.crc_is_valid()
    assert (view.header.timestamp_type, view.header.max_timestamp) == (TimestampType.LOG_APPEND_TIME, 123_456)
    patch_max_timestamp(data, 0, TimestampType.CREATE_TIME, FIELDS["max_timestamp"])
    assert data == batch()


@pytest.mark.parametrize("payload_bytes", [32 * 1024 - 50, 32 * 1024 - 49, 100_000, 1_000_003])
def test_crc_of_a_long_batch_is_updated_from_the_header_alone(payload_bytes: int) -> None:
    long = b"pad" + batch(length=HEADER_BYTES - 12 + payload_bytes, crc=0)[:HEADER_BYTES] + bytes(range(251)) * (payload_bytes // 251 + 1)
    data = bytearray(long[: 3 + HEADER_BYTES + payload_bytes])
    write_crc(data, 3)
    patch_producer(data, 3, ProducerIdentity(2**40, 8), 77)
    patch_log_append_time(data, 3, 123_456)
    (view,) = views(data[3:])
    assert view.crc_is_valid()
    data[-1] ^= 1
    patch_producer(data, 3, ProducerIdentity(5, 6), 7)
    assert next(views(data[3:])).crc_is_valid() == (payload_bytes < 32 * 1024 - 49), "damage is not covered up"


def test_memoryviews_are_patched_in_place() -> None:
    data = batch()
    patch_producer(memoryview(data), 0, ProducerIdentity(1, 2), 3)
    data += b"still resizable"
    assert read_header(data).identity == ProducerIdentity(1, 2)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (CorruptBatch(Fault.KEY_LENGTH, 3, 70), "record 3, byte 70: the key length is not a varint, below -1, or goes beyond the record"),
        (CorruptBatch(Fault.BATCH_MAGIC, position=5, detail="magic 9"), "byte 5: the magic byte is not 0, 1 or 2 (magic 9)"),
        (CorruptBatch(Fault.PAYLOAD), "the payload cannot be decompressed"),
        (BatchTooLarge(10, 9), "a batch of 10 bytes is larger than the format allows, 9 bytes"),
        (InvalidColumn("key", "int32", ["binary", "string"]), "column 'key' is int32; allowed: binary, string"),
    ],
)
def test_errors_name_the_position_and_pickle(error: BatchTooLarge | CorruptBatch | InvalidColumn, text: str) -> None:
    assert str(error) == text
    copy = pickle.loads(pickle.dumps(error))
    assert copy == error
    assert vars(copy) == vars(error)
    assert hash(copy) == hash(error)
    assert isinstance(error, RecordsError)
    assert error != CorruptBatch(Fault.NONE)
