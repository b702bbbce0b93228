"""`chaffinch produce --message-format 0|1`: the embedded broker takes old formats and converts them; Apache Kafka 4 does not any more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaffinch import EmbeddedBroker
from chaffinch.protocol.apis import APIS
from chaffinch.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from chaffinch.protocol.messages.produce import ProduceRequest
from chaffinch.records.columns import RecordColumns
from chaffinch.records.compression import Compression
from chaffinch.records.old_formats.encoding import CODECS, encode_message_set
from tests.cli.checks_records import TIME_MS, pairs, records
from tests.cli.shell import Shell
from tests.client.scripted_server import ScriptedServer
from tests.support import raw_messages

CASES = [(magic, codec) for magic, codecs in CODECS.items() for codec in codecs]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"plain": {"partitions": 2}, "compacted": {"cleanup.policy": "compact"}}) as running:
        yield running


@pytest.fixture
def shell(broker: EmbeddedBroker, tmp_path: Path) -> Shell:
    return Shell(broker.bootstrap_servers, tmp_path, "old")


@pytest.mark.parametrize(("magic", "codec"), CASES, ids=lambda value: str(getattr(value, "name", value)).lower())
def test_message_sets_match_handmade_bytes(magic: int, codec: Compression) -> None:
    columns = RecordColumns.from_lists([b"k", None, b""], [b"v", b"", None], [TIME_MS, TIME_MS + 5, TIME_MS + 2])
    messages = [
        raw_messages.message(columns.key(index), columns.value(index), magic=magic, offset=index, timestamp=int(columns.timestamps[index]))
        for index in range(3)
    ]
    if codec is Compression.NONE:
        expected = b"".join(messages)
    else:
        inner = raw_messages.compressed(b"".join(messages), codec, magic)
        expected = raw_messages.message(None, inner, magic=magic, offset=2, attributes=codec, timestamp=TIME_MS + 5)
    assert encode_message_set(columns, magic, codec) == expected


@pytest.mark.parametrize(("magic", "codec"), CASES, ids=lambda value: str(getattr(value, "name", value)).lower())
def test_rows_are_written_in_old_formats(broker: EmbeddedBroker, shell: Shell, magic: int, codec: Compression) -> None:
    topic = f"rows-{magic}-{codec.name}"
    broker.create_topic(topic, 1)
    rows = [{"key": "a", "value": "1", "timestamp": TIME_MS}, {"key": None, "value": None, "timestamp": TIME_MS + 7}]
    how = ("--message-format", str(magic), "--compression", codec.name.lower(), "--format", "json")
    made = shell.ok("produce", "--topic", topic, *how, stdin="".join(f"{json.dumps(row)}\n" for row in rows).encode())
    assert made.out == f"2 rows written to {topic}\n"
    found = records(shell, topic)
    assert [(record["key"], record["value"]) for record in found] == [("a", "1"), (None, None)]
    if magic:
        assert [record["timestamp"] for record in found] == [TIME_MS, TIME_MS + 7]


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv", "jsonl"])
def test_missing_timestamps_round_trip_as_null(broker: EmbeddedBroker, shell: Shell, suffix: str) -> None:
    """A file has null for the -1 that brokers have; a row without a time gets that of its writing."""
    source, copy, file = f"timeless-{suffix}", f"copied-{suffix}", shell.folder / f"rows.{suffix}"
    for topic in (source, copy):
        broker.create_topic(topic, 1)
    shell.ok("produce", "--topic", source, "--message-format", "0", "--key-separator", ":", stdin=b"a:1\nb:2\n")
    shell.ok("produce", "--topic", source, "--format", "json", stdin=b'{"key":"c","value":"3","timestamp":%d}\n' % TIME_MS)
    assert [record["timestamp"] for record in records(shell, source)] == [None, None, TIME_MS]
    shell.ok("consume", "--topic", source, "--output", str(file))
    assert shell.ok("produce", "--topic", copy, str(file)).out == f"3 rows written to {copy}\n"
    assert pairs(shell, copy) == [("a", "1"), ("b", "2"), ("c", "3")]
    times = [record["timestamp"] for record in records(shell, copy)]
    assert times[2] == TIME_MS
    assert all(isinstance(time, int) and time > TIME_MS for time in times[:2])


def test_old_formats_use_the_usual_partitions(shell: Shell) -> None:
    keys = b"".join(b"key-%d:v\n" % number for number in range(20))
    shell.ok("produce", "--topic", "plain", "--message-format", "1", "--key-separator", ":", stdin=keys)
    old = {record["key"]: record["partition"] for record in records(shell, "plain")}
    shell.ok("produce", "--topic", "plain", "--key-separator", ":", stdin=keys)
    assert [old[record["key"]] for record in records(shell, "plain")] == [record["partition"] for record in records(shell, "plain")]


def test_refused_set_rejects_all_its_rows(shell: Shell) -> None:
    """Produce 2 has no place for culprits."""
    file = str(shell.folder / "rejected.jsonl")
    rows = b'{"key":"a","value":"1"}\n{"value":"2"}\n{"key":"b","value":"3","headers":{"h":"x"}}\n{"key":"c","value":"4","partition":9}\n'
    made = shell("produce", "--topic", "compacted", "--message-format", "1", "--format", "json", "--rejected", file, stdin=rows)
    assert (made.status, "4 rows rejected, 0 written" in made.err) == (1, True)
    kept = [json.loads(line) for line in (shell.folder / "rejected.jsonl").read_text().splitlines()]
    assert sorted((row["row"], row["error_name"]) for row in kept) == [
        (1, "INVALID_REQUEST"),
        (2, "INVALID_REQUEST"),
        (3, "INVALID_RECORD"),
        (4, "UNKNOWN_TOPIC_OR_PARTITION"),
    ]
    assert pairs(shell, "compacted") == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("0", "--compression", "zstd"), "none, gzip, snappy, not zstd"),
        (("0", "--compression", "lz4"), "none, gzip, snappy, not lz4"),
        (("1", "--transactional-id", "t"), "neither idempotent nor transactional"),
        (("1", "--idempotent"), "neither idempotent nor transactional"),
        (("1", "--acks", "0"), "--acks must be all or 1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_options_without_old_format_are_refused(shell: Shell, arguments: tuple[str, ...], says: str) -> None:
    shell.refused("produce", "--topic", "plain", "--message-format", *arguments, says=says, status=2)


def test_broker_without_old_formats_is_reported(tmp_path: Path) -> None:
    def script(server: ScriptedServer, message: object) -> object:
        if not isinstance(message, ApiVersionsRequest):
            return None
        first = {ProduceRequest.API_KEY: 3}  # As Apache Kafka 4.
        rows = [ApiVersion(api_key=key, min_version=first.get(key, api.served[0]), max_version=api.served[-1]) for key, api in APIS.items()]
        return ApiVersionsResponse(api_keys=rows)

    with ScriptedServer(script) as server:
        shell = Shell(server.bootstrap_servers, tmp_path, "new")
        shell.refused("produce", "--topic", "orders", "--message-format", "0", says="format 0 needs Produce 1 or older", stdin=b"a\n")


@pytest.mark.parametrize(
    ("magic", "codec", "headers", "says"),
    [(2, 0, [], "format 2"), (1, 4, [], "no zstd"), (0, 3, [], "no lz4"), (1, 0, [("h", b"")], "no headers")],
)
def test_rows_that_cannot_be_encoded_are_rejected(magic: int, codec: int, headers: list[tuple[str, bytes]], says: str) -> None:
    columns = RecordColumns.from_lists(None, [b"v"], [0], [headers])
    with pytest.raises(ValueError, match=says):
        encode_message_set(columns, magic, Compression(codec))
