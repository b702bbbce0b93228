"""KIP-467 read as tables: one line per batch, with the exact code, the culprits and the counters.

Section 2 of the KIP (broker side) as `records.validation` does it; what travels to old clients, and the client's half of the KIP, are
tested with the broker and the producer. Indices count from 0 within the batch.
"""

import gzip
from collections.abc import Callable
from typing import Any

import cramjam
import pytest

from chaffinch.errors import codes, exceptions
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import TopicPartition
from chaffinch.records.batch import TimestampType
from chaffinch.records.compression import Compression, compress, decompress
from chaffinch.records.old_formats.message_set import with_right_checksum
from chaffinch.records.validation import Accepted, Origin, Rejected, ValidationPolicy, validate
from chaffinch.records.validation_result import counted_once
from chaffinch.records.validation_rules import BATCH_RULES, RULE_BY_REASON
from tests.support.raw_batches import NOW_MS, raw_batch, record, varint, view

ORDERS = TopicPartition("orders", 0)
OFFSET, KEY, TIME = codes.INVALID_RECORD, codes.INVALID_COMPACTION_KEY, codes.INVALID_TIMESTAMP
NO_KEY = "NoKeyCompactedTopicRecordsPerSec"
MAGIC = "InvalidMagicNumberRecordsPerSec"
CRC = "InvalidMessageCrcRecordsPerSec"
NON_INCREASING = "NonIncreasingOffsetRecordsPerSec"
TIMESTAMP = "InvalidTimestampRecordsPerSec"
TOO_LARGE = "TooLargeBatchesPerSec"
SEQUENCE = "OutOfOrderSequenceBatchesPerSec"
HOUR_MS = 3_600_000
NEVER = 2**63 - 1
Change = Callable[[bytes], bytes]


def policy(**options: Any) -> ValidationPolicy:
    return ValidationPolicy(topic_partition=ORDERS, **{"is_compacted": True, **options})


def refused(batch: bytes | bytearray, origin: Origin = Origin.CLIENT, **options: Any) -> Rejected:
    verdict = validate(view(batch), policy(**options), origin, NOW_MS)
    assert isinstance(verdict, Rejected), verdict
    return verdict


def late(offset_delta: int, by_ms: int, **fields: Any) -> bytes:
    return record(offset_delta, timestamp_delta=by_ms, **fields)


# (name, topic options, records, code of the batch, culprits, counters)
RECORD_TABLE = [
    ("null key", {}, [record(0), record(1, key=None), record(2)], KEY, [(1, KEY)], {NO_KEY: 1}),
    ("null keys", {}, [record(0, key=None), record(1), record(2, key=None)], KEY, [(0, KEY), (2, KEY)], {NO_KEY: 2}),
    ("every key null", {}, [record(i, key=None) for i in range(3)], KEY, [(0, KEY), (1, KEY), (2, KEY)], {NO_KEY: 3}),
    ("offset repeated", {}, [record(0), record(0), record(2)], OFFSET, [(1, OFFSET)], {NON_INCREASING: 1}),
    ("offset skipped", {}, [record(0), record(2), record(3)], OFFSET, [(1, OFFSET), (2, OFFSET)], {NON_INCREASING: 2}),
    ("offsets swapped", {}, [record(0), record(2), record(1)], OFFSET, [(1, OFFSET), (2, OFFSET)], {NON_INCREASING: 2}),
    ("first offset not 0", {}, [record(1), record(1)], OFFSET, [(0, OFFSET)], {NON_INCREASING: 1}),
    ("offset negative", {}, [record(-1)], OFFSET, [(0, OFFSET)], {NON_INCREASING: 1}),
    ("an hour and 1 ms ahead", {}, [late(0, HOUR_MS), late(1, HOUR_MS + 1)], TIME, [(1, TIME)], {TIMESTAMP: 1}),
    ("behind", {"timestamp_before_max_ms": 500}, [late(0, -500), late(1, -501)], TIME, [(1, TIME)], {TIMESTAMP: 1}),
    ("no tolerance", {"timestamp_after_max_ms": 0}, [late(0, 0), late(1, 1)], TIME, [(1, TIME)], {TIMESTAMP: 1}),
    # Several kinds in one batch: the timestamp's code wins, every culprit is listed under its own.
    ("key and timestamp", {}, [record(0, key=None), late(1, 2 * HOUR_MS)], TIME, [(0, KEY), (1, TIME)], {NO_KEY: 1, TIMESTAMP: 1}),
    ("timestamp and key", {}, [late(0, 2 * HOUR_MS), record(1, key=None)], TIME, [(0, TIME), (1, KEY)], {NO_KEY: 1, TIMESTAMP: 1}),
    ("offset and key", {}, [record(3), record(1, key=None)], OFFSET, [(0, OFFSET), (1, KEY)], {NON_INCREASING: 1, NO_KEY: 1}),
    (
        "all three",
        {},
        [record(9), record(1), record(2, key=None), late(3, 2 * HOUR_MS)],
        TIME,
        [(0, OFFSET), (2, KEY), (3, TIME)],
        {NON_INCREASING: 1, NO_KEY: 1, TIMESTAMP: 1},
    ),
    # Several reasons for one record: the first in the order offset, key, timestamp, and only that one.
    ("one record, three reasons", {}, [late(4, 2 * HOUR_MS, key=None)], OFFSET, [(0, OFFSET)], {NON_INCREASING: 1}),
    ("one record, two reasons", {}, [late(0, 2 * HOUR_MS, key=None)], KEY, [(0, KEY)], {NO_KEY: 1}),
]


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize(
    ("options", "records", "code", "culprits", "counters"), [row[1:] for row in RECORD_TABLE], ids=[row[0] for row in RECORD_TABLE]
)
class TestRecordRules:
    """2.b: for most cases a single record is at fault; it is listed, and so is every other one of its batch."""

    def test_record_rule_has_code_culprits_and_counters(
        self,
        compression: Compression,
        options: dict[str, Any],
        records: list[bytes],
        code: ErrorCode,
        culprits: list[tuple[int, ErrorCode]],
        counters: dict[str, int],
    ) -> None:
        verdict = refused(raw_batch(records, compression=compression), **options)
        assert (verdict.code, [(culprit.batch_index, culprit.code) for culprit in verdict.culprits]) == (code, culprits)
        assert dict(verdict.counts) == counters

    def test_culprit_message_names_record_and_partition(
        self,
        compression: Compression,
        options: dict[str, Any],
        records: list[bytes],
        code: ErrorCode,
        culprits: list[tuple[int, ErrorCode]],
        counters: dict[str, int],
    ) -> None:
        verdict = refused(raw_batch(records, compression=compression), **options)
        for culprit in verdict.culprits:
            assert culprit.message.startswith(f"record {culprit.batch_index} of {len(records)} for orders-0 rejected: ")
        assert "orders-0" in verdict.message


class TestTimestampType:
    """ "validate that timestamp Type is CREATE_TIME": a client that says otherwise is refused, every record of its batch."""

    @pytest.mark.parametrize("topic_type", TimestampType)
    def test_log_append_time_from_a_client_is_refused(self, topic_type: TimestampType) -> None:
        batch = raw_batch([record(0), record(1, key=None), record(2)], attributes=0b1000)
        verdict = refused(batch, timestamp_type=topic_type)
        assert verdict.code is TIME
        assert [(culprit.batch_index, culprit.code) for culprit in verdict.culprits] == [(0, TIME), (1, KEY), (2, TIME)]
        assert dict(verdict.counts) == {TIMESTAMP: 2, NO_KEY: 1}
        assert "LogAppendTime" in verdict.culprits[0].message

    def test_topic_with_log_append_time_accepts_any_timestamp(self) -> None:
        batch = raw_batch([late(0, 10 * HOUR_MS), late(1, -(10**15))])
        assert isinstance(validate(view(batch), policy(timestamp_type=TimestampType.LOG_APPEND_TIME), Origin.CLIENT, NOW_MS), Accepted)


# (name, what the header says, code, counter)
BATCH_TABLE = [
    ("magic 0", {"magic": 0}, codes.INVALID_RECORD, MAGIC),
    ("magic 1", {"magic": 1}, codes.INVALID_RECORD, MAGIC),
    ("magic 3", {"magic": 3}, codes.CORRUPT_MESSAGE, MAGIC),
    ("magic -1", {"magic": -1}, codes.CORRUPT_MESSAGE, MAGIC),
    ("wrong CRC", {"crc": 0xDEADBEEF}, codes.CORRUPT_MESSAGE, CRC),
    ("base offset of a client", {"base_offset": 1}, codes.INVALID_RECORD, NON_INCREASING),
    ("negative last offset delta", {"last_offset_delta": -1}, codes.INVALID_RECORD, NON_INCREASING),
    ("no records", {"count": 0, "last_offset_delta": 0}, codes.INVALID_RECORD, NON_INCREASING),
    ("negative count", {"count": -1, "last_offset_delta": 0}, codes.INVALID_RECORD, NON_INCREASING),
    ("count above the offsets", {"count": 3, "last_offset_delta": 1}, codes.INVALID_RECORD, NON_INCREASING),
    ("count below the offsets", {"count": 2, "last_offset_delta": 2}, codes.INVALID_RECORD, NON_INCREASING),
    ("largest offset", {"count": 2, "last_offset_delta": 2**31 - 1}, codes.INVALID_RECORD, NON_INCREASING),
    ("control batch", {"attributes": 0b10_0000}, codes.INVALID_RECORD, NON_INCREASING),
    ("delete horizon", {"attributes": 0b100_0000}, codes.INVALID_RECORD, None),
    ("delete horizon under a codec", {"attributes": 0b100_0100}, codes.INVALID_RECORD, None),
    ("producer without sequence", {"producer_id": 5, "producer_epoch": 0}, codes.INVALID_RECORD, SEQUENCE),
    ("negative sequence", {"producer_id": 5, "producer_epoch": 0, "base_sequence": -2}, codes.INVALID_RECORD, SEQUENCE),
    ("codec 5", {"attributes": 5}, codes.INVALID_RECORD, None),
    ("codec 7", {"attributes": 7}, codes.INVALID_RECORD, None),
    # Each of these breaks a second rule too: the first in the order above is the answer.
    ("magic before CRC", {"magic": 3, "crc": 1}, codes.CORRUPT_MESSAGE, MAGIC),
    ("CRC before count", {"crc": 1, "count": 0}, codes.CORRUPT_MESSAGE, CRC),
    ("control batch before delete horizon", {"attributes": 0b110_0000}, codes.INVALID_RECORD, NON_INCREASING),
    ("delete horizon before sequence", {"attributes": 0b100_0000, "producer_id": 5}, codes.INVALID_RECORD, None),
    ("count before sequence", {"count": 0, "producer_id": 5}, codes.INVALID_RECORD, NON_INCREASING),
    ("sequence before codec", {"attributes": 5, "producer_id": 5}, codes.INVALID_RECORD, SEQUENCE),
]


class TestBatchRules:
    """A batch rule has no culprits and counts once: what a refused batch says of itself is not to be trusted."""

    @pytest.mark.parametrize(("header", "code", "counter"), [row[1:] for row in BATCH_TABLE], ids=[row[0] for row in BATCH_TABLE])
    def test_batch_rule_has_code_and_counter(self, header: dict[str, Any], code: ErrorCode, counter: str | None) -> None:
        verdict = refused(raw_batch(record(0) + record(1), **{"count": 2, **header}))
        assert (verdict.code, verdict.culprits, verdict.counts) == (code, (), counted_once(counter))
        assert verdict.message.startswith("batch for orders-0 rejected: ")

    def test_batch_of_exactly_the_largest_size_is_accepted(self) -> None:
        batch = raw_batch([record(0)])
        assert isinstance(validate(view(batch), policy(batch_bytes_max=len(batch)), Origin.CLIENT, NOW_MS), Accepted)

    def test_batch_one_byte_above_the_limit_is_refused(self) -> None:
        batch = raw_batch([record(0, key=None)])
        verdict = refused(batch, batch_bytes_max=len(batch) - 1)
        assert (verdict.code, verdict.culprits, verdict.counts) == (codes.MESSAGE_TOO_LARGE, (), ((TOO_LARGE, 1),))
        assert f"{len(batch)} bytes, max.message.bytes allows {len(batch) - 1} bytes" in verdict.message

    def test_crc_is_checked_before_the_size(self) -> None:
        assert refused(raw_batch([record(0)], crc=1), batch_bytes_max=10).code is codes.CORRUPT_MESSAGE

    def test_batch_rules_come_before_record_rules(self) -> None:
        assert refused(raw_batch([record(0, key=None)], attributes=0b10_0000)).culprits == ()

    @pytest.mark.parametrize("sequence", [0, 7, 2**31 - 1])
    def test_producer_with_a_sequence_is_accepted(self, sequence: int) -> None:
        batch = raw_batch([record(0)], producer_id=0, producer_epoch=0, base_sequence=sequence)
        assert isinstance(validate(view(batch), policy(), Origin.CLIENT, NOW_MS), Accepted)

    def test_sequence_without_producer_is_ignored(self) -> None:
        """kafkajs sends base sequence 0 without a producer id."""
        batch = raw_batch([record(0)], base_sequence=0, producer_epoch=0)
        assert isinstance(validate(view(batch), policy(), Origin.CLIENT, NOW_MS), Accepted)


# (name, payload, count): bytes that are no records, whatever codec they come in
INCONSISTENT_TABLE = [
    ("one record fewer", record(0) + record(1), 3),
    ("one record more", record(0) + record(1), 1),
    ("a byte too many", record(0) + b"\x00", 1),
    ("length off by one", record(0, length_off_by=1), 1),
    ("length off by -1", record(0, length_off_by=-1), 1),
    ("length off by 1000", record(0, length_off_by=1000) + record(1), 2),
    ("length 0", record(0) + b"\x00", 2),
    ("length -1", record(0) + varint(-1) + bytes(9), 2),
    ("length of eleven bytes", b"\x80" * 10 + b"\x01" + bytes(9), 1),
    ("null header key", record(0, headers=[(None, b"x")]), 1),
    ("a count of two billion", record(0), 2**31 - 1),
    ("no bytes", b"", 1),
]


def halves(write: Change) -> Change:
    """Two streams, one behind the other."""
    return lambda payload: bytes(write(payload[: len(payload) // 2])) + bytes(write(payload[len(payload) // 2 :]))


def ours(compression: Compression) -> Change:
    return lambda payload: bytes(compress(compression, payload))


def lz4_frame(*, linked: bool = False, checksum: bool = False, size: bool = False) -> Change:
    """As other writers make it: with the content's size or checksum, or linked blocks."""

    def write(payload: bytes) -> bytes:
        compressor = cramjam.lz4.Compressor(level=1, content_checksum=checksum, block_linked=linked)
        compressor.compress(payload)
        frame = bytes(compressor.finish())
        if size:
            head = bytes([frame[4] | 0b1000]) + frame[5:6] + len(payload).to_bytes(8, "little")
            frame = bytes(with_right_checksum(frame[:4] + head + b"\0" + frame[7:]))
        return frame

    return write


SECOND, LINKED = "a second stream follows", "its blocks depend on each other"
NOT_PORTABLE = [
    ("two lz4 frames", Compression.LZ4, halves(ours(Compression.LZ4)), SECOND),
    ("two lz4 frames with checksums", Compression.LZ4, halves(lz4_frame(checksum=True)), SECOND),
    ("two lz4 frames with sizes", Compression.LZ4, halves(lz4_frame(size=True)), SECOND),
    ("an lz4 frame and an empty one", Compression.LZ4, lambda payload: lz4_frame()(payload) + lz4_frame()(b""), SECOND),
    ("linked lz4 blocks", Compression.LZ4, lz4_frame(linked=True), LINKED),
    ("two gzip members", Compression.GZIP, halves(gzip.compress), SECOND),
    ("a gzip member and an empty one", Compression.GZIP, lambda payload: gzip.compress(payload) + gzip.compress(b""), SECOND),
    ("two gzip members without compression", Compression.GZIP, halves(lambda payload: gzip.compress(payload, 0)), SECOND),
]
PORTABLE = [
    ("lz4", Compression.LZ4, ours(Compression.LZ4)),
    ("lz4 with a checksum", Compression.LZ4, lz4_frame(checksum=True)),
    ("lz4 with a size", Compression.LZ4, lz4_frame(size=True)),
    ("gzip", Compression.GZIP, gzip.compress),
    ("gzip without compression", Compression.GZIP, lambda payload: gzip.compress(payload, 0)),
]


class TestPayloads:
    """Decision: a payload that does not decompress or parse, although its CRC is right, is INVALID_RECORD without culprits.

    CORRUPT_MESSAGE would make clients send the same bytes again for ever.
    """

    @pytest.mark.parametrize("compression", Compression)
    @pytest.mark.parametrize(("payload", "count"), [row[1:] for row in INCONSISTENT_TABLE], ids=[row[0] for row in INCONSISTENT_TABLE])
    def test_inconsistent_lengths_are_refused_under_every_codec(self, compression: Compression, payload: bytes, count: int) -> None:
        verdict = refused(raw_batch([payload], compression=compression, count=count))
        assert (verdict.code, verdict.culprits) == (codes.INVALID_RECORD, ())
        assert verdict.message.startswith("batch for orders-0 rejected: ")

    @pytest.mark.parametrize("compression", list(Compression)[1:])
    @pytest.mark.parametrize("payload", [b"", b"\x01", b"junk", bytes(100)], ids=["empty", "one", "junk", "zeros"])
    def test_payload_that_does_not_decompress_is_refused(self, compression: Compression, payload: bytes) -> None:
        verdict = refused(raw_batch(payload, compression=compression))
        assert (verdict.code, verdict.culprits, verdict.counts) == (codes.INVALID_RECORD, (), ())
        assert f"the {compression.name.lower()} payload cannot be decompressed" in verdict.message

    @pytest.mark.parametrize(("name", "compression", "change", "says"), NOT_PORTABLE, ids=[row[0] for row in NOT_PORTABLE])
    def test_payload_unreadable_by_other_clients_is_refused(self, name: str, compression: Compression, change: Change, says: str) -> None:
        """It decompresses here. Apache Kafka refuses lz4 so too, as it finds too few records."""
        payload = b"".join(record(index, value=b"v" * 1000) for index in range(200))
        stored = change(payload)
        assert bytes(decompress(compression, stored, len(payload))) == payload
        verdict = refused(raw_batch(stored, compression=compression, count=200, last_offset_delta=199))
        assert (verdict.code, verdict.culprits, verdict.counts) == (codes.INVALID_RECORD, (), ())
        assert f"other clients cannot read the {compression.name.lower()} payload: {says}" in verdict.message

    @pytest.mark.parametrize(("name", "compression", "change"), PORTABLE, ids=[row[0] for row in PORTABLE])
    def test_bytes_resembling_a_second_stream_are_accepted(self, name: str, compression: Compression, change: Change) -> None:
        payload = record(0, value=bytes(range(256)) + b"\x04\x22\x4d\x18" + gzip.compress(b"x"))
        batch = raw_batch(change(payload), compression=compression, count=1, last_offset_delta=0)
        assert isinstance(validate(view(batch), policy(), Origin.CLIENT, NOW_MS), Accepted)

    @pytest.mark.parametrize("compression", list(Compression)[1:])
    def test_decompression_is_bounded(self, compression: Compression) -> None:
        payload = record(0, value=bytes(10_000))
        batch = raw_batch([payload], compression=compression)
        assert isinstance(validate(view(batch), policy(decompressed_bytes_max=len(payload)), Origin.CLIENT, NOW_MS), Accepted)
        verdict = refused(batch, decompressed_bytes_max=len(payload) - 1)
        assert (verdict.code, verdict.culprits) == (codes.INVALID_RECORD, ())
        assert f"decompresses to more than {len(payload) - 1} bytes" in verdict.message

    def test_message_names_record_and_byte(self) -> None:
        verdict = refused(raw_batch([record(0), record(1, length_off_by=100)]))
        assert "record 1, byte 15: the record length goes beyond the payload" in verdict.message

    def test_wrong_count_is_refused_with_the_payload_size(self) -> None:
        verdict = refused(raw_batch([record(0), record(1)], count=3))
        assert verdict.message.endswith("larger than the payload can hold (3 records announced, 30 bytes of them)")

    def test_culprits_of_an_unreadable_batch_are_not_listed(self) -> None:
        assert refused(raw_batch([record(0, key=None), record(1, length_off_by=100)])).culprits == ()


# (culprits' records, numbering, number, indices listed)
RESPONSE_TABLE = [
    ([record(0, key=None)], "apache", 87, [0]),
    ([record(0, key=None)], "kip", 45, [0]),
    ([record(3)], "apache", 87, [0]),
    ([record(3)], "kip", 85, [0]),
    ([late(0, 2 * HOUR_MS)], "apache", 32, [0]),
    ([late(0, 2 * HOUR_MS)], "kip", 32, [0]),
    ([record(0, key=None), late(1, 2 * HOUR_MS), record(2, key=None)], "apache", 32, [0, 1, 2]),
    ([record(0, key=None), late(1, 2 * HOUR_MS), record(2, key=None)], "kip", 45, [0, 2]),
    ([late(0, 2 * HOUR_MS), record(1, key=None), record(5)], "kip", 32, [0]),
    ([record(0, key=None), record(5)], "apache", 87, [0, 1]),
    ([record(7), record(1, key=None)], "kip", 85, [0]),
]


class TestOneCodePerPartition:
    """2.b: "only indicate one error code", of the first error (`kip`), or Apache Kafka's choice, which lists all (`apache`)."""

    @pytest.mark.parametrize(("records", "numbering", "number", "indices"), RESPONSE_TABLE)
    def test_response_has_number_and_culprits(
        self, records: list[bytes], numbering: codes.Numbering, number: int, indices: list[int]
    ) -> None:
        verdict = refused(raw_batch(records))
        code, culprits = verdict.response_errors(numbering)
        assert (code.wire(numbering), [culprit.batch_index for culprit in culprits]) == (number, indices)
        assert all(culprit.message for culprit in culprits)

    @pytest.mark.parametrize("numbering", ["apache", "kip"])
    def test_batch_rule_has_a_message_and_no_culprits(self, numbering: codes.Numbering) -> None:
        verdict = refused(raw_batch([record(0)], crc=1))
        code, culprits = verdict.response_errors(numbering)
        assert (code.wire(numbering), culprits) == (2, ())
        assert "checksum" in verdict.message

    def test_batch_rule_has_kip_number_85(self) -> None:
        code, _ = refused(raw_batch([record(0)], count=2)).response_errors("kip")
        assert code.wire("kip") == 85

    @pytest.mark.parametrize("numbering", ["apache", "kip"])
    def test_codes_sent_with_culprits_are_not_retriable(self, numbering: codes.Numbering) -> None:
        for _, used, number, _ in RESPONSE_TABLE:
            if used == numbering:
                assert not codes.by_number(number, numbering, has_culprits=True).is_retriable


class TestMessages:
    """Seen and allowed value, with their units."""

    @pytest.mark.parametrize(
        ("options", "bad", "text"),
        [
            ({}, record(9), "record 1 of 3 for orders-0 rejected: offset delta 9, expected its index within the batch"),
            ({}, record(1, key=None), "record 1 of 3 for orders-0 rejected: null key, the topic is compacted and needs one"),
            (
                {},
                late(1, 7_200_001),
                f"record 1 of 3 for orders-0 rejected: timestamp {NOW_MS + 7_200_001} ms is 7200001 ms ahead of the broker, "
                "message.timestamp.after.max.ms allows 3600000 ms",
            ),
            (
                {"timestamp_before_max_ms": 1000},
                late(1, -1001),
                f"record 1 of 3 for orders-0 rejected: timestamp {NOW_MS - 1001} ms is 1001 ms behind the broker, "
                "message.timestamp.before.max.ms allows 1000 ms",
            ),
        ],
    )
    def test_message_names_the_single_culprit(self, options: dict[str, Any], bad: bytes, text: str) -> None:
        verdict = refused(raw_batch([record(0), bad, record(2)]), **options)
        assert (verdict.message, verdict.culprits[0].message) == (text, text)

    def test_message_names_the_first_three_culprits(self) -> None:
        verdict = refused(raw_batch([record(0), *(record(index, key=None) for index in range(1, 6))]))
        no_key = "null key, the topic is compacted and needs one"
        named = f"record 1: {no_key}; record 2: {no_key}; record 3: {no_key}"
        assert verdict.message == f"5 of 6 records for orders-0 rejected: {named}; and 2 more"


class TestTables:
    def test_every_batch_rule_has_a_line(self) -> None:
        seen = set()
        header: dict[str, Any]
        for _, header, _, _ in BATCH_TABLE:
            fields: dict[str, Any] = {"count": 2, **header}
            batch = view(raw_batch(record(0) + record(1), **fields))
            seen.add(next(rule for rule in BATCH_RULES if rule.broken(batch, policy())))
        assert {rule.broken.__name__ for rule in BATCH_RULES if rule not in seen} == {"is_too_large"}

    def test_every_record_rule_has_a_line(self) -> None:
        assert {rule.code for rule in RULE_BY_REASON.values()} == {code for row in RECORD_TABLE for _, code in row[4]}

    def test_invalid_record_is_an_api_exception_that_is_not_retried(self) -> None:
        """1: no longer a CorruptRecordException."""
        assert not issubclass(exceptions.InvalidRecordException, exceptions.CorruptRecordException)
        assert issubclass(exceptions.InvalidRecordException, exceptions.ApiException)
        assert not codes.INVALID_RECORD.is_retriable
