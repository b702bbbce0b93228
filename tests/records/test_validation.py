"""Validation except for the rules' tables (see tests/kips): stored bytes, scaling, and that it never raises."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaffinch.errors import codes
from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.records.batch import HEADER_BYTES, TimestampType, decode, encode, read_header, views
from chaffinch.records.columns import RecordColumns
from chaffinch.records.compression import Compression
from chaffinch.records.validation import (
    CULPRITS_WITH_MESSAGE_MAX,
    Accepted,
    Origin,
    Rejected,
    ValidationPolicy,
    check_batch,
    check_records,
    validate,
    validate_columns,
)
from tests.records.record_strategies import rows_of
from tests.support.raw_batches import NOW_MS, raw_batch, record, view

TOPIC_PARTITION = TopicPartition("orders", 0)
POLICY = ValidationPolicy(topic_partition=TOPIC_PARTITION)
COMPACTED = ValidationPolicy(topic_partition=TOPIC_PARTITION, is_compacted=True)
LOG_APPEND = ValidationPolicy(topic_partition=TOPIC_PARTITION, timestamp_type=TimestampType.LOG_APPEND_TIME)


def accepted(batch: bytearray, policy: ValidationPolicy = POLICY, origin: Origin = Origin.CLIENT, **options: Any) -> Accepted:
    verdict = validate(view(batch), policy, origin, NOW_MS, **options)
    assert isinstance(verdict, Accepted), verdict
    return verdict


def columns_of(count: int, value: bytes = b"value", delta: int = 0) -> RecordColumns:
    return RecordColumns.from_lists([b"key%d" % i for i in range(count)], [value] * count, [NOW_MS + delta + i for i in range(count)])


class TestStoredAsItCame:
    @pytest.mark.parametrize("compression", Compression)
    def test_bytes_are_neither_copied_nor_changed(self, compression: Compression) -> None:
        batch = encode(columns_of(5), compression=compression, identity=ProducerIdentity(3, 1), base_sequence=4, is_transactional=True)
        before = bytes(batch)
        verdict = accepted(batch)
        assert isinstance(verdict.batch, memoryview)
        assert verdict.batch.obj is batch
        assert (bytes(batch), verdict.is_rewritten, verdict.count, verdict.max_timestamp) == (before, False, 5, NOW_MS + 4)

    def test_records_without_timestamps_have_max_timestamp_minus_1(self) -> None:
        batch = encode(RecordColumns.from_lists([b"a", b"b"], [b"", None], [-1, -1]))
        assert accepted(batch).max_timestamp == -1

    @pytest.mark.parametrize("compression", [None, Compression.ZSTD])
    def test_batch_with_the_codec_of_the_topic_is_not_rewritten(self, compression: Compression | None) -> None:
        batch = encode(columns_of(3), compression=Compression.ZSTD)
        assert not accepted(batch, dataclasses.replace(POLICY, compression=compression)).is_rewritten

    def test_replica_checks_batches_of_its_leader_only_for_damage(self) -> None:
        """Offsets with gaps, null keys, old timestamps, a control bit: a leader has judged them; only damage is looked for."""
        batch = raw_batch([record(4, key=None), record(9)], last_offset_delta=9, base_offset=100, attributes=0b10_0000, base_timestamp=5)
        taken = accepted(batch, COMPACTED, Origin.REPLICATION).batch
        assert isinstance(taken, memoryview)
        assert taken.obj is batch
        damaged = bytearray(batch)
        damaged[-1] ^= 1
        verdict = validate(view(damaged), COMPACTED, Origin.REPLICATION, NOW_MS)
        assert isinstance(verdict, Rejected)
        assert verdict.code is codes.CORRUPT_MESSAGE

    def test_a_coordinator_writes_control_batches_but_keeps_the_other_rules(self) -> None:
        batch = raw_batch([record(0)], attributes=0b10_0000, producer_id=9, producer_epoch=0, base_sequence=-1)
        assert not accepted(batch, COMPACTED, Origin.COORDINATOR).is_rewritten
        assert isinstance(validate(view(raw_batch([record(0, key=None)])), COMPACTED, Origin.COORDINATOR, NOW_MS), Rejected)


class TestRewritten:
    @pytest.mark.parametrize("compression", Compression)
    def test_log_append_time_stamps_every_record_with_the_clock(self, compression: Compression) -> None:
        batch = encode(columns_of(3, delta=-(10**12)), compression=compression, identity=ProducerIdentity(8, 2), base_sequence=6)
        before = bytes(batch)
        verdict = accepted(batch, LOG_APPEND)
        header = read_header(verdict.batch)
        assert (verdict.is_rewritten, verdict.max_timestamp, bytes(batch)) == (True, NOW_MS, before)
        assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
        assert header._replace(attributes=0, max_timestamp=0, crc=0) == read_header(before)._replace(attributes=0, max_timestamp=0, crc=0)
        assert decode(verdict.batch).timestamps.tolist() == [NOW_MS] * 3
        assert next(views(verdict.batch)).crc_is_valid()

    @pytest.mark.parametrize("claimed", [NOW_MS + 10**9, NOW_MS - 5, -1])
    def test_wrong_max_timestamp_of_the_header_is_corrected(self, claimed: int) -> None:
        batch = raw_batch([record(0), record(1, timestamp_delta=7), record(2)], max_timestamp=claimed)
        verdict = accepted(batch)
        assert verdict.is_rewritten
        assert (verdict.max_timestamp, read_header(verdict.batch).max_timestamp) == (NOW_MS + 7, NOW_MS + 7)
        assert next(views(verdict.batch)).crc_is_valid()
        assert bytes(verdict.batch[HEADER_BYTES:]) == bytes(batch[HEADER_BYTES:])

    @pytest.mark.parametrize("source", Compression)
    @pytest.mark.parametrize("target", Compression)
    @pytest.mark.parametrize("policy", [POLICY, LOG_APPEND], ids=["CreateTime", "LogAppendTime"])
    def test_recompression_keeps_everything_but_the_codec(self, source: Compression, target: Compression, policy: ValidationPolicy) -> None:
        columns = columns_of(40, b"the same value again").with_headers([[("h", b"1"), ("i", None)]] * 40)
        batch = encode(columns, compression=source, identity=ProducerIdentity(8, 2), base_sequence=6, is_transactional=True)
        verdict = accepted(batch, dataclasses.replace(policy, compression=target))
        stored = next(views(verdict.batch))
        assert stored.crc_is_valid()
        assert (stored.header.compression, stored.size) == (target, len(verdict.batch))
        assert (stored.header.identity, stored.header.base_sequence, stored.header.is_transactional) == (ProducerIdentity(8, 2), 6, True)
        same_bytes = bytes(batch[HEADER_BYTES:]) == bytes(stored.payload)
        assert same_bytes == (source is target)
        if policy is POLICY:
            assert rows_of(decode(stored)) == rows_of(columns)
        else:
            assert decode(stored).timestamps.tolist() == [NOW_MS] * 40

    @pytest.mark.parametrize(
        ("codec", "level"), [(Compression.GZIP, -1), (Compression.GZIP, 9), (Compression.LZ4, 17), (Compression.ZSTD, -5)]
    )
    def test_compression_levels_of_kafka_are_accepted(self, codec: Compression, level: int) -> None:
        verdict = accepted(encode(columns_of(20)), dataclasses.replace(POLICY, compression=codec, compression_level=level))
        assert rows_of(decode(verdict.batch)) == rows_of(columns_of(20))

    def test_batch_too_large_after_recompression_is_rejected(self) -> None:
        batch = encode(columns_of(200, b"x" * 200), compression=Compression.ZSTD)
        policy = dataclasses.replace(POLICY, compression=Compression.NONE, batch_bytes_max=len(batch) * 2)
        verdict = validate(view(batch), policy, Origin.CLIENT, NOW_MS)
        assert isinstance(verdict, Rejected)
        assert (verdict.code, verdict.culprits) == (codes.MESSAGE_TOO_LARGE, ())
        assert "recompressed with none" in verdict.message


class TestParts:
    def test_checked_crc_is_not_computed_again(self) -> None:
        batch = raw_batch([record(0)], crc=1)
        verdict = check_batch(view(batch), POLICY, Origin.CLIENT)
        assert verdict is not None
        assert verdict.code is codes.CORRUPT_MESSAGE
        assert check_batch(view(batch), POLICY, Origin.CLIENT, crc_was_checked=True) is None
        assert accepted(batch, crc_was_checked=True).count == 1

    def test_check_batch_and_check_records_together_equal_validate(self) -> None:
        batch = view(raw_batch([record(0, key=None)]))
        assert check_batch(batch, COMPACTED, Origin.CLIENT) is None
        assert check_records(batch, COMPACTED, Origin.CLIENT, NOW_MS) == validate(batch, COMPACTED, Origin.CLIENT, NOW_MS)

    @pytest.mark.parametrize(
        ("wall_ms", "before", "after", "bounds"),
        [
            (NOW_MS, 1000, 500, (NOW_MS - 1000, NOW_MS + 500)),
            (NOW_MS, 2**63 - 1, 2**63 - 1, (NOW_MS - (2**63 - 1), 2**63 - 1)),
            (-5, 2**63 - 1, 0, (-(2**63), -5)),
        ],
    )
    def test_bounds_stay_within_64_bits(self, wall_ms: int, before: int, after: int, bounds: tuple[int, int]) -> None:
        policy = dataclasses.replace(POLICY, timestamp_before_max_ms=before, timestamp_after_max_ms=after)
        assert policy.timestamp_bounds(wall_ms) == bounds


class TestManyCulprits:
    @pytest.mark.parametrize("value", [b"", b"v" * 100], ids=["a small batch", "a large one"])
    @pytest.mark.parametrize("culprits", [1, 2, 255, 256, 257, 600])
    def test_every_culprit_is_named_after_one_walk_or_two(self, culprits: int, value: bytes) -> None:
        indices = np.linspace(0, 599, culprits).astype(int).tolist()
        keys = [None if index in set(indices) else b"k" for index in range(600)]
        batch = encode(RecordColumns.from_lists(keys, [value] * 600, [NOW_MS] * 600))
        verdict = validate(view(batch), COMPACTED, Origin.CLIENT, NOW_MS)
        assert isinstance(verdict, Rejected)
        assert [culprit.batch_index for culprit in verdict.culprits] == indices
        assert {culprit.code for culprit in verdict.culprits} == {codes.INVALID_COMPACTION_KEY}

    def test_every_index_is_listed_and_messages_stay_short(self) -> None:
        count = CULPRITS_WITH_MESSAGE_MAX + 50
        verdict = validate(view(raw_batch([record(i, key=None) for i in range(count)])), COMPACTED, Origin.CLIENT, NOW_MS)
        assert isinstance(verdict, Rejected)
        assert [culprit.batch_index for culprit in verdict.culprits] == list(range(count))
        assert verdict.counts == (("NoKeyCompactedTopicRecordsPerSec", count),)
        assert all(culprit.message and culprit.code is codes.INVALID_COMPACTION_KEY for culprit in verdict.culprits)
        own = [culprit.message.startswith(f"record {culprit.batch_index} of {count}") for culprit in verdict.culprits]
        assert own == [True] * CULPRITS_WITH_MESSAGE_MAX + [False] * 50
        assert len(verdict.message) < 500


KEYS = st.none() | st.binary(max_size=3)
TIMES = st.sampled_from([-1, 0, -2, NOW_MS, NOW_MS + 3_600_000, NOW_MS + 3_600_001, NOW_MS - 1000, NOW_MS - 1001, 2**63 - 1, -(2**63)])
POLICIES = st.builds(
    ValidationPolicy,
    topic_partition=st.just(TOPIC_PARTITION),
    is_compacted=st.booleans(),
    timestamp_type=st.sampled_from(TimestampType),
    timestamp_before_max_ms=st.sampled_from([0, 1000, 2**63 - 1]),
    timestamp_after_max_ms=st.sampled_from([0, 3_600_000, 2**63 - 1]),
)


class TestColumns:
    @given(st.lists(st.tuples(KEYS, KEYS, TIMES), min_size=1, max_size=12), POLICIES, st.sampled_from(Compression))
    def test_validate_columns_finds_the_culprits_of_validate(
        self, rows: list[tuple[bytes | None, bytes | None, int]], policy: ValidationPolicy, compression: Compression
    ) -> None:
        columns = RecordColumns.from_lists(*(list(column) for column in zip(*rows, strict=True)))
        verdict = validate(next(views(encode(columns, compression=compression))), policy, Origin.CLIENT, NOW_MS)
        assert validate_columns(columns, policy, NOW_MS) == (verdict.culprits if isinstance(verdict, Rejected) else ())

    @given(st.lists(st.tuples(KEYS, KEYS, TIMES), min_size=1, max_size=12), POLICIES)
    def test_validate_columns_of_a_slice_equals_that_of_a_copy(
        self, rows: list[tuple[bytes | None, bytes | None, int]], policy: ValidationPolicy
    ) -> None:
        columns = RecordColumns.from_lists(*(list(column) for column in zip(*rows, strict=True)))
        part = columns.slice(1, len(rows))
        copy = RecordColumns.from_lists(*(list(column) for column in zip(*rows[1:], strict=True))) if rows[1:] else part
        assert validate_columns(part, policy, NOW_MS) == validate_columns(copy, policy, NOW_MS)

    def test_validate_columns_of_no_records_finds_nothing(self) -> None:
        assert validate_columns(columns_of(0), COMPACTED, NOW_MS) == ()

    @pytest.mark.parametrize("value_bytes", [0, 1, 62, 63, 64, 120, 8191, 8192])
    def test_a_record_is_too_large_exactly_when_its_own_batch_is(self, value_bytes: int) -> None:
        columns = columns_of(3, b"v" * value_bytes)
        size = len(encode(columns.slice(2, 3)))
        assert validate_columns(columns, dataclasses.replace(POLICY, batch_bytes_max=size), NOW_MS) == ()
        culprits = validate_columns(columns, dataclasses.replace(POLICY, batch_bytes_max=size - 1), NOW_MS)
        assert [(culprit.batch_index, culprit.code) for culprit in culprits] == [(i, codes.MESSAGE_TOO_LARGE) for i in range(3)]
        expected = f"alone it makes a batch of {size} bytes, max.message.bytes allows {size - 1} bytes"
        assert culprits[2].message == f"record 2 of 3 for orders-0 rejected: {expected}"

    def test_compression_decides_what_is_too_large(self) -> None:
        columns = RecordColumns.from_lists([b"a", b"b"], [bytes(100_000), bytes(range(256)) * 400], [NOW_MS] * 2)
        policy = dataclasses.replace(POLICY, batch_bytes_max=50_000)
        assert len(validate_columns(columns, policy, NOW_MS)) == 2
        assert validate_columns(columns, policy, NOW_MS, compression=Compression.ZSTD) == ()
        tight = dataclasses.replace(policy, batch_bytes_max=200)
        assert [culprit.batch_index for culprit in validate_columns(columns, tight, NOW_MS, compression=Compression.ZSTD)] == [1]

    def test_size_comes_before_key_and_timestamp(self) -> None:
        columns = RecordColumns.from_lists([None, None], [b"v" * 2000, b"v"], [NOW_MS + 10**9, NOW_MS + 10**9])
        culprits = validate_columns(columns, dataclasses.replace(COMPACTED, batch_bytes_max=1000), NOW_MS)
        assert [culprit.code for culprit in culprits] == [codes.MESSAGE_TOO_LARGE, codes.INVALID_COMPACTION_KEY]

    def test_keys_without_validity_are_valid_and_missing_keys_are_not(self) -> None:
        columns = columns_of(2)
        assert columns.key_valid is None
        assert validate_columns(columns, COMPACTED, NOW_MS) == ()
        assert len(validate_columns(RecordColumns.from_lists(None, [b""] * 2, [NOW_MS] * 2), COMPACTED, NOW_MS)) == 2


def _is_sound(verdict: Accepted | Rejected, count: int) -> bool:
    if isinstance(verdict, Accepted):
        return verdict.count == count and next(views(verdict.batch)).crc_is_valid()
    indices = [culprit.batch_index for culprit in verdict.culprits]
    return bool(verdict.message) and indices == sorted(set(indices)) and all(0 <= index < count for index in indices)


class TestNeverRaises:
    @given(
        st.integers(0, 2**20),
        st.integers(1, 255),
        st.sampled_from(Compression),
        st.sampled_from(Origin),
        st.sampled_from([COMPACTED, LOG_APPEND, dataclasses.replace(POLICY, compression=Compression.LZ4)]),
    )
    def test_changed_byte_never_raises(
        self, position: int, change: int, compression: Compression, origin: Origin, policy: ValidationPolicy
    ) -> None:
        batch = encode(columns_of(30).with_headers([[("h", b"x")]] * 30), compression=compression)
        header = read_header(batch)
        batch[16 + position % (len(batch) - 16)] ^= change
        damaged = view(batch)
        verdict = validate(damaged, policy, origin, NOW_MS, crc_was_checked=True)
        if origin is not Origin.REPLICATION:
            assert header.count == 30
            assert isinstance(verdict, Rejected) or next(views(verdict.batch)).size == len(verdict.batch)

    @given(st.binary(max_size=200), st.sampled_from(Compression), st.integers(-2, 40))
    def test_noise_for_records_never_raises(self, payload: bytes, compression: Compression, count: int) -> None:
        verdict = validate(view(raw_batch(payload, compression=compression, count=count)), COMPACTED, Origin.CLIENT, NOW_MS)
        assert _is_sound(verdict, count)

    @given(st.lists(st.tuples(st.integers(-1, 5), KEYS, st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=5), POLICIES)
    def test_readable_records_never_raise(self, rows: list[tuple[int, bytes | None, int]], policy: ValidationPolicy) -> None:
        records = [record(offset, key, timestamp_delta=delta) for offset, key, delta in rows]
        assert _is_sound(validate(view(raw_batch(records)), policy, Origin.CLIENT, NOW_MS), len(rows))


def test_the_twin_and_the_compiled_loop_give_the_same_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches run the twin; a broker that has loaded the compiled loops must not judge differently."""
    from chaffinch.records import kernels

    batches = [
        raw_batch([record(0), record(1, key=None), record(5), record(3, timestamp_delta=10**10)]),
        raw_batch([record(0, length_off_by=1)]),
        raw_batch([record(i, headers=[(b"h", None)]) for i in range(200)]),
    ]
    kernels.load()
    with_compiled = [validate(view(batch), COMPACTED, Origin.CLIENT, NOW_MS) for batch in batches]
    monkeypatch.setattr(kernels, "choose", lambda count: kernels.REFERENCE)
    with_twin = [validate(view(batch), COMPACTED, Origin.CLIENT, NOW_MS) for batch in batches]
    assert kernels.is_loaded()
    assert with_compiled == with_twin


def test_counts_of_culprits_fit_the_columns_dtype() -> None:
    """NumPy scalars must not leak into messages or indices: they do not pickle small, and they print differently."""
    culprits = validate_columns(RecordColumns.from_lists([None], [b""], [NOW_MS]), COMPACTED, NOW_MS)
    assert [type(culprit.batch_index) for culprit in culprits] == [int]
    assert not isinstance(culprits[0].message, np.str_)
