"""Record batches: interoperability with other clients, removal of records, splitting, and invalid bytes."""

import struct
from collections.abc import Callable
from types import ModuleType
from typing import Any

import aiokafka.record.default_records as aiokafka_records
import kafka.record.default_records as kafka_records
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaffinch.identifiers import NO_PRODUCER, ProducerIdentity
from chaffinch.records import batch_codec
from chaffinch.records.batch import (
    HEADER_BYTES,
    BatchTooLarge,
    Compression,
    CorruptBatch,
    RecordsError,
    TimestampType,
    decode,
    decode_offsets,
    encode,
    encode_control_batch,
    keys_at,
    patch_log_append_time,
    patch_offset,
    read_control,
    read_header,
    remove_records_in_place,
    split_in_half,
    views,
    without_records,
)
from chaffinch.records.batch_header import BatchView, write_crc
from chaffinch.records.columns import RecordColumns
from chaffinch.records.compression import CompressionError
from chaffinch.records.errors import Fault
from tests.records.record_strategies import Row, columns_and_rows, columns_of, nullable_bytes, offsets_of, rows_of

# What Java's producer takes: other clients compute nothing sensible from other timestamps.
LEADER_EPOCH = slice(12, 16)
IDENTITY = ProducerIdentity(4711, 3)
plain_rows = st.lists(
    st.tuples(
        nullable_bytes,
        nullable_bytes,
        st.integers(0, 2**62),
        st.lists(st.tuples(st.text(max_size=5), nullable_bytes), max_size=3),
    ),
    min_size=1,
    max_size=10,
)


def view_of(data: bytearray) -> BatchView:
    (view,) = views(data)
    return view


def written_by(
    library: ModuleType,
    row_list: list[Row],
    codec: int = 0,
    is_transactional: bool = False,
    identity: ProducerIdentity = NO_PRODUCER,
    base_sequence: int = -1,
) -> bytearray:
    """The batch of another client: kafka-python's plain builder or aiokafka's compiled one."""
    arguments = {"magic": 2, "compression_type": codec, "is_transactional": is_transactional, "batch_size": 1 << 30}
    identity_arguments = {"producer_id": identity.producer_id, "producer_epoch": identity.epoch, "base_sequence": base_sequence}
    builder = library.DefaultRecordBatchBuilder(**arguments, **identity_arguments)
    for offset, (key, value, timestamp, headers) in enumerate(row_list):
        builder.append(offset, timestamp=timestamp, key=key, value=value, headers=headers)
    return bytearray(builder.build())


def read_by(library: ModuleType, data: bytearray) -> list[Row]:
    batch = library.DefaultRecordBatch(bytes(data))
    assert batch.validate_crc()
    return [(record.key, record.value, record.timestamp, list(record.headers)) for record in batch]


class TestOtherClients:
    @pytest.mark.parametrize("library", [kafka_records, aiokafka_records], ids=["kafka-python", "aiokafka"])
    @pytest.mark.parametrize("is_transactional", [False, True])
    @given(row_list=plain_rows)
    def test_uncompressed_bytes_equal_those_of_other_clients(
        self, library: ModuleType, is_transactional: bool, row_list: list[Row]
    ) -> None:
        """But for the leader epoch, which is -1 in Java's client and ours; the CRC does not cover it."""
        ours = encode(columns_of(row_list), identity=IDENTITY, base_sequence=9, is_transactional=is_transactional)
        theirs = written_by(library, row_list, 0, is_transactional, IDENTITY, 9)
        ours[LEADER_EPOCH] = theirs[LEADER_EPOCH]
        assert ours == theirs

    @pytest.mark.parametrize("codec", Compression)
    @given(row_list=plain_rows)
    def test_each_codec_is_readable_by_aiokafka_and_from_it(self, codec: Compression, row_list: list[Row]) -> None:
        assert read_by(aiokafka_records, encode(columns_of(row_list), compression=codec)) == row_list
        assert rows_of(decode(written_by(aiokafka_records, row_list, int(codec)))) == row_list

    @pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
    @given(row_list=plain_rows)
    def test_plain_and_gzip_are_readable_by_kafka_python_and_from_it(self, codec: Compression, row_list: list[Row]) -> None:
        """kafka-python needs further packages for the other codecs."""
        assert read_by(kafka_records, encode(columns_of(row_list), compression=codec)) == row_list
        assert rows_of(decode(written_by(kafka_records, row_list, int(codec)))) == row_list


class TestRoundTrip:
    @pytest.mark.parametrize("codec", Compression)
    @given(drawn=columns_and_rows(min_size=1), base_offset=st.integers(0, 2**62))
    def test_records_round_trip(self, codec: Compression, drawn: tuple[RecordColumns, list[Row]], base_offset: int) -> None:
        columns, row_list = drawn
        view = view_of(encode(columns, compression=codec, identity=IDENTITY, base_sequence=2**31 - 1, base_offset=base_offset))
        assert view.crc_is_valid()
        header = view.header
        assert (header.count, header.last_offset_delta, header.base_offset) == (len(row_list), len(row_list) - 1, base_offset)
        assert (header.identity, header.base_sequence, header.compression) == (IDENTITY, 2**31 - 1, codec)
        assert (header.base_timestamp, header.max_timestamp) == (row_list[0][2], max(row[2] for row in row_list))
        assert (header.leader_epoch, header.magic) == (-1, 2)
        decoded = decode(view)
        assert rows_of(decoded) == row_list
        assert offsets_of(decoded) == list(range(base_offset, base_offset + len(row_list)))

    @pytest.mark.parametrize("size", [8191, 8192, 2**20 - 1, 2**20])
    def test_values_at_a_varint_boundary_round_trip(self, size: int) -> None:
        row_list = [(b"k" * size, b"v" * size, 0, [("h" * size, b"w" * size)])]
        assert rows_of(decode(encode(columns_of(row_list)))) == row_list

    def test_compression_level_is_used(self) -> None:
        columns = RecordColumns.from_lists(None, [bytes(range(200)) * 50], [0])
        sizes = [len(encode(columns, compression=Compression.GZIP, level=level)) for level in (1, 9)]
        assert sizes[0] > sizes[1]

    def test_encoding_no_records_is_refused(self) -> None:
        with pytest.raises(ValueError, match="at least one record"):
            encode(columns_of([]))

    def test_batch_above_the_format_limit_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(batch_codec, "BATCH_BYTES_MAX", 100)
        with pytest.raises(BatchTooLarge, match=r"a batch of 1\d\d bytes .* 100 bytes"):
            encode(RecordColumns.from_lists(None, [b"x" * 80], [0]))

    def test_the_first_of_several_batches_is_decoded(self) -> None:
        first, second = (encode(RecordColumns.from_lists(None, [value], [0])) for value in (b"1", b"2"))
        assert decode(bytes(first + second)).value(0) == b"1"

    def test_decoded_columns_outlive_the_bytes(self) -> None:
        data = encode(RecordColumns.from_lists([b"k"], [b"v"], [0]))
        columns = decode(data)
        data[:] = bytes(len(data))
        assert rows_of(columns) == [(b"k", b"v", 0, [])]


def repacked(data: bytearray, payload: bytes | None = None, **fields: Any) -> bytearray:
    """The batch with another payload or other header fields, and a CRC that is right."""
    payload = bytes(data[HEADER_BYTES:]) if payload is None else payload
    header = read_header(data)._replace(length=HEADER_BYTES - 12 + len(payload), **fields)
    out = bytearray(struct.pack(">qiibIhiqqqhii", *header) + payload)
    write_crc(out)
    return out


def record(offset_delta: int, value: bytes = b"v", timestamp_delta: int = 0) -> bytes:
    body = bytes([0, 2 * timestamp_delta, 2 * offset_delta, 1, 2 * len(value)]) + value + b"\0"
    return bytes([2 * len(body)]) + body


class TestBatchesOfALog:
    def test_compacted_batch_keeps_offset_gaps(self) -> None:
        whole = encode(RecordColumns.from_lists(None, [b"v"], [5]))
        compacted = repacked(whole, record(3) + record(7), count=2, last_offset_delta=9, base_offset=100)
        assert offsets_of(decode(compacted)) == [103, 107]
        assert decode_offsets(compacted).tolist() == [103, 107]

    def test_batch_emptied_by_compaction_decodes_to_nothing(self) -> None:
        emptied = repacked(encode(RecordColumns.from_lists(None, [b"v"], [5])), b"", count=0, last_offset_delta=9)
        assert decode(emptied).count == 0
        assert decode_offsets(emptied).tolist() == []

    def test_log_append_time_applies_to_every_record(self) -> None:
        data = encode(RecordColumns.from_lists(None, [b"a", b"b"], [1, 2]))
        patch_log_append_time(data, 0, 99)
        assert decode(data).timestamps.tolist() == [99, 99]

    def test_lengths_below_minus_one_are_null_as_in_kafka(self) -> None:
        body = bytes([0, 0, 0, 3, 5, 2, 2]) + b"h" + bytes([9])
        data = repacked(encode(RecordColumns.from_lists(None, [b"v"], [5])), bytes([2 * len(body)]) + body)
        assert rows_of(decode(data)) == [(None, None, 5, [("h", None)])]


class TestWithoutRecords:
    @given(drawn=columns_and_rows(min_size=1), data=st.data(), codec=st.sampled_from(Compression))
    def test_remaining_records_are_as_encoded_alone(
        self, drawn: tuple[RecordColumns, list[Row]], data: st.DataObject, codec: Compression
    ) -> None:
        columns, row_list = drawn
        gone = data.draw(st.lists(st.integers(0, len(row_list) - 1)))
        whole = encode(columns, compression=codec, identity=IDENTITY, base_sequence=8, is_transactional=True, base_offset=40)
        patch_offset(whole, 0, 40, 6)
        rest = without_records(whole, gone)
        kept = [row for index, row in enumerate(row_list) if index not in gone]
        if not kept:
            assert rest is None
            return
        assert rest is not None
        view = view_of(rest)
        assert view.crc_is_valid()
        assert rows_of(decode(view)) == kept
        same = ("base_offset", "leader_epoch", "attributes", "producer_id", "producer_epoch", "base_sequence")
        assert all(getattr(view.header, name) == getattr(read_header(whole), name) for name in same)
        assert view.header.last_offset_delta == len(kept) - 1
        # Those bytes that the others would have had from the beginning.
        alone = encode(columns_of(kept), compression=codec, identity=IDENTITY, base_sequence=8, is_transactional=True, base_offset=40)
        patch_offset(alone, 0, 40, 6)
        assert rest == alone

    COUNT = 8300  # Offset deltas take one byte up to 63, two up to 8191, then three.

    @pytest.mark.parametrize("codec", Compression)
    @pytest.mark.parametrize(
        "gone",
        [[0], [COUNT - 1], [62, 63, 64, 65], range(0, COUNT, 100), range(COUNT - 1), range(1, COUNT), [5, *range(100, COUNT)]],
        ids=["first", "last", "adjacent", "each hundredth", "all but the last", "all but the first", "most"],
    )
    def test_deltas_are_rewritten_with_other_lengths(self, gone: list[int] | range, codec: Compression) -> None:
        columns = RecordColumns.from_lists(
            [None if index % 7 == 0 else b"%d" % index for index in range(self.COUNT)],
            [b"v" * (index % 200) for index in range(self.COUNT)],
            [1_700_000_000_000 + index * 37 % 20_000 for index in range(self.COUNT)],
        )
        whole = encode(columns, compression=codec, identity=IDENTITY, base_sequence=8)
        kept = columns.take(np.setdiff1d(np.arange(self.COUNT), gone))
        rest = without_records(whole, gone)
        assert rest == encode(kept, compression=codec, identity=IDENTITY, base_sequence=8)

    def test_wrong_offset_deltas_are_corrected(self) -> None:
        """They are culprits of another kind, which the broker names; the rebuilt batch does not have them."""
        record = bytes([0, 0, 0x80, 0x80, 0x80, 0x80, 0x08, 1, 2]) + b"v\0"
        rest = without_records(batch_with_payload(bytes([2 * len(record)]) + record, 1, Compression.NONE), [])
        assert rest is not None
        assert offsets_of(decode(rest)) == [0]

    def test_removing_nothing_gives_the_same_batch(self) -> None:
        whole = encode(RecordColumns.from_lists([b"k"], [b"v"], [3]), identity=IDENTITY, base_sequence=1)
        assert without_records(whole, []) == whole

    def test_log_append_time_is_kept(self) -> None:
        data = encode(RecordColumns.from_lists(None, [b"a", b"b"], [1, 2]))
        patch_log_append_time(data, 0, 99)
        rest = without_records(data, [0])
        assert rest is not None
        assert read_header(rest).timestamp_type is TimestampType.LOG_APPEND_TIME
        assert decode(rest).timestamps.tolist() == [99]

    @pytest.mark.parametrize("index", [-1, 2])
    def test_index_outside_the_batch_is_refused(self, index: int) -> None:
        with pytest.raises(IndexError, match=f"record {index} of 2"):
            without_records(encode(RecordColumns.from_lists(None, [b"a", b"b"], [1, 2])), [index])


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP], ids=["plain", "compressed"])
@pytest.mark.parametrize(
    "read",
    [without_records, remove_records_in_place, lambda batch, indices: keys_at(batch, indices, 5)],
    ids=["without_records", "remove_records_in_place", "keys_at"],
)
@pytest.mark.parametrize(
    ("payload", "count"),
    [(b"", 1), (b"\x0e\0\0\0\1\2v\0", 2), (b"\x10\0\0\0\1\2v\0", 1)],
    ids=["no record", "one record fewer", "cut short"],
)
def test_wrong_lengths_are_corrupt(
    read: Callable[[bytearray, npt.NDArray[np.int64]], object], payload: bytes, count: int, codec: Compression
) -> None:
    with pytest.raises(CorruptBatch):
        read(batch_with_payload(payload, count, codec), np.array([0], np.int64))


def test_remaining_records_above_the_format_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaffinch.records.batch.BATCH_BYTES_MAX", 61)
    with pytest.raises(BatchTooLarge):
        without_records(encode(RecordColumns.from_lists(None, [b"a", b"b"], [1, 2])), [0])


def test_record_beyond_the_header_count_is_corrupt() -> None:
    with pytest.raises(CorruptBatch):
        without_records(batch_with_payload(b"\x0e\0\0\0\1\2v\0" * 2, 1, Compression.NONE), [])


class TestKeysAt:
    @given(
        drawn=columns_and_rows(min_size=1), data=st.data(), codec=st.sampled_from(Compression), bytes_max=st.sampled_from([0, 5, 63, 400])
    )
    def test_keys_at_returns_truncated_keys(
        self, drawn: tuple[RecordColumns, list[Row]], data: st.DataObject, codec: Compression, bytes_max: int
    ) -> None:
        columns, row_list = drawn
        indices = data.draw(st.lists(st.integers(0, len(row_list) - 1), unique=True))
        keys = keys_at(encode(columns, compression=codec), np.array(indices, np.int64), bytes_max)
        expected = [row_list[index][0] for index in sorted(indices)]
        assert [keys.value(at) for at in range(keys.length)] == [None if key is None else key[:bytes_max] for key in expected]

    @pytest.mark.parametrize("index", [-1, 2])
    def test_index_outside_the_batch_is_refused(self, index: int) -> None:
        with pytest.raises(IndexError, match=f"record {index} of 2"):
            keys_at(encode(RecordColumns.from_lists(None, [b"a", b"b"], [1, 2])), np.array([index], np.int64), 5)


class TestRemoveRecordsInPlace:
    @given(drawn=columns_and_rows(min_size=1), data=st.data(), codec=st.sampled_from(Compression))
    def test_result_equals_without_records(self, drawn: tuple[RecordColumns, list[Row]], data: st.DataObject, codec: Compression) -> None:
        columns, row_list = drawn
        indices = data.draw(st.lists(st.integers(0, len(row_list) - 1), unique=True))
        batch = encode(columns, compression=codec)
        expected = without_records(batch, indices)
        assert remove_records_in_place(batch, np.array(indices, np.int64)) == expected

    @pytest.mark.parametrize(
        ("timestamps", "codec", "is_same"),
        [([7, 7, 9], Compression.NONE, True), ([6, 7, 9], Compression.NONE, False), ([7, 7, 9], Compression.GZIP, False)],
        ids=["in place", "another first timestamp", "compressed"],
    )
    def test_uncompressed_batch_with_same_base_is_edited_in_place(self, timestamps: list[int], codec: Compression, is_same: bool) -> None:
        batch = encode(RecordColumns.from_lists(None, [b"a", b"b", b"c"], timestamps), compression=codec)
        assert (remove_records_in_place(batch, np.array([0], np.int64)) is batch) is is_same

    def test_exported_bytes_are_not_changed(self) -> None:
        batch = encode(RecordColumns.from_lists(None, [b"a", b"b"], [1, 1]))
        before, looking = bytes(batch), memoryview(batch)
        rest = remove_records_in_place(batch, np.array([0], np.int64))
        assert (bytes(looking), rest) == (before, without_records(before, [0]))


class TestSplitInHalf:
    @given(drawn=columns_and_rows(min_size=1), codec=st.sampled_from(Compression), base_sequence=st.sampled_from([-1, 0, 2**31 - 1]))
    def test_halves_contain_all_records(self, drawn: tuple[RecordColumns, list[Row]], codec: Compression, base_sequence: int) -> None:
        columns, row_list = drawn
        whole = encode(columns, compression=codec, identity=IDENTITY, base_sequence=base_sequence, base_offset=10)
        parts = split_in_half(whole)
        assert len(parts) == min(2, len(row_list))
        assert [row for part in parts for row in rows_of(decode(part))] == row_list
        assert [offset for part in parts for offset in decode_offsets(part)] == list(range(10, 10 + len(row_list)))
        counts = [read_header(part).count for part in parts]
        assert counts[0] - counts[-1] in (0, 1)
        if len(parts) == 2:
            expected = -1 if base_sequence == -1 else (base_sequence + counts[0]) % 2**31
            assert read_header(parts[1]).base_sequence == expected
        assert read_header(parts[0]).base_sequence == base_sequence


class TestControlBatches:
    @pytest.mark.parametrize("is_commit", [False, True])
    def test_markers_are_encoded(self, is_commit: bool) -> None:
        data = encode_control_batch(is_commit, IDENTITY, 12, 5000, base_offset=77)
        view = view_of(data)
        assert len(data) == 78
        assert read_control(view) == (is_commit, 12)
        assert (view.header.is_control, view.header.is_transactional, view.header.compression) == (True, True, Compression.NONE)
        assert (view.header.identity, view.header.base_sequence, view.header.base_offset) == (IDENTITY, -1, 77)
        assert view.crc_is_valid()

    @pytest.mark.parametrize("library", [kafka_records, aiokafka_records], ids=["kafka-python", "aiokafka"])
    def test_markers_are_readable_by_other_clients(self, library: ModuleType) -> None:
        batch = library.DefaultRecordBatch(bytes(encode_control_batch(False, IDENTITY, 12, 5000)))
        assert batch.is_control_batch
        assert next(iter(batch)).key == b"\0\0\0\0"

    @pytest.mark.parametrize(
        ("key", "value", "found"),
        [
            (b"\0\0\0\2", b"\0\0\0\0\0\7", (None, -1)),
            (b"\0\1\0\1more", b"\0\1\0\0\0\7more", (True, 7)),
            (b"\0\0\0", b"\0\0\0\0\0\7", "key of 3 bytes"),
            (None, b"\0\0\0\0\0\7", "key of 0 bytes"),
            (b"\0\0\0\0", b"\0\0\0\0\0", "value of 5 bytes"),
            (b"\0\0\0\0", None, "value of 0 bytes"),
        ],
    )
    def test_unusual_markers_are_read_or_refused(
        self, key: bytes | None, value: bytes | None, found: str | tuple[bool | None, int]
    ) -> None:
        view = view_of(repacked(encode(RecordColumns.from_lists([key], [value], [0])), attributes=0b11_0000))
        if isinstance(found, tuple):
            assert read_control(view) == found
        else:
            with pytest.raises(CorruptBatch, match=found):
                read_control(view)

    def test_data_batch_is_refused_as_control_batch(self) -> None:
        one, two = (RecordColumns.from_lists(None, [b"v"] * count, [0] * count) for count in (1, 2))
        with pytest.raises(CorruptBatch, match="control bit 0"):
            read_control(view_of(encode(one)))
        with pytest.raises(CorruptBatch, match="2 records"):
            read_control(view_of(repacked(encode(two), attributes=0b11_0000)))


GOOD = record(0) + record(1)
BROKEN_PAYLOADS = [
    ("count too large", GOOD, 3, Fault.RECORD_COUNT, None, None),
    ("count negative", GOOD, -1, Fault.RECORD_COUNT, None, None),
    ("count beyond all memory", GOOD, 2**31 - 1, Fault.RECORD_COUNT, None, None),
    ("count too small", GOOD, 1, Fault.TRAILING_BYTES, 1, 8),
    ("bytes after the last", GOOD + b"x", 2, Fault.TRAILING_BYTES, 2, 16),
    ("length of eleven bytes", b"\xff" * 11 + GOOD, 2, Fault.RECORD_LENGTH, 0, 0),
    ("length negative", b"\x01" + GOOD, 2, Fault.RECORD_LENGTH, 0, 0),
    ("length beyond the payload", record(0) + b"\x10" + record(1)[1:], 2, Fault.RECORD_CUT_SHORT, 1, 8),
    ("length beyond 2 GiB", b"\xfe\xff\xff\xff\x0f" + GOOD, 2, Fault.RECORD_CUT_SHORT, 0, 0),
    ("length too small", b"\x0c" + record(0)[1:] + record(1), 2, Fault.HEADER_COUNT, 0, 7),
    ("no room for attributes", b"\x00" + GOOD, 2, Fault.TIMESTAMP_DELTA, 0, 2),
    ("timestamp delta without end", b"\x14\0" + b"\x80" * 9 + b"\0" * 8, 1, Fault.TIMESTAMP_DELTA, 0, 2),
    ("offset delta of six bytes", b"\x16\0\0" + b"\x80" * 5 + b"\0\1\1\0", 1, Fault.OFFSET_DELTA, 0, 3),
    ("key beyond the record", b"\x0e\0\0\0\x08\1\1\0", 1, Fault.KEY_LENGTH, 0, 4),
    ("value beyond the record", b"\x0e\0\0\0\1\x06\1\0", 1, Fault.VALUE_LENGTH, 0, 5),
    ("headers negative", b"\x0e\0\0\0\1\2v\1", 1, Fault.HEADER_COUNT, 0, 7),
    ("headers beyond the record", b"\x0e\0\0\0\1\2v\x02", 1, Fault.HEADER_COUNT, 0, 7),
    ("header key null", b"\x10\0\0\0\1\1\x02\1\1", 1, Fault.HEADER_KEY_LENGTH, 0, 7),
    ("header value beyond the record", b"\x10\0\0\0\1\1\x02\0\x02", 1, Fault.HEADER_VALUE_LENGTH, 0, 8),
    ("a byte of no field", b"\x10\0\0\0\1\2v\0x", 1, Fault.RECORD_LENGTH_UNUSED, 0, 8),
]


class TestDamagedBytes:
    @pytest.mark.parametrize(
        ("name", "payload", "count", "fault", "index", "position"), BROKEN_PAYLOADS, ids=[row[0] for row in BROKEN_PAYLOADS]
    )
    @pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
    def test_damage_names_field_record_and_byte(
        self, name: str, payload: bytes, count: int, fault: Fault, index: int | None, position: int | None, codec: Compression
    ) -> None:
        data = batch_with_payload(payload, count, codec)
        with pytest.raises(CorruptBatch) as caught:
            decode(data)
        assert (caught.value.fault, caught.value.record_index, caught.value.position) == (fault, index, position)

    @pytest.mark.parametrize("codec", [codec for codec in Compression if codec is not Compression.NONE])
    def test_decompression_is_bounded(self, codec: Compression) -> None:
        columns = RecordColumns.from_lists(None, [bytes(100_000)], [0])
        data = encode(columns, compression=codec)
        assert decode(data, decompressed_bytes_max=101_000).count == 1
        with pytest.raises(CompressionError, match="more than 99000 bytes"):
            decode(data, decompressed_bytes_max=99_000)

    @pytest.mark.parametrize("codec", range(1, 8))
    def test_payload_of_another_codec_is_refused(self, codec: int) -> None:
        with pytest.raises(RecordsError):
            decode(repacked(encode(RecordColumns.from_lists(None, [b"v" * 50], [0])), attributes=codec))

    @given(drawn=columns_and_rows(min_size=1), codec=st.sampled_from(Compression), data=st.data())
    def test_mutated_bytes_raise_records_errors_and_nothing_else(
        self, drawn: tuple[RecordColumns, list[Row]], codec: Compression, data: st.DataObject
    ) -> None:
        columns, _ = drawn
        mutated = encode(columns, compression=codec)
        for _ in range(data.draw(st.integers(1, 4))):
            mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
        del mutated[len(mutated) - data.draw(st.integers(0, 2)) :]
        try:
            decode(mutated, decompressed_bytes_max=1 << 20)
        except RecordsError as error:
            text = str(error)
            assert text

    @given(st.binary(max_size=200))
    def test_any_bytes_raise_records_errors_and_nothing_else(self, data: bytes) -> None:
        with pytest.raises(RecordsError):
            decode(data)


def batch_with_payload(payload: bytes, count: int, codec: Compression) -> bytearray:
    from chaffinch.records.compression import compress

    whole = encode(RecordColumns.from_lists(None, [b"v"], [0]))
    return repacked(whole, bytes(compress(codec, payload)), count=count, attributes=int(codec))


def test_encoding_ignores_log_offsets() -> None:
    columns = decode(encode(RecordColumns.from_lists(None, [b"a", b"b"], [0, 0]), base_offset=50))
    again = decode(encode(columns.take(np.array([1]))))
    assert offsets_of(again) == [0]
