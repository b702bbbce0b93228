"""Dead letters of a topic replayed with a real Spark."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from chaffinch.admin import offsets
from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors.codes import Group
from chaffinch.identifiers import TopicPartition
from chaffinch.spark import target
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.replay import topic_replay, writing
from chaffinch.spark.replay.ledger import Ledger, read_ledger
from chaffinch.spark.replay.plan import ReplayReport
from chaffinch.spark.replay.replaying import ReplayPlan
from chaffinch.spark.replay.replaying import replay_dead_letters as replay
from chaffinch.spark.sink.options import SinkOptions
from chaffinch.spark.sink.writers import task_plan
from chaffinch.spark.snapshot import TargetSnapshot
from chaffinch.spark.task_facts import TaskContextFacts
from chaffinch.spark.tasks.replay_notes import NOTE, ReplayNotes
from tests.spark.source.source_topics import drop_first
from tests.spark.test_spark_write import alter, values, write

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::FutureWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
MINE = "array(named_struct('key', 'mine', 'value', cast('h' as binary))) as headers"


def rows(spark: SparkSession, first: int) -> DataFrame:
    """Five rows: one without a key, one too large, three good ones."""
    return spark.range(first, first + 5).selectExpr(
        f"if(id = {first}, null, cast(id as string)) as key",
        f"cast(if(id = {first + 1}, repeat('x', 2000), concat('v', id)) as binary) as value",
        "timestamp_millis(1700000000000 + id) as timestamp",
        MINE,
    )


def bad_rows(spark: SparkSession, count: int) -> DataFrame:
    """Without keys, which the topic takes none of."""
    return spark.range(count).selectExpr("cast(null as string) as key", "cast(concat('v', id) as binary) as value")


def plan(broker: EmbeddedBroker, **changes: Any) -> ReplayPlan:
    return ReplayPlan(client={"kafka.bootstrap.servers": broker.bootstrap_servers}, **changes)


def outcome(report: ReplayReport) -> tuple[int, int, Mapping[str, int]]:
    return report.read, report.written, report.still_rejected


def test_topic_is_replayed_once(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are, repaired in part, in whole, and again: each letter is written once; what is rejected again is a letter again."""
    write(rows(spark, 0), broker, topic, errors__tolerance="all", errors__dead__letter__queue__topic__name=dead)
    keyed = plan(broker, topic=dead, repairs={"key": "coalesce(key, value)"})
    before = read_ledger(spark, keyed.client, dead)
    asked, really = [], writing.write

    def noted(*given: Any) -> None:
        asked.append(given[-1])
        really(*given)

    with monkeypatch.context() as patch:
        patch.setattr(writing, "write", noted)
        report = replay(spark, keyed)
    notes = ReplayNotes.of_option(asked[0]["chaffinch.notes"])
    assert notes is not None
    assert notes.ends == {0: 2}
    assert outcome(report) == (2, 1, {"MESSAGE_TOO_LARGE": 1})
    assert "max.message.bytes allows 1000 bytes" in report.examples[0]
    (repaired,) = (row for row in broker.read(topic).to_pylist() if row["key"] == b"v0")
    assert (repaired["value"], [header["key"] for header in repaired["headers"]]) == (b"v0", ["mine"])
    assert repaired["timestamp"].timestamp() == 1_700_000_000

    # Its note covers all partitions, and differs from a letter whose row has headers of the same names.
    (span,) = read_ledger(spark, keyed.client, dead).spans_to_read(is_all=False)
    assert (span.replayed, span.start) == (before.spans[0].end, before.spans[0].end)

    # Another one that began at the same time, and saw a letter more.
    with monkeypatch.context() as patch:
        late = replace(before, spans=tuple(replace(span, end=span.end + 1) for span in before.spans))
        patch.setattr(topic_replay, "read_ledger", lambda *_: late)
        with pytest.raises(Refusal, match=r"REPLAYED_MEANWHILE: another replay of .* was written in the meantime"):
            replay(spark, keyed)

    report = replay(spark, plan(broker, topic=dead, repairs={"value": "concat('cut: ', substring(value, 1, 3))"}))
    assert outcome(report) == (1, 1, {})
    count = broker.read(dead).num_rows
    assert outcome(replay(spark, plan(broker, topic=dead))) == (0, 0, {})
    assert broker.read(dead).num_rows == count
    assert values(broker, topic) == Counter(["v0", "cut: xxx", "v2", "v3", "v4"])

    own = f"array(named_struct('key', '{NOTE}', 'value', cast('{{\"0\":999}}' as binary))) as headers"
    bad = spark.range(1).selectExpr("cast(null as string) as key", "cast('own' as binary) as value", own)
    write(bad, broker, topic, errors__tolerance="all", errors__dead__letter__queue__topic__name=dead)
    assert outcome(replay(spark, keyed)) == (1, 1, {}), "a row that has brought a header of this name with it is a letter"
    assert values(broker, topic)["own"] == 1

    broker.create_topic(f"{topic}-copy", 1, 1, {})
    again = plan(broker, topic=dead, to=f"{topic}-copy", token=f"again-{topic}")
    assert outcome(replay(spark, again)) == (4, 4, {})  # Three letters, and the one that was made of one of them.
    assert replay(spark, again).is_repetition
    assert replay(spark, replace(again, is_dry_run=True)).is_repetition
    assert broker.read(f"{topic}-copy").num_rows == 4


def test_writing_options_have_effect(spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str) -> None:
    """They hold for what is tried and for what is written."""
    write(rows(spark, 0), broker, topic, errors__tolerance="all", errors__dead__letter__queue__topic__name=dead)
    narrow = plan(broker, topic=dead, repairs={"key": "'k'", "value": "repeat('x', 500)"}, writing={"kafka.max.request.size": "400"})
    for each in (replace(narrow, is_dry_run=True), narrow):
        report = replay(spark, each)
        assert outcome(report) == (2, 0, {"MESSAGE_TOO_LARGE": 2})
        assert "kafka.max.request.size allows 400" in report.examples[0]
    assert outcome(replay(spark, replace(narrow, writing={"kafka.max.request.size": "900"}))) == (2, 2, {})


def test_only_one_of_two_concurrent_replays_writes(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have the same token, and would leave the same notes but for their run: what one has written the other does not claim."""
    write(bad_rows(spark, 3), broker, topic, errors__tolerance="all", errors__dead__letter__queue__topic__name=dead)
    first, second = (plan(broker, topic=dead, repairs={"key": f"'{name}'"}) for name in "AB")
    really = writing.write

    def late(*given: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(writing, "write", really)
            assert outcome(replay(spark, first)) == (3, 3, {})
        really(*given)

    with monkeypatch.context() as patch:
        patch.setattr(writing, "write", late)
        with pytest.raises(Refusal, match=r"REPLAYED_MEANWHILE: another replay of .* was written in the meantime, this one wrote"):
            replay(spark, second)
    assert broker.read(topic).column("key").to_pylist() == [b"A"] * 3
    assert outcome(replay(spark, second)) == (0, 0, {})


def test_failure_after_write_says_that_replay_was_written(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(bad_rows(spark, 2), broker, topic, errors__tolerance="all", errors__dead__letter__queue__topic__name=dead)
    keyed = plan(broker, topic=dead, repairs={"key": "value"})

    def fails(*_: object) -> None:
        raise Refusal(Group.RETRIABLE, "REQUEST_TIMED_OUT", "its end cannot be read")

    with monkeypatch.context() as patch:
        patch.setattr(writing, "wait_for_ends", fails)
        with pytest.raises(Refusal, match=r"the replay was written, but its outcome cannot be determined: its end cannot be read"):
            replay(spark, keyed)
    assert values(broker, topic) == {"v0": 1, "v1": 1}
    assert outcome(replay(spark, keyed)) == (0, 0, {})


def test_writing_options_do_not_limit_notes(spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str) -> None:
    """They are no rows: one that became a letter would leave the next replay to write all again."""
    write(bad_rows(spark, 3), broker, topic, errors__tolerance="all", errors__dead__letter__queue__topic__name=dead)
    narrow = plan(broker, topic=dead, repairs={"key": "value"}, writing={"kafka.max.request.size": "120"})
    assert [outcome(replay(spark, narrow)) for _ in range(3)] == [(3, 3, {}), (0, 0, {}), (0, 0, {})]
    assert values(broker, topic) == {"v0": 1, "v1": 1, "v2": 1}


def test_topic_that_rejects_note_gets_no_rows(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is reported before anything is written; if that is impossible, the topic rejects the note, and the rows with it."""
    write(bad_rows(spark, 3), broker, topic, errors__tolerance="all", errors__dead__letter__queue__topic__name=dead)
    alter(broker, dead, "max.message.bytes", "120")
    keyed = plan(broker, topic=dead, repairs={"key": "value"})
    before = broker.read(dead).num_rows
    said = rf"MESSAGE_TOO_LARGE: the note with the ends of the replayed letters in 1 partition of {dead} takes \d+ bytes, max.message.bytes"
    for each in (replace(keyed, is_dry_run=True), keyed):
        with pytest.raises(Refusal, match=rf"{said} of {dead} allows 120; nothing was written; raise it to at least \d+, and start again$"):
            replay(spark, each)
    with monkeypatch.context() as patch:
        patch.setattr(topic_replay, "refuse_large_notes", lambda *_: None)
        for _ in range(2):
            with pytest.raises(Exception, match=r"MESSAGE_TOO_LARGE: the dead letter topic refuses 1 of 1 notes of this replay"):
                replay(spark, keyed)
    assert (values(broker, topic), broker.read(dead).num_rows) == ({}, before)
    alter(broker, dead, "max.message.bytes", "1000")
    assert outcome(replay(spark, keyed)) == (3, 3, {})
    assert values(broker, topic) == {"v0": 1, "v1": 1, "v2": 1}


@pytest.mark.parametrize("named", ["cast('' as binary)", "cast(null as binary)"], ids=["empty", "null"])
def test_letter_without_topic_needs_option(spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str, named: str) -> None:
    """It is a letter, and its reason says what a replay can do about it."""
    letter = f"array(named_struct('key', '__connect.errors.topic', 'value', {named})) as headers"
    write(spark.range(1).selectExpr("cast('v' as binary) as value", letter), broker, dead)
    report = replay(spark, plan(broker, topic=dead, is_dry_run=True))
    assert outcome(report) == (1, 0, {"INVALID_TOPIC_EXCEPTION": 1})
    assert "has no topic and the option topic is not set; set it in a replay with --to or --repair topic=..." in report.examples[0]
    assert outcome(replay(spark, plan(broker, topic=dead, repairs={"topic": f"coalesce(topic, '{topic}')", "key": "'k'"}))) == (1, 1, {})
    assert values(broker, topic) == {"v": 1}


def test_row_headers_with_reserved_names_are_kept(spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str) -> None:
    """Of one that was read from another dead letter topic: they say nothing about this letter."""
    own = {"mine": "1", "__connect.errors.topic": "elsewhere", "chaffinch.error.timestamp": "5", "chaffinch.error.value.sha256": "00"}
    pairs = ", ".join(f"named_struct('key', '{name}', 'value', cast('{value}' as binary))" for name, value in own.items())
    bad = spark.range(1).selectExpr("'v' as value", f"array({pairs}) as headers", "timestamp_millis(1700000000000) as timestamp")
    write(bad, broker, topic, errors__tolerance="all", errors__dead__letter__queue__topic__name=dead)
    assert outcome(replay(spark, plan(broker, topic=dead, repairs={"key": "error_name"}))) == (1, 1, {})
    (row,) = broker.read(topic).to_pylist()
    assert {header["key"]: header["value"].decode() for header in row["headers"]} == own
    assert (row["key"], row["timestamp"].timestamp()) == (b"INVALID_COMPACTION_KEY", 1_700_000_000)


def test_topic_without_dead_letters_is_refused(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    """Its records would else be appended to it once more, as dead letters that name no topic."""
    write(rows(spark, 0).where("key is not null and length(value) < 1000"), broker, topic)
    with pytest.raises(Refusal, match=rf"NOT_DEAD_LETTERS: none of the 3 records in {topic} has the header __connect.errors.topic"):
        replay(spark, plan(broker, topic=topic))
    assert broker.read(topic).num_rows == 3


def test_foreign_records_among_letters_are_skipped(spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str) -> None:
    write(rows(spark, 0), broker, topic, errors__tolerance="all", errors__dead__letter__queue__topic__name=dead)
    non_letters = spark.range(2).selectExpr("cast(id as string) as key", "'stranger' as value")
    write(non_letters, broker, dead)
    keyed = plan(broker, topic=dead, repairs={"key": "'k'", "value": "substring(value, 1, 3)"})
    for expected in ((4, 2, {"NOT_A_DEAD_LETTER": 2}), (0, 0, {})):
        tried, done = replay(spark, replace(keyed, is_dry_run=True)), replay(spark, keyed)
        assert outcome(tried) == outcome(done) == expected
        assert tried.examples == done.examples
        if done.examples:
            assert done.examples[0].startswith(f"the first is {dead}-0 at offset 3: without the header __connect.errors.topic")
    assert broker.read(dead).column("value").to_pylist().count(b"stranger") == 2
    write(non_letters, broker, dead)
    assert outcome(replay(spark, keyed)) == (2, 0, {"NOT_A_DEAD_LETTER": 2}), "a topic that was replayed is one of dead letters"
    assert outcome(replay(spark, keyed)) == (0, 0, {})


def test_dry_run_calls_exception_handler(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    frame = spark.range(10).selectExpr("if(id < 8, cast(id as string), null) as key", "cast(id as string) as value", f"'{topic}' as topic")
    handler = {"kafka.custom.exception.handler.class": "tests.spark.test_spark_direct.LeaveOutNine"}
    tried = writing.dry_run(plan(broker, topic="letters", writing=handler), frame)
    assert (tried.read, tried.written, tried.still_rejected, tried.dropped) == (
        10, 8, {"INVALID_COMPACTION_KEY": 1}, {"INVALID_COMPACTION_KEY": 1},
    )  # fmt: skip


def test_dry_run_waits_for_topic_like_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else letters whose topic comes late are said to be rejected still, and are written."""
    asked = []
    monkeypatch.setattr(target, "client_for", lambda options: None)
    monkeypatch.setattr(target, "find_topic", lambda _, topic, timeout_ms, wait_ms: asked.append((topic, timeout_ms, wait_ms)))
    given = {"kafka.bootstrap.servers": "a:1", "kafka.max.block.ms": "9000", "kafka.retry.unknown.topic.partition.ms": "7000"}
    options = SinkOptions.parse(given, is_stream=False)
    tried = task_plan(options, TargetSnapshot(topics=()), TaskContextFacts(task=0), "")
    assert tried.snapshot_of("late", tried.options.topic_wait_ms) is None
    assert asked == [("late", 9_000, 7_000)]


def test_dry_run_detects_min_insync_above_replicas(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    broker.create_topic(f"{topic}-two", 1, 1, {"min.insync.replicas": 2})
    with pytest.raises(
        Exception, match=r"KAFKA\[InvalidConfiguration\] INCONSISTENT_REPLICATION_FACTOR: topic .*-two has replication factor 1"
    ):
        writing.dry_run(plan(broker, topic="letters"), spark.range(10).selectExpr("cast(id as string) as value", f"'{topic}-two' as topic"))


def test_letters_removed_during_read_fail_replay(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(rows(spark, 0), broker, topic, errors__tolerance="all", errors__dead__letter__queue__topic__name=dead)

    def rows_there() -> tuple[list[int], list[int]]:
        """Offsets of all rows, and of the last letter: the first is removed below."""
        return broker.read(topic).column("offset").to_pylist(), broker.read(dead).column("offset").to_pylist()[-1:]

    before = rows_there()
    find = read_ledger

    def late(*asked: Any) -> Ledger:
        found = find(*asked)
        with SyncClient(broker.bootstrap_servers) as client:
            drop_first(client, TopicPartition(dead, 0), 1)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(topic_replay, "read_ledger", late)
        with pytest.raises(Refusal, match=r"LETTERS_REMOVED: .*-0 begins at offset 1, offset 0 was requested: letters were removed"):
            replay(spark, plan(broker, topic=dead))
    assert rows_there() == before


def test_topic_with_expired_notes_is_replayed(spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str) -> None:
    """Replayed letters have expired with their note: new letters are replayed, although the ledger is the same as at first."""
    for first in (0, 10):
        write(rows(spark, first), broker, topic, errors__tolerance="all", errors__dead__letter__queue__topic__name=dead)
        keyed = plan(broker, topic=dead, repairs={"key": "'k'", "value": f"'repaired {first}'"})
        assert outcome(replay(spark, keyed)) == (2, 2, {})
        with SyncClient(broker.bootstrap_servers) as client:
            drop_first(client, TopicPartition(dead, 0), offsets.latest(client, [TopicPartition(dead, 0)])[TopicPartition(dead, 0)])
    assert {value: count for value, count in values(broker, topic).items() if count > 1} == {"repaired 0": 2, "repaired 10": 2}
