"""KIP-467 on the wire, broker side: which batch gets which code, which culprits, which counters.

One line per case. Read `expected` as: error code, culprits as {index: code}, counter and by how much it moves. Codes under the default
numbering; `kip` numbering and old versions have their own tables below.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from chaffinch.identifiers import ProducerIdentity
from chaffinch.records.compression import Compression
from tests.broker.batches import NOW_MS, batch_of, changed
from tests.broker.core_client import Client, Cluster, produce_request

HOUR_MS = 3_600_000
PRODUCER = ProducerIdentity(7, 0)

GOOD = batch_of(b"a", b"b", b"c")
NO_KEYS = batch_of(b"a", b"b", b"c", b"d", keys=[None, b"k", None, b"k"])
FUTURE = batch_of(b"a", b"b", b"c", timestamps=[NOW_MS, NOW_MS + HOUR_MS + 1, NOW_MS])
AT_LIMIT = batch_of(b"a", timestamps=[NOW_MS + HOUR_MS])
MIXED = batch_of(b"a", b"b", b"c", b"d", keys=[b"k", None, b"k", None], timestamps=[NOW_MS, NOW_MS, NOW_MS + 2 * HOUR_MS, NOW_MS])
NO_KEY_AND_FUTURE = batch_of(b"a", keys=[None], timestamps=[NOW_MS + 2 * HOUR_MS])

LAST_OFFSET_DELTA, ATTRIBUTES, COUNT, BASE_OFFSET, LENGTH, MAGIC, SEQUENCE = 23, 21, 57, 0, 8, 16, 53


@dataclass(frozen=True)
class Case:
    """`counters`: by how much which counter of the topic moves, besides those of every request."""

    name: str
    batch: bytes | bytearray | None
    code: int
    culprits: dict[int, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    says: str = ""


def int32(value: int) -> bytes:
    return struct.pack(">i", value)


COMPACT: dict[str, Any] = {"cleanup_policy": "compact"}
OFFSETS, MAGICS = "NonIncreasingOffsetRecordsPerSec", "InvalidMagicNumberRecordsPerSec"
OF_EVERY_REQUEST = {"MessagesInPerSec", "BytesInPerSec", "BytesRejectedPerSec", "TotalProduceRequestsPerSec", "FailedProduceRequestsPerSec"}

CASES = [
    # Record rules: all culprits, ascending, each with its own code and text.
    Case("null keys", NO_KEYS, 87, {0: 45, 2: 45}, {"NoKeyCompactedTopicRecordsPerSec": 2}, COMPACT, "null key"),
    Case("null keys, not compacted", NO_KEYS, 0),
    Case(
        "null keys, compacted and deleted",
        NO_KEYS,
        87,
        {0: 45, 2: 45},
        {"NoKeyCompactedTopicRecordsPerSec": 2},
        {"cleanup_policy": "delete,compact"},
    ),
    Case("future timestamp", FUTURE, 32, {1: 32}, {"InvalidTimestampRecordsPerSec": 1}, says="ahead"),
    Case("timestamp at the limit", AT_LIMIT, 0),
    Case("past timestamp", GOOD, 0),
    Case(
        "past timestamp, limited",
        batch_of(b"a", b"b", timestamps=[NOW_MS - 1001, NOW_MS - 1000]),
        32,
        {0: 32},
        {"InvalidTimestampRecordsPerSec": 1},
        {"message_timestamp_before_max_ms": "1000"},
        "behind",
    ),
    Case("record without timestamp", batch_of(b"a", timestamps=[-1]), 0),
    Case(
        "timestamps win over keys, all are listed",
        MIXED,
        32,
        {1: 45, 2: 32, 3: 45},
        {"NoKeyCompactedTopicRecordsPerSec": 2, "InvalidTimestampRecordsPerSec": 1},
        COMPACT,
    ),
    Case("one error per record, key first", NO_KEY_AND_FUTURE, 87, {0: 45}, {"NoKeyCompactedTopicRecordsPerSec": 1}, COMPACT),
    # Batch rules: the first one broken, no culprits, still a text.
    Case("checksum", changed(GOOD, 70, b"\xff", fix_crc=False), 2, {}, {"InvalidMessageCrcRecordsPerSec": 1}, says="checksum"),
    Case("count too large", changed(GOOD, COUNT, int32(4)), 87, {}, {OFFSETS: 1}),
    Case("count zero", changed(GOOD, COUNT, int32(0)), 87, {}, {OFFSETS: 1}),
    Case("count and last offset too large", changed(changed(GOOD, COUNT, int32(4)), LAST_OFFSET_DELTA, int32(3)), 87),
    Case("count and last offset too small", changed(changed(GOOD, COUNT, int32(2)), LAST_OFFSET_DELTA, int32(1)), 87),
    Case("last offset delta negative", changed(GOOD, LAST_OFFSET_DELTA, int32(-1)), 87, {}, {OFFSETS: 1}),
    Case("control bit", changed(GOOD, ATTRIBUTES, b"\x00\x20"), 87, {}, {OFFSETS: 1}, says="control"),
    Case("codec that does not exist", changed(GOOD, ATTRIBUTES, b"\x00\x05"), 87),
    Case("base offset", changed(GOOD, BASE_OFFSET, struct.pack(">q", 5)), 87, {}, {OFFSETS: 1}),
    Case("idempotent without sequence", batch_of(b"a", identity=PRODUCER, sequence=-1), 87, {}, {"OutOfOrderSequenceBatchesPerSec": 1}),
    Case(
        "client says LogAppendTime", changed(GOOD, ATTRIBUTES, b"\x00\x08"), 32, {0: 32, 1: 32, 2: 32}, {"InvalidTimestampRecordsPerSec": 3}
    ),
    Case("too large", batch_of(b"a" * 100), 10, {}, {"TooLargeBatchesPerSec": 1}, {"max_message_bytes": "100"}, says="max.message.bytes"),
    # Slicing.
    Case("no records", None, 87, says="no bytes were sent"),
    Case("empty records", b"", 87, says="no bytes were sent"),
    Case("two batches", GOOD + GOOD, 87, says="2 batches were sent"),
    Case("cut short", bytes(GOOD[:-1]), 87),
    Case("header cut short", bytes(GOOD[:40]), 87),
    Case("length beyond the bytes", changed(GOOD, LENGTH, int32(2**31 - 1), fix_crc=False), 87),
    Case("length below the minimum", changed(GOOD, LENGTH, int32(10), fix_crc=False), 2),
    Case("length negative", changed(GOOD, LENGTH, int32(-1), fix_crc=False), 2),
    Case("magic 3", changed(GOOD, MAGIC, b"\x03", fix_crc=False), 2, {}, {MAGICS: 1}),
    Case("magic 255", changed(GOOD, MAGIC, b"\xff", fix_crc=False), 2, {}, {MAGICS: 1}),
    Case("magic 1", changed(GOOD, MAGIC, b"\x01", fix_crc=False), 87, {}, {MAGICS: 1}),
    # A payload that does not unpack although its checksum is right is no transmission error.
    Case("payload does not decompress", changed(batch_of(b"a" * 50, compression=Compression.LZ4), 61, b"\x00" * 8), 87),
    Case("record length lies", changed(GOOD, 61, b"\x02"), 87),
]


def cluster_with(config: dict[str, Any]) -> tuple[Cluster, Client]:
    cluster = Cluster()
    cluster.topic("orders", **config)
    return cluster, cluster.client(software="chaffinch")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rule_has_code_culprits_and_counters(case: Case) -> None:
    """Section 2 of the KIP: code, culprits and counters of one batch."""
    cluster, client = cluster_with(case.config)
    answer = client.produce("orders", case.batch)
    assert answer.error_code == case.code
    assert {error.batch_index: error.chaffinch_error_code for error in answer.record_errors} == case.culprits
    assert [error.batch_index for error in answer.record_errors] == sorted(case.culprits), "librdkafka reads them in one pass"
    assert all(error.batch_index_error_message for error in answer.record_errors)
    assert bool(answer.error_message) == (case.code != 0), "every refusal says why"
    assert case.says in (answer.error_message or "")
    assert answer.base_offset == (0 if case.code == 0 else -1)
    log = cluster.partition("orders", 0).log
    assert (log.log_end_offset > 0) == (case.code == 0), "a refused batch leaves nothing behind"
    counters = cluster.core.counters.snapshot()["orders"]
    assert {name: count for name, count in counters.items() if count and name not in OF_EVERY_REQUEST} == case.counters


def test_counters_count_culprits_and_batches() -> None:
    """KIP-467 point 4: a record rule counts one per culprit, a batch rule one per batch; in all topics and in each."""
    cluster, client = cluster_with(COMPACT)
    client.produce("orders", NO_KEYS)
    client.produce("orders", changed(GOOD, COUNT, int32(4)))
    client.produce("orders", changed(GOOD, 70, b"\xff", fix_crc=False))
    for topic in ("orders", ""):
        assert cluster.core.counters.total("NoKeyCompactedTopicRecordsPerSec", topic) == 2
        assert cluster.core.counters.total(OFFSETS, topic) == 1
        assert cluster.core.counters.total("InvalidMessageCrcRecordsPerSec", topic) == 1
        assert cluster.core.counters.total("FailedProduceRequestsPerSec", topic) == 2, "Kafka does not count code 2 as failed"
    assert cluster.core.counters.total("MessagesInPerSec") == 0


def test_too_large_batches_are_counted_in_bytes_too() -> None:
    cluster, client = cluster_with({"max_message_bytes": "100"})
    batch = batch_of(b"a" * 100)
    client.produce("orders", batch)
    assert cluster.core.counters.total("BytesRejectedPerSec", "orders") == len(batch)


@pytest.mark.parametrize("version", range(14))
@pytest.mark.parametrize(
    ("batch", "code", "old_code"),
    [(NO_KEYS, 87, 42), (changed(GOOD, COUNT, int32(4)), 87, 42), (FUTURE, 32, 32), (changed(GOOD, 70, b"\xff", fix_crc=False), 2, 2)],
    ids=["null key", "count", "timestamp", "checksum"],
)
def test_versions_before_8_have_the_old_code(batch: bytearray, code: int, old_code: int, version: int) -> None:
    """Compatibility section: below version 8 INVALID_REQUEST instead of INVALID_RECORD, without the two fields; never the retriable 2."""
    _, client = cluster_with(COMPACT)
    answer = client.produce("orders", batch, version=version)
    assert answer.error_code == (code if version >= 8 else old_code)
    assert bool(answer.error_message) == (version >= 8)
    if version < 8:
        assert answer.record_errors == []


KIP_NUMBERING = [
    ("null keys", NO_KEYS, 45, [0, 2]),
    ("future", FUTURE, 32, [1]),
    ("key first: the timestamp comes out later", MIXED, 45, [1, 3]),
    ("count", changed(GOOD, COUNT, int32(4)), 85, []),
    ("checksum", changed(GOOD, 70, b"\xff", fix_crc=False), 2, []),
]


@pytest.mark.parametrize(("name", "batch", "code", "culprits"), KIP_NUMBERING, ids=[row[0] for row in KIP_NUMBERING])
def test_kip_numbering_has_printed_numbers(name: str, batch: bytearray, code: int, culprits: list[int]) -> None:
    """`error.numbering=kip`: the numbers as printed, the code of the first culprit, the culprits of that code only (2.b)."""
    cluster = Cluster({"error.numbering": "kip"})
    cluster.topic("orders", **COMPACT)
    client = cluster.client()
    assert client.connection.error_numbering == "kip"
    answer = client.produce("orders", batch)
    assert answer.error_code == code
    assert [error.batch_index for error in answer.record_errors] == culprits


def test_numbering_is_announced_only_when_it_is_on() -> None:
    assert Cluster().client().connection.error_numbering == "apache"


@pytest.mark.parametrize(("software", "expected"), [("chaffinch", 45), ("librdkafka", None)])
def test_codes_of_culprits_are_sent_to_our_client_only(software: str, expected: int | None) -> None:
    """Tagged field 1467: the number that the KIP printed, which no other error shares; others never get it (KIP-511 identifies clients)."""
    cluster = Cluster()
    cluster.topic("orders", **COMPACT)
    answer = cluster.client(software=software).produce("orders", NO_KEYS, version=9)
    assert [error.chaffinch_error_code for error in answer.record_errors] == [expected, expected]


def test_compressed_batches_are_checked_record_by_record() -> None:
    for compression in Compression:
        _, client = cluster_with(COMPACT)
        answer = client.produce("orders", batch_of(b"a", b"b", keys=[b"k", None], compression=compression))
        assert (answer.error_code, [error.batch_index for error in answer.record_errors]) == (87, [1]), compression


def test_refusal_with_acks_0_closes_the_connection() -> None:
    """No client reads an answer, so a refusal closes the connection, as in Kafka; a success stays silent."""
    cluster, client = cluster_with(COMPACT)
    client.send(produce_request("orders", GOOD, acks=0))
    assert (client.closed, client.silent, client.answers) == (None, 1, [])
    client.send(produce_request("orders", NO_KEYS, acks=0))
    assert client.closed is not None
    assert cluster.partition("orders", 0).log.log_end_offset == 3


def test_each_partition_has_its_own_code() -> None:
    cluster = Cluster()
    cluster.topic("orders", 2, cleanup_policy="compact")
    request = produce_request("orders", NO_KEYS)
    request.topics[0].partitions += produce_request("orders", GOOD, partition=1).topics[0].partitions
    request.topics += produce_request("missing", GOOD).topics
    answer = cluster.client().ask(request)
    fates = {(topic.name, part.index): part.error_code for topic in answer.responses for part in topic.partition_responses}
    assert fates == {("orders", 0): 87, ("orders", 1): 0, ("missing", 0): 3}


def test_repeated_batch_succeeds_with_its_old_offset() -> None:
    """Duplicates come before everything that can change with time or configuration."""
    cluster = Cluster()
    cluster.topic("orders")
    client = cluster.client()
    batch = batch_of(b"a" * 200, b"b", keys=[None, b"k"], identity=PRODUCER, sequence=0)
    client.produce("orders", GOOD)
    assert client.produce("orders", bytes(batch)).base_offset == 3
    cluster.core.topics.alter(
        "orders",
        {"cleanup.policy": "compact", "max.message.bytes": "10", "message.timestamp.before.max.ms": "1", "min.insync.replicas": "2"},
    )
    cluster.steady_ms += 5 * HOUR_MS
    again = client.produce("orders", bytes(batch))
    assert (again.error_code, again.base_offset) == (0, 3)
    assert cluster.partition("orders", 0).log.log_end_offset == 5
    assert cluster.core.counters.total("DuplicateBatchesPerSec", "orders") == 1


ORDER: list[tuple[str, dict[str, Any], int]] = [
    ("checksum before size", {"crc": True, "size": True}, 2),
    ("size before header", {"size": True, "control": True}, 10),
    ("header before replication", {"control": True, "replication": True}, 87),
    ("replication before records", {"replication": True, "key": True}, 40),
    ("records before sequence", {"key": True, "sequence": True}, 87),
    ("sequence last", {"sequence": True}, 45),
]


@pytest.mark.parametrize(("name", "faults", "code"), ORDER, ids=[row[0] for row in ORDER])
def test_earlier_check_decides_the_code(name: str, faults: dict[str, bool], code: int) -> None:
    """Each line breaks two neighbouring rules: the earlier one answers."""
    cluster = Cluster()
    cluster.topic("orders", cleanup_policy="compact")
    client = cluster.client()
    assert client.produce("orders", batch_of(b"a", identity=PRODUCER, sequence=0)).error_code == 0
    overrides = {"cleanup.policy": "compact"}
    if "size" in faults:
        overrides["max.message.bytes"] = "10"
    if "replication" in faults:
        overrides["min.insync.replicas"] = "2"
    cluster.core.topics.alter("orders", overrides)
    sequence = 9 if "sequence" in faults else 1
    batch = batch_of(b"b", keys=[None if "key" in faults else b"k"], identity=PRODUCER, sequence=sequence)
    if "control" in faults:
        batch = changed(batch, ATTRIBUTES, b"\x00\x20")
    if "crc" in faults:
        batch = changed(batch, 62, b"\xee", fix_crc=False)
    assert client.produce("orders", batch).error_code == code


def test_refusals_are_logged_once_a_second() -> None:
    cluster, client = cluster_with(COMPACT)
    for _ in range(5):
        client.produce("orders", NO_KEYS)
    assert len(cluster.lines) == 1
    for word in ("Produce", "'test'", "orders-0", "INVALID_COMPACTION_KEY", "null key"):
        assert word in cluster.lines[0]
    cluster.advance(1000)
    assert cluster.lines[1:] == ["refused: client 'test' at orders: 4 more since the last line: INVALID_COMPACTION_KEY 4"]


def test_idempotent_batch_for_an_old_message_format_is_refused() -> None:
    """UNSUPPORTED_FOR_MESSAGE_FORMAT: message.format.version below 0.11 knows no producers."""
    _, client = cluster_with({"message_format_version": "0.10.2"})
    assert client.produce("orders", batch_of(b"a", identity=PRODUCER, sequence=0)).error_code == 43
    assert client.produce("orders", GOOD).error_code == 0


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (produce_request("missing", GOOD), 3),
        (produce_request("orders", GOOD, partition=5), 3),
        (produce_request("orders", GOOD, partition=-1), 3),
        (produce_request("orders", GOOD, acks=2), 21),
        (produce_request("missing", GOOD, acks=2), 3),
        (produce_request("__consumer_offsets", GOOD), 17),
        (produce_request("orders", batch_of(b"a", identity=PRODUCER, sequence=0, transactional=True)), 53),
        (produce_request("orders", batch_of(b"a", identity=PRODUCER, sequence=0, transactional=True), txn="t"), 49),
    ],
    ids=[
        "topic",
        "partition",
        "negative partition",
        "acks",
        "acks and topic",
        "internal",
        "no transactional id",
        "unknown transactional id",
    ],
)
def test_invalid_request_is_refused_before_append(request_: Any, code: int) -> None:
    """What never reaches the batch."""
    cluster = Cluster()
    cluster.topic("orders")
    cluster.topic("__consumer_offsets")
    assert cluster.client().ask(request_).responses[0].partition_responses[0].error_code == code


def test_zstd_needs_version_7() -> None:
    _, client = cluster_with({})
    batch = batch_of(b"a", compression=Compression.ZSTD)
    assert client.produce("orders", bytes(batch), version=6).error_code == 76
    assert client.produce("orders", bytes(batch), version=7).error_code == 0


def test_the_same_partition_twice_gets_one_answer_and_one_batch() -> None:
    cluster, client = cluster_with({})
    request = produce_request("orders", batch_of(b"first"))
    request.topics[0].partitions += produce_request("orders", batch_of(b"last", b"last")).topics[0].partitions
    answer = client.ask(request)
    assert len(answer.responses[0].partition_responses) == 1
    assert cluster.partition("orders", 0).log.log_end_offset == 2


def test_a_topic_named_twice_is_one_topic() -> None:
    """Its partitions are put together; where one comes twice, the last batch wins, as within one topic."""
    cluster = Cluster()
    cluster.topic("orders", 2)
    request = produce_request("orders", batch_of(b"first"))
    request.topics += produce_request("orders", batch_of(b"other"), partition=1).topics
    request.topics += produce_request("orders", batch_of(b"last", b"last")).topics
    answer = cluster.client().ask(request)
    (topic,) = answer.responses
    assert [(part.index, part.error_code) for part in topic.partition_responses] == [(0, 0), (1, 0)]
    assert [partition.log.log_end_offset for partition in cluster.topic_named("orders").partitions] == [2, 1]


def test_topic_ids_name_topics_since_version_13() -> None:
    """Version 13 (KIP-516): the id alone says which topic is meant, in the request and in the answer."""
    cluster = Cluster()
    cluster.topic("orders")
    client = cluster.client()
    request = produce_request("", GOOD)
    request.topics[0].topic_id = cluster.topic_named("orders").topic_id
    request.topics += produce_request("", GOOD).topics
    request.topics[1].topic_id = UUID(int=7)
    known, unknown = client.ask(request, 13).responses
    assert (known.topic_id, known.partition_responses[0].error_code) == (request.topics[0].topic_id, 0)
    refused = unknown.partition_responses[0]
    assert (unknown.topic_id, refused.error_code, refused.base_offset) == (UUID(int=7), 100, -1)
    assert "no topic of this cluster has the id 00000000-0000-0000-0000-000000000007" in refused.error_message
    assert client.produce("orders", GOOD, partition=3, version=13).error_code == 3


def test_log_append_time_is_returned_and_stored() -> None:
    cluster, client = cluster_with({"message_timestamp_type": "LogAppendTime"})
    answer = client.produce("orders", batch_of(b"a", timestamps=[1]))
    assert (answer.error_code, answer.log_append_time_ms) == (0, cluster.steady_ms)
