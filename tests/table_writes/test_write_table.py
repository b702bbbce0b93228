"""`write_table`: inputs, bad rows, tokens, wrong arguments; without PySpark."""

from __future__ import annotations

import itertools
import pickle
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chaffinch import InvalidColumn, TopicPartition, WriteTableResult, write_table
from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.errors import ConfigException, TableWriteException
from chaffinch.errors.codes import Group
from chaffinch.spark.sink import planning
from chaffinch.table_writes import writing
from chaffinch.table_writes.options import in_own_names

_numbers = itertools.count()
ROWS = {"key": ["a", "b", "c"], "value": ["1", "2", "3"]}


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    """A compacted topic with small records."""
    name = f"orders-{next(_numbers)}"
    broker.create_topic(name, 3, 1, {"cleanup.policy": "compact", "max.message.bytes": 10_000})
    return name


@pytest.fixture
def dead(broker: EmbeddedBroker) -> str:
    name = f"dead-{next(_numbers)}"
    broker.create_topic(name, 1)
    return name


@pytest.fixture
def token(topic: str) -> str:
    return f"of-{topic}"


def values(broker: EmbeddedBroker, topic: str) -> list[bytes]:
    return sorted(broker.read(topic).column("value").to_pylist())


FORMS: Mapping[str, Any] = {
    "table": lambda: pa.table(ROWS),
    "record batch": lambda: pa.record_batch(ROWS),
    "reader": lambda: pa.table(ROWS).to_reader(max_chunksize=1),
    "pandas": lambda: pd.DataFrame(ROWS),
    "polars": lambda: pl.DataFrame(ROWS),
    "duckdb": lambda: duckdb.sql("select unnest(['a', 'b', 'c']) as key, unnest(['1', '2', '3']) as value"),
}


@pytest.mark.parametrize("form", FORMS)
def test_tables_of_all_kinds_are_written_once(broker: EmbeddedBroker, topic: str, token: str, form: str) -> None:
    results = [write_table(FORMS[form](), topic, idempotency_token=token, bootstrap_servers=broker.bootstrap_servers) for _ in range(2)]
    assert results == [WriteTableResult(outcome="written", written=3), WriteTableResult(outcome="skipped")]
    assert values(broker, topic) == [b"1", b"2", b"3"]


def test_all_columns_are_written(broker: EmbeddedBroker, topic: str, token: str) -> None:
    table = pa.table(
        {
            "key": pa.array(["a", "b"]).dictionary_encode(), "value": pa.array([b"1", None], pa.large_binary()),
            "timestamp": pa.array([1_700_000_000, 1_700_000_001], pa.timestamp("s", "UTC")),
            "headers": pa.array([[("h", b"x")], None], pa.map_(pa.string(), pa.binary())),
            "partition": pa.array([2, None], pa.uint32()), "topic": pa.array([topic, topic]).dictionary_encode(),
        }
    )  # fmt: skip
    done = write_table(table, idempotency_token=token, marker_topic=topic, options={"bootstrap.servers": broker.bootstrap_servers})
    assert done.written == 2
    first, second = sorted(broker.read(topic).to_pylist(), key=lambda row: row["key"])
    assert (first["partition"], first["value"], first["headers"]) == (2, b"1", [{"key": "h", "value": b"x"}])
    assert [row["timestamp"].timestamp() for row in (first, second)] == [1_700_000_000, 1_700_000_001]
    assert (second["value"], second["headers"]) == (None, [])


@pytest.mark.parametrize("kind", [pa.large_list, pa.list_], ids=["large_list", "list"])
def test_headers_of_list_types_are_written(broker: EmbeddedBroker, topic: str, token: str, kind: Any) -> None:
    headers = pa.array([[{"key": "h", "value": "x"}]], kind(pa.struct([("key", pa.string()), ("value", pa.string())])))
    table = pa.table({"key": ["a"], "value": ["1"], "headers": headers})
    write_table(table, topic, idempotency_token=token, bootstrap_servers=broker.bootstrap_servers)
    assert broker.read(topic).column("headers").to_pylist() == [[{"key": "h", "value": b"x"}]]


def test_rows_dead_letters_and_marker_are_in_one_transaction(
    broker: EmbeddedBroker, topic: str, dead: str, token: str, tmp_path: Path
) -> None:
    table = pa.table({"key": ["a", None, "c", "d"], "value": ["1", "2", "3", "4"], "why": [None, None, "", "no customer"]})
    done = write_table(
        table, topic, idempotency_token=token, dead_letters=dead, dead_letter_path=tmp_path, reason_column="why", rejected_max="50%",
        bootstrap_servers=broker.bootstrap_servers,
    )  # fmt: skip
    assert (done.outcome, done.written) == ("written", 2)
    assert done.rejected == {"INVALID_COMPACTION_KEY": 1, "INVALID_RECORD: no customer": 1}
    assert values(broker, topic) == [b"1", b"3"]
    letters = {row["value"]: {pair["key"]: pair["value"] for pair in row["headers"]} for row in broker.read(dead).to_pylist()}
    assert letters.keys() == {b"2", b"4"}
    assert letters[b"4"]["chaffinch.error.message"] == b"no customer"
    assert letters[b"4"]["chaffinch.error.query"] == token.encode()
    (file,) = tmp_path.glob("*.parquet")
    assert sorted(pq.read_table(file).column("error_message").to_pylist())[0] == "no customer"


def test_first_bad_row_fails_write_without_dead_letters(broker: EmbeddedBroker, topic: str, token: str) -> None:
    table = pa.table({"key": ["a", None], "value": ["1", "2"]})
    with pytest.raises(TableWriteException) as caught:
        write_table(table, topic, idempotency_token=token, bootstrap_servers=broker.bootstrap_servers)
    assert str(caught.value).startswith(
        "ROWS_REJECTED: 1 of 2 rows are rejected (1 INVALID_COMPACTION_KEY), none is allowed without dead_letters; nothing was written; "
        "give dead_letters or dead_letter_path to write the others; the first 1: row 1 for"
    )
    assert (caught.value.error_name, caught.value.group) == ("ROWS_REJECTED", Group.INVALID_CONFIGURATION)
    assert pickle.loads(pickle.dumps(caught.value)) == caught.value
    assert values(broker, topic) == []
    done = write_table(table.slice(0, 1), topic, idempotency_token=token, bootstrap_servers=broker.bootstrap_servers)
    assert done.outcome == "written"


def test_more_bad_rows_than_allowed_fail_write(broker: EmbeddedBroker, topic: str, dead: str, token: str) -> None:
    table = pa.table({"key": pa.nulls(3, pa.string()), "value": ["1", "2", "3"]})
    given: dict[str, Any] = {"dead_letters": dead, "bootstrap_servers": broker.bootstrap_servers}
    with pytest.raises(TableWriteException, match=r"3 of 3 rows are rejected .*, rejected_max=2 allows fewer; nothing was written"):
        write_table(table, topic, idempotency_token=token, rejected_max=2, **given)
    assert values(broker, dead) == []
    assert write_table(table, topic, idempotency_token=token, rejected_max=3, **given).written == 0
    assert values(broker, dead) == [b"1", b"2", b"3"]


def test_culprits_that_only_the_broker_finds_become_dead_letters(
    broker: EmbeddedBroker, topic: str, dead: str, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is compacted after the snapshot."""
    open_topic = f"{topic}-open"
    broker.create_topic(open_topic, 1)
    planned = planning.planned_target

    def then_compacted(*arguments: Any) -> Any:
        found = planned(*arguments)
        alter(broker, open_topic)
        return found

    monkeypatch.setattr(writing, "planned_target", then_compacted)
    table = pa.table({"key": ["a", None, "c"], "value": ["1", "2", "3"]})
    done = write_table(table, open_topic, idempotency_token=token, dead_letters=dead, bootstrap_servers=broker.bootstrap_servers)
    assert (done.written, done.rejected) == (2, {"INVALID_COMPACTION_KEY": 1})
    assert (values(broker, open_topic), values(broker, dead)) == ([b"1", b"3"], [b"2"])


def alter(broker: EmbeddedBroker, topic: str) -> None:
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    for done in admin.incremental_alter_configs([ConfigResource("topic", topic, incremental_configs=[entry])]).values():
        done.result(30)


def test_large_table_is_staged_in_files_that_are_removed(
    broker: EmbeddedBroker, topic: str, dead: str, token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "STAGED_IN_MEMORY_BYTES", 1000)
    folder = tmp_path / "staging"
    table = pa.table({"key": [f"k{number}" for number in range(500)], "value": ["x" * 100] * 500})
    given: dict[str, Any] = {"staging_location": folder, "bootstrap_servers": broker.bootstrap_servers}
    assert write_table(table, topic, idempotency_token=token, **given).written == 500
    assert len(values(broker, topic)) == 500
    assert not [path for path in folder.rglob("*") if path.is_file()]
    bad = pa.table({"key": pa.nulls(500, pa.string()), "value": ["x" * 100] * 500})
    with pytest.raises(TableWriteException, match="ROWS_REJECTED"):
        write_table(bad, topic, idempotency_token=f"{token}-bad", **given)
    assert not [path for path in folder.rglob("*") if path.is_file()]


def test_table_without_rows_leaves_token_unused(broker: EmbeddedBroker, topic: str, token: str) -> None:
    empty = pa.table({"key": pa.array([], pa.string()), "value": pa.array([], pa.null())})
    tables = {"empty": empty, "written": pa.table(ROWS)}
    for outcome, table in tables.items():
        assert write_table(table, topic, idempotency_token=token, bootstrap_servers=broker.bootstrap_servers).outcome == outcome


def test_concurrent_writes_of_one_token_store_it_once(broker: EmbeddedBroker, topic: str, token: str) -> None:
    def write(number: int) -> str:
        try:
            return write_table(pa.table(ROWS), topic, idempotency_token=token, bootstrap_servers=broker.bootstrap_servers).outcome
        except TableWriteException as error:
            return f"refused: {error.group.value}"

    with ThreadPoolExecutor(4) as pool:
        outcomes = Counter(pool.map(write, range(8)))
    assert outcomes["written"] <= 1
    assert f"refused: {Group.INVALID_CONFIGURATION.value}" not in outcomes
    assert write(8) == ("skipped" if outcomes["written"] or outcomes["skipped"] else "written")
    assert values(broker, topic) == [b"1", b"2", b"3"]


def test_different_tokens_are_written_at_the_same_time(broker: EmbeddedBroker, topic: str, token: str) -> None:
    def write(number: int) -> str:
        table = pa.table({"key": ["k"], "value": [str(number)]})
        return write_table(table, topic, idempotency_token=f"{token}-{number}", bootstrap_servers=broker.bootstrap_servers).outcome

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(write, range(8))) == {"written"}
    assert values(broker, topic) == [b"%d" % number for number in range(8)]


def test_unreachable_broker_is_retriable() -> None:
    with pytest.raises(TableWriteException) as caught:
        write_table(pa.table(ROWS), "t", idempotency_token="x", bootstrap_servers="127.0.0.1:1", max_block_ms=300)
    assert caught.value.group is Group.RETRIABLE
    assert "127.0.0.1:1" in str(caught.value)
    assert str(caught.value).endswith("run it again")


def test_missing_topics_are_named(broker: EmbeddedBroker, topic: str, token: str) -> None:
    given: dict[str, Any] = {"idempotency_token": token, "bootstrap_servers": broker.bootstrap_servers}
    with pytest.raises(TableWriteException, match=r"^UNKNOWN_TOPIC_OR_PARTITION: topic 'no' \(argument topic\) does not exist on"):
        write_table(pa.table(ROWS), "no", **given)
    with pytest.raises(TableWriteException, match=r"topic 'no' \(argument dead_letters\) does not exist"):
        write_table(pa.table(ROWS), topic, dead_letters="no", **given)
    broker.create_topic(f"{topic}-2", 1, 1, {"cleanup.policy": "compact"})
    with pytest.raises(TableWriteException, match=rf"INVALID_CONFIG: dead_letters={topic}-2 is compacted"):
        write_table(pa.table(ROWS), topic, dead_letters=f"{topic}-2", **given)


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"idempotency_token": None}, ConfigException, "argument idempotency_token cannot be None: give a name for this write"),
    ({"idempotency_token": " "}, ConfigException, "argument idempotency_token is empty"),
    ({"idempotency_token": 3}, TypeError, "argument idempotency_token must be a string, and is a int"),
    ({"idempotency_token": "x" * 40_000}, ConfigException, "argument idempotency_token has 40000 bytes: it must have at most"),
    ({"topic": None}, ConfigException, "argument topic is missing: name the target topic; if rows name theirs in a topic column"),
    ({"topic": "a b"}, ConfigException, "argument topic cannot be 'a b': topic 'a b' is not a legal name"),
    ({"dead_letters": "t"}, ConfigException, "argument dead_letters cannot be 't': it is the target topic itself"),
    ({"dead_letters": ""}, ConfigException, "argument dead_letters is empty"),
    ({"rejected_max": 3}, ConfigException, "argument rejected_max needs dead_letters or dead_letter_path"),
    ({"rejected_max": "x", "dead_letters": "d"}, ConfigException, "argument rejected_max cannot be 'x': it must be a count"),
    ({"rejected_max": True, "dead_letters": "d"}, ConfigException, "argument rejected_max cannot be True"),
    ({"reason_column": "key"}, ConfigException, "argument reason_column cannot be 'key': that column is part of the record"),
    ({"reason_column": "why"}, InvalidColumn, r"column 'why' is missing \(argument reason_column\); allowed: a string in bad rows"),
    ({"bootstrap_servers": None}, ConfigException, "option bootstrap.servers is missing"),
    ({"linger_msx": 1}, ConfigException, "unknown option 'linger_msx'"),
    ({"acks": "1"}, ConfigException, "acks"),
    ({"enable_idempotence": False}, ConfigException, "enable.idempotence.*a transaction needs it"),
    ({"key_serializer": str}, ConfigException, "keys and values are written as they are"),
    ({"table": [1]}, TypeError, "argument table must be a pyarrow Table"),
    ({"table": pa.table({"v": ["1"]})}, InvalidColumn, "column 'v' is unknown"),
    ({"table": pa.table({"key": ["1"]})}, InvalidColumn, "column 'value' is missing"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "kind", "text"), WRONG, ids=[",".join(case[0]) for case in WRONG])
def test_wrong_arguments_are_refused_before_connecting(changed: dict[str, Any], kind: type[Exception], text: str) -> None:
    given = {"table": pa.table(ROWS), "topic": "t", "idempotency_token": "x", "bootstrap_servers": "127.0.0.1:1", **changed}
    with pytest.raises(kind, match=text):
        write_table(**given)


COLUMNS: list[tuple[dict[str, Any], str]] = [
    ({"value": [1]}, "column 'value' is int64; allowed: binary, string"),
    ({"value": ["1"], "partition": ["0"]}, "column 'partition' is string; allowed: whole numbers"),
    ({"value": ["1"], "partition": [-1]}, "column 'partition' is int64 with -1 in row 0"),
    ({"value": ["1"], "topic": [3]}, "column 'topic' is int64; allowed: a string in each row"),
    ({"value": ["1"], "headers": ["h"]}, "column 'headers' is string"),
    ({"value": ["1"], "why": [1]}, "column 'why' is int64; allowed: a string in bad rows"),
]


@pytest.mark.parametrize(("columns", "text"), COLUMNS, ids=[",".join(case[0]) for case in COLUMNS])
def test_wrong_column_types_are_refused(broker: EmbeddedBroker, topic: str, columns: dict[str, Any], text: str) -> None:
    reason = "why" if "why" in columns else None
    with pytest.raises(InvalidColumn, match=re.escape(text)):
        write_table(pa.table(columns), topic, idempotency_token="x", reason_column=reason, bootstrap_servers=broker.bootstrap_servers)


def test_texts_of_the_sink_name_arguments_of_the_call() -> None:
    text = (
        "kafka.transaction.timeout.ms=1 of org.apache.kafka.common: markerTopic, stagingLocation=/x, another idempotencyToken; "
        "row 3 of task 0 for t-0; errors.tolerance.max=5% allows fewer; topic 'a' (option errors.dead.letter.queue.topic.name)"
    )
    assert in_own_names(text) == (
        "transaction.timeout.ms=1 of org.apache.kafka.common: marker_topic, staging_location=/x, another idempotency_token; "
        "row 3 for t-0; rejected_max=5% allows fewer; topic 'a' (argument dead_letters)"
    )


def test_pyspark_is_not_needed(broker: EmbeddedBroker, topic: str, token: str) -> None:
    code = (
        "import sys; sys.modules['pyspark'] = sys.modules['py4j'] = None\n"
        "import pyarrow as pa, chaffinch\n"
        f"print(chaffinch.write_table(pa.table({ROWS!r}), {topic!r}, idempotency_token={token!r}, "
        f"bootstrap_servers={broker.bootstrap_servers!r}).written)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("3\n", 0), done.stderr


def test_marker_names_the_token(broker: EmbeddedBroker, topic: str, token: str) -> None:
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as ForeignPartition

    write_table(pa.table(ROWS), topic, idempotency_token=token, bootstrap_servers=broker.bootstrap_servers)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": f"chaffinch-{token}"})
    (found,) = consumer.committed([ForeignPartition(topic, 0)], timeout=30)
    consumer.close()
    assert found.offset >= 0
    assert TopicPartition(found.topic, found.partition) == TopicPartition(topic, 0)
