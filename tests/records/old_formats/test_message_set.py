"""Message sets of formats 0 and 1: output of two other libraries' encoders is converted record by record; unreadable bytes are refused.

Rules, codes and culprits are a table of their own: `tests/kips/rule_table.py`.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from aiokafka.record.legacy_records import _LegacyRecordBatchBuilderPy as AiokafkaBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder as KafkaPythonBuilder

from chaffinch.errors import codes
from chaffinch.identifiers import TopicPartition
from chaffinch.records.batch import TimestampType, decode, views
from chaffinch.records.compression import Compression
from chaffinch.records.errors import CorruptBatch, Fault
from chaffinch.records.old_formats import validation as message_set_validation
from chaffinch.records.old_formats.message_set import read_message_set, with_right_checksum, xxhash32
from chaffinch.records.validation import Accepted, Rejected, ValidationPolicy
from tests.support.raw_batches import NOW_MS
from tests.support.raw_messages import compressed, message, message_set, wrapper
from tests.support.validated_sets import validate_set

ORDERS = TopicPartition("orders", 0)
NONE, GZIP, SNAPPY, LZ4 = list(Compression)[:4]
FORMATS = [(magic, codec) for magic in (0, 1) for codec in (NONE, GZIP, SNAPPY, LZ4)]
RECORDS = [(b"k", b"v"), (None, b"value" * 50), (b"", b""), (b"tombstone", None), (b"k" * 300, b"v" * 3000)]


def policy(**options: Any) -> ValidationPolicy:
    return ValidationPolicy(topic_partition=ORDERS, **options)


def accepted(data: bytes, **options: Any) -> Accepted:
    verdict = validate_set(read_message_set(data), policy(**options), NOW_MS)
    assert isinstance(verdict, Accepted), verdict
    return verdict


def rejected(data: bytes, **options: Any) -> Rejected:
    verdict = validate_set(read_message_set(data), policy(**options), NOW_MS)
    assert isinstance(verdict, Rejected), verdict
    return verdict


def rows(batch: memoryview | bytearray) -> list[tuple[bytes | None, bytes | None, int]]:
    """[(key, value, timestamp)] of a batch, which must be a whole one with a right checksum."""
    (view,) = views(batch)
    assert view.crc_is_valid()
    columns = decode(view)
    return [(columns.key(index), columns.value(index), int(columns.timestamps[index])) for index in range(columns.count)]


def expected_rows(magic: int, records: list[tuple[bytes | None, bytes | None]] = RECORDS) -> list[tuple[bytes | None, bytes | None, int]]:
    return [(key, value, NOW_MS + index if magic else -1) for index, (key, value) in enumerate(records)]


ENCODERS = {AiokafkaBuilder: [*FORMATS[:3], *FORMATS[4:]], KafkaPythonBuilder: [FORMATS[0], FORMATS[1], FORMATS[4], FORMATS[5]]}
"""Neither writes lz4 in format 0; kafka-python has no snappy and lz4 of its own."""


@pytest.mark.parametrize(
    ("builder", "magic", "codec"), [(builder, magic, codec) for builder, formats in ENCODERS.items() for magic, codec in formats]
)
def test_sets_of_other_encoders_are_converted(builder: Any, magic: int, codec: Compression) -> None:
    encoder = builder(magic, int(codec), 1 << 20)
    for index, (key, value) in enumerate(RECORDS):
        encoder.append(index, NOW_MS + index if magic else None, key, value)
    verdict = accepted(bytes(encoder.build()))
    assert rows(verdict.batch) == expected_rows(magic)
    (view,) = views(verdict.batch)
    assert view.header.compression is codec
    assert (verdict.count, verdict.max_timestamp) == (len(RECORDS), NOW_MS + len(RECORDS) - 1 if magic else -1)


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
@given(
    records=st.lists(st.tuples(st.none() | st.binary(max_size=50), st.none() | st.binary(max_size=300)), min_size=1, max_size=20),
    times=st.lists(st.integers(NOW_MS - 2**40, NOW_MS + 1000) | st.just(-1), min_size=20, max_size=20),
)
def test_any_records_are_converted(
    magic: int, codec: Compression, records: list[tuple[bytes | None, bytes | None]], times: list[int]
) -> None:
    messages = [message(key, value, magic=magic, offset=index, timestamp=times[index]) for index, (key, value) in enumerate(records)]
    verdict = accepted(message_set(messages, codec, magic=magic))
    times = times if magic else [-1] * len(times)
    assert rows(verdict.batch) == [(key, value, time) for (key, value), time in zip(records, times, strict=False)]
    assert verdict.max_timestamp == max(times[: len(records)])


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
@pytest.mark.parametrize("target", Compression)
def test_codec_of_the_topic_is_used(magic: int, codec: Compression, target: Compression) -> None:
    data = message_set([message(magic=magic, offset=index, timestamp=NOW_MS + index) for index in range(3)], codec, magic=magic)
    batch = accepted(data, compression=target).batch
    assert next(views(batch)).header.compression is target
    assert rows(batch) == expected_rows(magic, [(b"key", b"value")] * 3)


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_append_time_is_the_clock_of_the_broker(magic: int, codec: Compression) -> None:
    data = message_set([message(magic=magic, offset=index, timestamp=5 * index) for index in range(3)], codec, magic=magic)
    verdict = accepted(data, timestamp_type=TimestampType.LOG_APPEND_TIME, timestamp_before_max_ms=0)
    assert verdict.max_timestamp == NOW_MS
    assert rows(verdict.batch) == [(b"key", b"value", NOW_MS)] * 3


class TestSlicing:
    @pytest.mark.parametrize(
        ("data", "fault"),
        [
            (message()[:25], Fault.BATCH_CUT_SHORT),
            (message()[:-1], Fault.BATCH_CUT_SHORT),
            (message(size_off_by=1), Fault.BATCH_CUT_SHORT),
            (message(size_off_by=-(2**31)), Fault.BATCH_LENGTH),
            (message(b"", b"", magic=0, size_off_by=-10), Fault.BATCH_LENGTH),
            (message(magic=2), Fault.BATCH_MAGIC),
        ],
    )
    def test_set_without_a_whole_first_message_is_refused(self, data: bytes, fault: Fault) -> None:
        with pytest.raises(CorruptBatch) as refused:
            read_message_set(data)
        assert refused.value.fault is fault

    def test_a_later_message_that_cannot_be_sliced_is_corrupt(self) -> None:
        """As for batches of format 2: code 2 for nonsense in a size or magic, 87 where bytes are missing."""
        first = message()
        assert rejected(first + message(size_off_by=-(2**31))).code is codes.CORRUPT_MESSAGE
        assert rejected(first + message(magic=3)).code is codes.CORRUPT_MESSAGE
        assert rejected(first + message(size_off_by=1)).code is codes.INVALID_RECORD
        assert rejected(first + bytes(5)).code is codes.INVALID_RECORD


class TestWrappers:
    @pytest.mark.parametrize("offset", [0, 2, 7, 2**40])
    def test_wrapper_with_any_offset_is_accepted(self, offset: int) -> None:
        """0 from some clients, the last relative one from most; what is above names an absolute offset."""
        inner = [message(offset=index) for index in range(3)]
        assert accepted(wrapper(inner, GZIP, offset=offset)).count == 3

    def test_offsets_of_format_0_are_ignored(self) -> None:
        inner = [message(magic=0, offset=offset) for offset in (5, 5, -1)]
        assert accepted(wrapper(inner, GZIP, magic=0, offset=-3)).count == 3
        assert accepted(b"".join(inner)).count == 3

    def test_key_and_time_of_the_wrapper_are_ignored(self) -> None:
        inner = compressed(message(), GZIP)
        data = message(b"its key", inner, attributes=GZIP, timestamp=2**62)
        assert rows(accepted(data).batch) == [(b"key", b"value", NOW_MS)]

    @pytest.mark.parametrize(("value_length", "key_length"), [(-1, None), (5, None), (10**6, None), (None, 10**6), (None, -2)])
    def test_wrapper_with_wrong_lengths_is_rejected(self, value_length: int | None, key_length: int | None) -> None:
        data = message(b"", compressed(message(), GZIP), attributes=GZIP, value_length=value_length, key_length=key_length)
        verdict = validate_set(read_message_set(data), policy(), NOW_MS)
        if (value_length, key_length) == (None, -2):
            assert isinstance(verdict, Accepted), "any negative length is null, as in Kafka"
        else:
            assert isinstance(verdict, Rejected)
            assert verdict.code is codes.INVALID_RECORD
            assert "lengths that do not fill it" in verdict.message

    @pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
    def test_decompression_is_bounded(self, codec: Compression) -> None:
        inner = [message(value=bytes(10_000))]
        size = len(b"".join(inner))
        assert accepted(wrapper(inner, codec), decompressed_bytes_max=size).count == 1
        verdict = rejected(wrapper(inner, codec), decompressed_bytes_max=size - 1)
        assert (verdict.code, verdict.culprits) == (codes.INVALID_RECORD, ())
        assert f"decompresses to more than {size - 1} bytes" in verdict.message

    def test_nested_compressed_message_is_a_culprit(self) -> None:
        inner = [message(), wrapper([message()], SNAPPY, offset=1), message(offset=2)]
        verdict = rejected(wrapper(inner, GZIP))
        assert [(culprit.batch_index, culprit.code) for culprit in verdict.culprits] == [(1, codes.INVALID_RECORD)]
        assert "codec 2, expected 0: a compressed message comes alone" in verdict.message


class TestSizeAfterConversion:
    def test_converted_batch_above_the_limit_is_rejected(self) -> None:
        """Each message alone is small enough."""
        messages = [message(value=bytes(100)) for _ in range(10)]
        size = len(accepted(b"".join(messages)).batch)
        assert size > len(messages[0])
        assert accepted(b"".join(messages), batch_bytes_max=size).count == 10
        verdict = rejected(b"".join(messages), batch_bytes_max=size - 1)
        assert (verdict.code, verdict.counts) == (codes.MESSAGE_TOO_LARGE, (("TooLargeBatchesPerSec", 1),))
        expected = f"converted to format 2, a batch of {size} bytes, max.message.bytes allows {size - 1} bytes"
        assert verdict.message == f"batch for orders-0 rejected: {expected}"

    def test_size_is_checked_after_compression_by_the_topic(self) -> None:
        noise = [message(value=bytes(range(256)) * 4) for _ in range(10)]
        data = wrapper([message(value=bytes(range(256)) * 4, offset=index) for index in range(10)], GZIP)
        assert rejected(data, compression=NONE, batch_bytes_max=5000).code is codes.MESSAGE_TOO_LARGE
        assert accepted(b"".join(noise), compression=GZIP, batch_bytes_max=5000).count == 10

    def test_incompressible_batch_above_the_limit_is_rejected(self) -> None:
        """Messages that alone are small enough, and that nothing makes smaller."""
        rng = random.Random(3)
        messages = [message(value=rng.randbytes(1000)) for _ in range(10)]
        verdict = rejected(b"".join(messages), compression=GZIP, batch_bytes_max=5000)
        assert verdict.code is codes.MESSAGE_TOO_LARGE
        assert "converted to format 2, a batch of 10" in verdict.message


class TestMessages:
    def test_message_names_the_first_of_many_culprits(self) -> None:
        data = b"".join([message()] + [message(None)] * 5)
        verdict = rejected(data, is_compacted=True)
        assert verdict.message.startswith("5 of 6 records for orders-0 rejected: record 1: null key, ")
        assert verdict.message.endswith("; and 2 more")
        assert verdict.culprits[4].message == "record 5 of 6 for orders-0 rejected: null key, the topic is compacted and needs one"

    @pytest.mark.parametrize(
        ("bad", "text"),
        [
            (message(magic=0), "magic 0, expected 1 as in the set's first message"),
            (message(crc=0xAB), "checksum 000000ab, which does not match its bytes"),
            (message(attributes=3), "codec 3, expected 0: a compressed message comes alone"),
            (message(value=bytes(200)), "237 bytes, max.message.bytes allows 150 bytes"),
            (message(attributes=8), "timestamp type LogAppendTime, expected CreateTime from a client"),
        ],
    )
    def test_message_names_the_single_culprit(self, bad: bytes, text: str) -> None:
        assert rejected(message() + bad, batch_bytes_max=150).message == f"record 1 of 2 for orders-0 rejected: {text}"

    def test_message_names_the_unreadable_record(self) -> None:
        verdict = rejected(message() + message(key_length=9000))
        assert verdict.message == (
            "batch for orders-0 rejected: record 1, byte 68: the key length is below -1, or goes beyond the message (84 bytes of messages)"
        )


class TestFrameChecksums:
    """KIP-57: in format 0 whatever stands there, in format 1 the right one."""

    @pytest.mark.parametrize("checksum", [0, 1, 0x7F, 0xFF])
    def test_format_0_accepts_any_checksum(self, checksum: int) -> None:
        frame = bytearray(compressed(message(magic=0), LZ4))
        frame[6] = checksum
        assert accepted(wrapper(bytes(frame), LZ4, magic=0)).count == 1

    def test_format_1_refuses_a_wrong_checksum(self) -> None:
        frame = bytearray(compressed(message(), LZ4))
        assert accepted(wrapper(bytes(frame), LZ4)).count == 1
        frame[6] ^= 1
        assert rejected(wrapper(bytes(frame), LZ4)).code is codes.INVALID_RECORD

    @pytest.mark.parametrize(("data", "expected"), [(b"", 0x02CC5D05), (b"a", 0x550D7456), (b"abc", 0x32D153FF), (b"abcd", 0xA3643705)])
    def test_xxhash32(self, data: bytes, expected: int) -> None:
        assert xxhash32(data) == expected

    def test_longer_inputs_are_not_hashed(self) -> None:
        with pytest.raises(ValueError, match="16 bytes"):
            xxhash32(bytes(16))

    @pytest.mark.parametrize("data", [b"", b"\x04\x22\x4d\x18", b"\x04\x22\x4d\x18\x40", b"\x04\x22\x4d\x18\x40\x40", b"no lz4 frame"])
    def test_bytes_that_are_not_a_frame_are_unchanged(self, data: bytes) -> None:
        assert with_right_checksum(data) == data

    @pytest.mark.parametrize("flags", [0x60, 0x68, 0x61, 0x69])
    def test_checksum_position_follows_the_flags(self, flags: int) -> None:
        """With a content size, a dictionary id, both."""
        header = bytes([flags, 0x40]) + bytes(range(8 if flags & 8 else 0)) + bytes(range(4 if flags & 1 else 0))
        mended = with_right_checksum(b"\x04\x22\x4d\x18" + header + b"\x00" + b"rest")
        assert mended == b"\x04\x22\x4d\x18" + header + bytes([xxhash32(header) >> 8 & 0xFF]) + b"rest"


@given(st.lists(st.integers(0, 255), max_size=4), st.sampled_from(FORMATS), st.data())
def test_mutated_sets_are_accepted_or_rejected_and_nothing_else(
    values: list[int], form: tuple[int, Compression], data: st.DataObject
) -> None:
    magic, codec = form
    raw = bytearray(message_set([message(magic=magic, offset=index) for index in range(3)], codec, magic=magic))
    for value in values:
        raw[data.draw(st.integers(0, len(raw) - 1))] = value
    try:
        found = read_message_set(raw)
    except CorruptBatch:
        return
    verdict = validate_set(found, policy(is_compacted=True), NOW_MS)
    if isinstance(verdict, Accepted):
        assert len(rows(verdict.batch)) == verdict.count
    else:
        assert verdict.message
        assert [culprit.batch_index for culprit in verdict.culprits] == sorted({culprit.batch_index for culprit in verdict.culprits})


@given(st.binary(max_size=80), st.sampled_from([(magic, codec) for magic, codec in FORMATS if codec]))
def test_wrapper_with_any_bytes_is_accepted_or_rejected(inner: bytes, form: tuple[int, Compression]) -> None:
    magic, codec = form
    data = wrapper(bytes(compressed(inner, codec, magic)), codec, magic=magic)
    assert isinstance(validate_set(read_message_set(data), policy(), NOW_MS), Accepted | Rejected)


def test_oversized_set_is_rejected_before_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain records are measured before they are written."""
    data = wrapper([message(value=bytes(10_000), offset=index) for index in range(3)], GZIP)
    monkeypatch.setattr(message_set_validation, "write_header", None)
    assert rejected(data, compression=NONE, batch_bytes_max=len(data)).code is codes.MESSAGE_TOO_LARGE
