"""Every rule of KIP-467's list, in every format and under every codec that has it, sent to a broker: `rule_table.py` is the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from chaffinch.broker.core import counters
from chaffinch.errors import codes
from chaffinch.identifiers import TopicPartition
from chaffinch.records import validation_result
from chaffinch.records.compression import Compression
from chaffinch.records.old_formats.message_set import OLD_FORMATS, read_message_set
from chaffinch.records.validation import Rejected, ValidationPolicy
from chaffinch.records.validation_rules import ALL_RULES, CODECS
from tests.broker.batches import batch_of
from tests.broker.core_client import Cluster
from tests.kips.rule_table import CRC, HOUR_MS, KEY, LINES, RECORD, TIME, Case, InconsistentBytes, cases, inconsistent_cases, written
from tests.support.raw_batches import NOW_MS
from tests.support.validated_sets import validate_set

CASES = list(cases())
INCONSISTENT_CASES = list(inconsistent_cases())
CASES_MIN = 150
"""So that a rule that loses its formats is noticed."""

IN_OLD_VERSIONS = {codes.INVALID_RECORD: 42, codes.INVALID_COMPACTION_KEY: 42}
"""Codes that Produce versions below 8 get instead; the others get the code itself."""

NOT_FAILED = {codes.CORRUPT_MESSAGE, codes.MESSAGE_TOO_LARGE}


def send(data: bytes, version: int, topic: Mapping[str, Any], says: str = "") -> tuple[Any, dict[str, int], int]:
    """(the answer, counters that moved, records stored). `says` must stand in the broker's log, where old versions have no message."""
    cluster = Cluster()
    cluster.topic("orders", **topic)
    answer = cluster.client(software="chaffinch").produce("orders", data, version=version)
    snapshot = cluster.core.counters.snapshot()
    assert snapshot[counters.ALL_TOPICS] == snapshot["orders"], "in all topics as in the only one"
    partition = cluster.core.topics.partition("orders", 0)
    assert partition is not None
    assert not says or says in cluster.lines[-1]
    assert version < 8 or says in (answer.error_message or "")
    return answer, {name: count for name, count in snapshot["orders"].items() if count}, partition.log.log_end_offset


def expected_counters(case: Case) -> dict[str, int]:
    """Those of the rule, and those of every refused partition."""
    code = case.line.code
    every = {"TotalProduceRequestsPerSec": 1} | ({} if code in NOT_FAILED else {"FailedProduceRequestsPerSec": 1})
    in_bytes = {"BytesRejectedPerSec": len(case.data)} if code is codes.MESSAGE_TOO_LARGE else {}
    return every | in_bytes | dict(case.line.counters)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rule_has_code_culprits_and_counters(case: Case) -> None:
    """Code, culprits (from version 8 on), exactly these counters, and nothing stored."""
    code, is_old = case.line.code, case.version < 8
    answer, moved, stored = send(case.data, case.version, dict(case.line.topic), case.line.says)
    assert answer.error_code == (IN_OLD_VERSIONS.get(code, code.number) if is_old else code.number)
    culprits = {} if is_old else {index: code.number_kip for index, code in case.line.culprits.items()}
    assert {error.batch_index: error.chaffinch_error_code for error in answer.record_errors} == culprits
    assert bool(answer.error_message) != is_old
    assert moved == expected_counters(case)
    assert (stored, answer.base_offset) == (0, -1)


@pytest.mark.parametrize("case", [case for case in CASES if case.version < 8], ids=lambda case: case.name)
def test_culprits_of_old_formats_have_their_index(case: Case) -> None:
    """By their index in the set, or in what the compressed message held; the versions that carry them cannot name them."""
    cluster = Cluster()
    cluster.topic("orders", **case.line.topic)
    policy = cluster.partition("orders", 0).policy
    verdict = validate_set(read_message_set(case.data), policy, NOW_MS)
    assert isinstance(verdict, Rejected)
    assert {culprit.batch_index: culprit.code for culprit in verdict.culprits} == case.line.culprits
    assert (verdict.code, dict(verdict.counts)) == (case.line.code, case.line.counters)
    assert all(culprit.message.startswith(f"record {culprit.batch_index} of 3 for orders-0 rejected: ") for culprit in verdict.culprits)


@pytest.mark.parametrize(
    ("inconsistent", "record_format", "codec"),
    INCONSISTENT_CASES,
    ids=[f"{inconsistent.name} [format {number}, {codec.name.lower()}]" for inconsistent, number, codec in INCONSISTENT_CASES],
)
def test_inconsistent_lengths_are_refused(inconsistent: InconsistentBytes, record_format: int, codec: Compression) -> None:
    """Right checksums around wrong lengths: INVALID_RECORD with a reason, and never stored, as no consumer could read them.

    Only what makes plain messages impossible to tell apart is CORRUPT_MESSAGE, as for batches that cannot be sliced.
    """
    data = written(record_format, codec, ({}, inconsistent.record, {}), {})
    version = 9 if record_format == 2 else 2
    answer, _, stored = send(data, version, {}, inconsistent.says)
    code = inconsistent.code_of_plain if codec is Compression.NONE else RECORD
    assert (answer.error_code, answer.record_errors, stored) == (
        code.number if version == 9 else IN_OLD_VERSIONS.get(code, code.number),
        [],
        0,
    )


class TestTable:
    def test_every_rule_has_its_line_in_every_format_and_codec(self) -> None:
        expected = {(rule.name, number, codec) for rule in ALL_RULES for number in rule.formats for codec in rule.applies_to.codecs(number)}
        assert {(case.line.rule, case.record_format, case.codec) for case in CASES} == expected
        assert len(CASES) == len(expected) >= CASES_MIN

    def test_no_rule_has_two_lines(self) -> None:
        assert len({line.rule for line in LINES}) == len(LINES) == len(ALL_RULES)

    def test_rule_has_code_and_counter_of_its_line(self) -> None:
        said = {rule.name: (rule.code, rule.counter) for rule in ALL_RULES}
        lines = {line.rule: (line.code, next(iter(line.counters), None)) for line in LINES}
        assert lines == said

    @pytest.mark.parametrize("record_format", CODECS)
    def test_records_that_break_no_rule_are_stored(self, record_format: int) -> None:
        """The table's own ground: without what a line changes, every format and codec passes."""
        for codec in CODECS[record_format]:
            answer, moved, stored = send(written(record_format, codec, ({}, {}, {}), {}), 9 if record_format == 2 else 2, {})
            assert (answer.error_code, stored) == (0, 3)
            assert set(moved) == {"TotalProduceRequestsPerSec", "MessagesInPerSec", "BytesInPerSec"}


POLICY = ValidationPolicy(topic_partition=TopicPartition("orders", 0), is_compacted=True, batch_bytes_max=200)
BIG, LATE = bytes(300), 2 * HOUR_MS

# Each message breaks two neighbouring rules (or all from one on): the earlier one answers, and only that one.
PRECEDENCE = [
    ("compression before magic", {"attributes": 1, "magic": "other"}, "compressed", RECORD),
    ("magic before checksum", {"magic": "other", "crc": 1}, "magic", RECORD),
    ("checksum before size", {"crc": 1, "value": BIG}, "checksum", CRC),
    ("checksum before key", {"crc": 1, "key": None, "ahead_ms": LATE}, "checksum", CRC),
    ("size before key", {"value": BIG, "key": None}, "max.message.bytes", codes.MESSAGE_TOO_LARGE),
    ("offset before key", {"offset": 9, "key": None, "ahead_ms": LATE}, "offset delta 9", RECORD),
    ("key before timestamp", {"key": None, "ahead_ms": LATE}, "null key", KEY),
    ("timestamp's type before its value", {"attributes": 8, "ahead_ms": LATE}, "LogAppendTime", TIME),
]


@pytest.mark.parametrize(("name", "record", "text", "code"), PRECEDENCE, ids=[row[0] for row in PRECEDENCE])
def test_first_broken_rule_decides_the_code_of_a_message(name: str, record: dict[str, Any], text: str, code: codes.ErrorCode) -> None:
    codec = Compression.NONE if "size" in name else Compression.SNAPPY
    verdict = validate_set(read_message_set(written(1, codec, ({}, record, {}), {})), POLICY, NOW_MS)
    assert isinstance(verdict, Rejected)
    assert [(culprit.batch_index, culprit.code) for culprit in verdict.culprits] == [(1, code)]
    assert text in verdict.message


# Several kinds in one set: the timestamp's code wins, otherwise the one that all share, else INVALID_RECORD. All are listed.
MIXED = [
    (({"key": None}, {"ahead_ms": LATE}, {}), TIME, {0: KEY, 1: TIME}),
    (({"crc": 1}, {}, {"crc": 2}), CRC, {0: CRC, 2: CRC}),
    (({"crc": 1}, {"key": None}, {}), RECORD, {0: CRC, 1: KEY}),
    (({"crc": 1}, {"ahead_ms": LATE}, {}), TIME, {0: CRC, 1: TIME}),
    (({"key": None}, {"magic": "other"}, {"attributes": 2}), RECORD, {0: KEY, 1: RECORD, 2: RECORD}),
]


@pytest.mark.parametrize("codec", CODECS[1])
@pytest.mark.parametrize(("records", "code", "culprits"), MIXED)
def test_set_with_several_culprits_has_one_code(
    records: tuple[dict[str, Any], ...], code: Any, culprits: dict[int, Any], codec: Compression
) -> None:
    verdict = validate_set(read_message_set(written(1, codec, records, {})), POLICY, NOW_MS)
    assert isinstance(verdict, Rejected)
    assert (verdict.code, {culprit.batch_index: culprit.code for culprit in verdict.culprits}) == (code, culprits)


@pytest.mark.parametrize("version", range(14))
@pytest.mark.parametrize("record_format", [*OLD_FORMATS, 2])
def test_request_version_decides_the_accepted_formats(record_format: int, version: int) -> None:
    """As Apache Kafka did while it served them all: format 2 everywhere, formats 0 and 1 before version 3 only."""
    answer, _, stored = send(written(record_format, Compression.NONE, ({}, {}, {}), {}), version, {})
    is_taken = record_format == 2 or version < 3
    refused = 87 if version >= 8 else 42
    assert (answer.error_code, stored) == ((0, 3) if is_taken else (refused, 0))


@pytest.mark.parametrize(("record_format", "codec"), [(1, Compression.GZIP), (2, Compression.ZSTD), (2, Compression.NONE)])
def test_list_of_culprits_is_limited(record_format: int, codec: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kilobyte unpacks to millions of records: the first culprits are listed, the message counts all."""
    monkeypatch.setattr(validation_result, "CULPRITS_MAX", 4)
    data = written(record_format, codec, [{"key": None}] * 7, {})
    answer, moved, _ = send(data, 9 if record_format == 2 else 2, {"cleanup_policy": "compact"}, says="7 of 7 records")
    assert [error.batch_index for error in answer.record_errors] == ([0, 1, 2, 3] if record_format == 2 else [])
    assert moved["NoKeyCompactedTopicRecordsPerSec"] == 4


def test_compressed_message_next_to_others_is_refused() -> None:
    """A compressed message comes alone."""
    plain, gzip = written(1, Compression.NONE, ({},), {}), written(1, Compression.GZIP, ({},), {})
    for data in (plain + gzip, gzip + plain, gzip + gzip, gzip + b"\x00"):
        assert send(data, 2, {})[0].error_code == 42


def test_old_formats_are_stored_whatever_the_message_format_version() -> None:
    """Below 0.11 that option refuses producers with ids, which formats 0 and 1 do not have."""
    data = written(1, Compression.GZIP, ({}, {}, {}), {})
    assert send(data, 2, {"message_format_version": "0.10.2"})[2] == 3


def test_replication_is_checked_between_wrapper_and_messages() -> None:
    """KIP-579 holds for every version; its place among the checks is the same as in format 2."""
    unsatisfiable = {"min_insync_replicas": "2", **{"cleanup_policy": "compact"}}
    no_key = ({"key": None},)
    assert send(written(1, Compression.GZIP, no_key, {}), 2, unsatisfiable)[0].error_code == 40
    assert send(written(1, Compression.GZIP, no_key, {"crc": 1}), 2, unsatisfiable)[0].error_code == 2


def test_append_time_is_returned_since_version_2() -> None:
    data = written(1, Compression.NONE, ({}, {}), {})
    for version, expected in ((1, -1), (2, NOW_MS)):
        answer, _, stored = send(data, version, {"message_timestamp_type": "LogAppendTime"})
        assert (answer.log_append_time_ms, stored) == (expected, 2)


def test_converted_batch_too_large_for_a_segment_is_refused() -> None:
    data = written(1, Compression.NONE, [{"value": bytes(300_000)}] * 4, {})
    answer, _, stored = send(data, 2, {"max_message_bytes": "2000000", "segment_bytes": str(1 << 20)})
    assert (answer.error_code, stored) == (codes.RECORD_LIST_TOO_LARGE.number, 0)


SEGMENT = {"max_message_bytes": "4000000", "segment_bytes": str(1 << 20)}


@pytest.mark.parametrize(
    ("stored_as", "sent_as", "is_taken"),
    [
        ("producer", Compression.NONE, False),
        ("producer", Compression.ZSTD, True),
        ("zstd", Compression.NONE, True),
        ("zstd", Compression.ZSTD, True),
        ("uncompressed", Compression.NONE, False),
        ("uncompressed", Compression.ZSTD, False),
    ],
)
def test_batch_too_large_for_a_segment_as_stored_is_refused(stored_as: str, sent_as: Compression, is_taken: bool) -> None:
    data = bytes(batch_of(bytes(3_000_000), compression=sent_as))
    says = "" if is_taken else "segment.bytes allows 1048576 bytes"
    answer, _, stored = send(data, 9, {**SEGMENT, "compression_type": stored_as}, says)
    assert (answer.error_code, stored) == ((0, 1) if is_taken else (codes.RECORD_LIST_TOO_LARGE.number, 0))


def test_batch_of_exactly_the_segment_size_is_accepted() -> None:
    overhead = len(batch_of(bytes(1_000_000))) - 1_000_000
    for size, code in ((1 << 20, 0), ((1 << 20) + 1, codes.RECORD_LIST_TOO_LARGE.number)):
        data = bytes(batch_of(bytes(size - overhead)))
        assert len(data) == size
        assert send(data, 9, SEGMENT)[0].error_code == code
