"""Letters that are in a topic and in Parquet files alike, replayed from both with a real Spark: each is written once, in every order."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from chaffinch import NonRetriableResponse, ProducerExceptionHandler, ProducerRecord
from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import RecordTooLargeException
from chaffinch.identifiers import TopicPartition
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.replay import file_replay, writing
from chaffinch.spark.replay.ledger import read_ledger
from chaffinch.spark.replay.plan import ReplayPlan
from chaffinch.spark.replay.replaying import replay_dead_letters as replay
from chaffinch.spark.tasks import dead_letter_headers
from tests.spark.source.source_topics import drop_first
from tests.spark.test_spark_replay import outcome, plan
from tests.spark.test_spark_write import alter, values, write

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::FutureWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
Both: TypeAlias = tuple[ReplayPlan, ReplayPlan]

LARGE = "x" * 2000
CUT_AT = 1_500
ALL = Counter({f"v{number}": 1 for number in range(8)} | {f"{LARGE}{number}": 1 for number in (8, 9)} | {"old": 1, "good": 1})
"""What is in the topic when all letters are written."""


@pytest.fixture
def both(spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str, tmp_path: Path) -> Both:
    """Letters of one batch in both places: eight without keys, two of them alike, two that the dead letter topic cuts, one that is too old;
    and a good row."""
    alter(broker, dead, "max.message.bytes", str(CUT_AT))
    alter(broker, topic, "message.timestamp.before.max.ms", "1000000000000")
    keyless = "if(id < 10, null, 'k')"
    value = f"CASE WHEN id < 8 THEN concat('v', id) WHEN id < 10 THEN concat('{LARGE}', id) WHEN id = 10 THEN 'old' ELSE 'good' END"
    frame = spark.range(12).selectExpr(
        f"{keyless} as key",
        f"cast({value} as binary) as value",
        "if(id = 10, timestamp_millis(5), timestamp_millis(1700000000000)) as timestamp",
    )
    folder = str(tmp_path / "letters")
    places = {"errors__dead__letter__queue__topic__name": dead, "errors__dead__letter__path": folder}
    write(frame.repartition(2), broker, topic, errors__tolerance="all", **places)
    assert (broker.read(dead).num_rows, values(broker, topic)) == (11, {"good": 1})
    alter(broker, topic, "max.message.bytes", "100000")
    repairs = {"key": "coalesce(key, 'k')", "timestamp": "timestamp_millis(1700000000000)"}
    of_topic_ = plan(broker, topic=dead, repairs=repairs)
    return of_topic_, replace(of_topic_, topic=None, path=folder)


def written(spark: SparkSession, *plans: ReplayPlan) -> list[tuple[int, int, int, int]]:
    return [
        (report.read, report.written, report.written_before, sum(report.still_rejected.values()))
        for report in (replay(spark, each) for each in plans)
    ]


def without_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Letters as an earlier version makes them: without the row in the topic, and without a word of the topic in the file."""
    from chaffinch.records.columns import RecordColumns
    from chaffinch.spark.tasks import dead_letters

    really = dead_letter_headers.with_reasons

    def as_before(*given: Any) -> RecordColumns:
        found = really(*given)
        headers = [[pair for pair in found.headers(index) if pair[0] != dead_letter_headers.ROW] for index in range(len(found))]
        keys, bytes_of = ([read(index) for index in range(len(found))] for read in (found.key, found.value))
        return RecordColumns.from_lists(keys, bytes_of, found.timestamps, headers)

    monkeypatch.setattr(dead_letters, "with_reasons", as_before)


class LeaveOutLarge(ProducerExceptionHandler):
    """Tasks import it by its name."""

    def handle_record_too_large(self, record: ProducerRecord, exception: RecordTooLargeException) -> NonRetriableResponse:
        return NonRetriableResponse.SWALLOW


@pytest.mark.parametrize("place", ["topic", "files"])
@pytest.mark.parametrize(
    "handler",
    [
        {"kafka.drop.invalid.large.records": "true"},
        {"kafka.custom.exception.handler.class": "tests.spark.test_spark_replay_both.LeaveOutLarge"},
    ],
    ids=["option", "handler"],
)
def test_handler_is_called_for_too_large_letters(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str, tmp_path: Path, place: str, handler: Mapping[str, str]
) -> None:
    """KIP-1038, by what the topic takes; what it swallows is done with, in both places."""
    folder = str(tmp_path / "letters")
    frame = spark.range(4).selectExpr(
        "if(id = 0, null, cast(id as string)) as key", f"cast(if(id = 1, '{LARGE}', concat('v', id)) as binary) as value"
    )
    places = {"errors__dead__letter__queue__topic__name": dead, "errors__dead__letter__path": folder}
    write(frame, broker, topic, errors__tolerance="all", **places)
    of_topic_ = plan(broker, topic=dead, repairs={"key": "coalesce(key, 'k')"}, writing=handler)
    of_files_ = replace(of_topic_, topic=None, path=folder)
    mine, others = (of_topic_, of_files_) if place == "topic" else (of_files_, of_topic_)
    for each in (replace(mine, is_dry_run=True), mine):
        report = replay(spark, each)
        assert (outcome(report), report.dropped) == ((2, 1, {}), {"MESSAGE_TOO_LARGE": 1})
    assert replay(spark, others).written_before == 2
    assert (replay(spark, mine).read, replay(spark, others).read) == (0, 0)
    assert values(broker, topic) == {"v0": 1, "v2": 1, "v3": 1}


def test_topic_replay_then_file_replay_writes_letters_once(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, both: Both, dead: str
) -> None:
    """What the topic holds cut comes from the files, and nothing is written twice."""
    of_topic_, of_files_ = both
    (first,) = written(spark, of_topic_)
    assert first == (11, 9, 0, 2)
    tried = replay(spark, replace(of_files_, is_dry_run=True))
    assert (tried.read, tried.written, tried.written_before, tried.still_rejected) == (11, 11, 9, {})
    ((name, count),) = tried.written_before_by.items()
    assert name.startswith("replay ")
    assert f" of {dead}, " in name
    assert count == 9
    assert written(spark, of_files_, of_files_, of_topic_) == [(11, 11, 9, 0), (0, 0, 0, 0), (0, 0, 0, 0)]
    assert values(broker, topic) == ALL


def test_file_replay_then_topic_replay_writes_letters_once(spark: SparkSession, broker: EmbeddedBroker, topic: str, both: Both) -> None:
    of_topic_, of_files_ = both
    assert written(spark, of_files_) == [(11, 11, 0, 0)]
    tried = replay(spark, replace(of_topic_, is_dry_run=True))
    assert (tried.read, tried.written, tried.written_before) == (11, 11, 11)
    ((name, _),) = tried.written_before_by.items()
    assert " of a Parquet file, noted in " in name
    assert written(spark, of_topic_, of_topic_, of_files_) == [(11, 11, 11, 0), (0, 0, 0, 0), (0, 0, 0, 0)]
    assert values(broker, topic) == ALL


@pytest.mark.parametrize("order", ["ttff", "ffft", "tfft", "fttf"])
def test_selection_then_rest_writes_letters_once(spark: SparkSession, broker: EmbeddedBroker, topic: str, both: Both, order: str) -> None:
    """Of either place, after a selection in either."""
    of_topic_, of_files_ = both
    places = {"t": of_topic_, "f": of_files_}
    assert broker.read(topic).num_rows == 1
    (old,) = written(spark, replace(places[order[0]], only=["INVALID_TIMESTAMP"]))
    assert old[:2] == (1, 1)
    assert values(broker, topic) == {"good": 1, "old": 1}
    some = replay(spark, replace(places[order[1]], where="cast(value as string) < 'v3'"))
    assert some.not_selected > 0
    for place in order[2:]:
        replay(spark, places[place])
    replay(spark, of_files_)
    assert values(broker, topic) == ALL
    assert written(spark, of_topic_, of_files_)[1] == (0, 0, 0, 0)
    assert values(broker, topic) == ALL


def test_nondeterministic_condition_is_evaluated_once(spark: SparkSession, broker: EmbeddedBroker, topic: str, both: Both) -> None:
    """What is written and what is noted are the same letters."""
    for place in both:
        replay(spark, replace(place, where="rand() < 0.5"))
    for place in reversed(both):
        replay(spark, place)
    assert values(broker, topic) == ALL


def test_file_replay_killed_at_each_step_writes_letters_once(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the write, the note in the topic says that the file is done with, and what became of its letters."""
    of_topic_, of_files_ = both
    some = replace(of_files_, where="cast(value as string) < 'v3'")

    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(writing, "write", dies)
        with pytest.raises(KeyboardInterrupt):
            replay(spark, some)
    assert values(broker, topic) == {"good": 1}
    with monkeypatch.context() as patch:
        patch.setattr(file_replay, "_move_to_replayed", dies)
        with pytest.raises(KeyboardInterrupt):
            replay(spark, some)
    assert sum(values(broker, topic).values()) == 5
    again = replay(spark, some)
    assert (again.written, again.written_before) == (3, 3) or again.read >= 3
    replay(spark, of_topic_)
    replay(spark, of_files_)
    assert values(broker, topic) == ALL


def test_pending_file_after_write_is_renamed(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, both: Both, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those that were not selected are in a pending file only: the next replay gives it its name, as the note says."""
    of_topic_, of_files_ = both
    assert of_topic_.topic is not None
    folder = tmp_path / "letters"
    (name,) = (path.name for path in folder.glob("*.parquet"))
    with monkeypatch.context() as patch:
        patch.setattr(file_replay, "_move_to_replayed", lambda *_: None)
        replay(spark, replace(of_files_, only=["INVALID_TIMESTAMP"]))
    (rest,) = (path for path in folder.glob("*.parquet") if path.name != name)
    (noted,) = read_ledger(spark, of_files_.client, of_topic_.topic).replays
    rest.rename(folder / f".{rest.name}.{noted.notes.run}.pending")
    replay(spark, of_files_)
    assert rest.exists()
    replay(spark, of_files_)
    assert values(broker, topic) == ALL


@pytest.mark.parametrize("late", ["topic", "files"])
def test_concurrent_topic_and_file_replays_write_once(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, both: Both, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """One of them writes; a replay of files reads again what is left for it, one of the topic says so."""
    of_topic_, of_files_ = both
    mine, others = (of_topic_, of_files_) if late == "topic" else (of_files_, of_topic_)
    really = writing.write

    def write_concurrently(*given: Any) -> None:
        monkeypatch.setattr(writing, "write", really)
        replay(spark, others)
        really(*given)

    monkeypatch.setattr(writing, "write", write_concurrently)
    if late == "topic":
        with pytest.raises(Refusal, match="REPLAYED_MEANWHILE"):
            replay(spark, mine)
    else:
        report = replay(spark, mine)
        assert (report.read, report.written, report.written_before) == (11, 11, 9)
    for place in both:
        replay(spark, place)
    assert values(broker, topic) == ALL


def test_rejected_again_becomes_letter_in_topic_and_file(spark: SparkSession, broker: EmbeddedBroker, topic: str, both: Both) -> None:
    """Replayed files leave their letters where the query left them, and these are known by each other too."""
    of_topic_, of_files_ = both
    as_it_is = {"timestamp": "timestamp_millis(1700000000000)"}
    report = replay(spark, replace(of_files_, repairs=as_it_is))
    assert outcome(report) == (11, 1, {"INVALID_COMPACTION_KEY": 10})
    assert replay(spark, of_topic_).written_before == 11
    replay(spark, of_files_)
    replay(spark, of_topic_)
    assert values(broker, topic) == ALL


def test_letters_of_earlier_version_are_matched_by_count(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have no row in the topic, and the file does not name it: with both named, those that are alike are counted off."""
    alter(broker, dead, "max.message.bytes", str(CUT_AT))
    without_identity(monkeypatch)
    folder = tmp_path / "letters"
    frame = spark.range(5).selectExpr(
        "cast(null as string) as key", f"cast(CASE WHEN id < 3 THEN 'same' WHEN id < 4 THEN 'v' ELSE '{LARGE}' END as binary) as value"
    )
    places = {"errors__dead__letter__queue__topic__name": dead, "errors__dead__letter__path": str(folder)}
    write(frame.coalesce(1), broker, topic, errors__tolerance="all", **places)
    (path,) = folder.glob("*.parquet")
    pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)
    alter(broker, topic, "max.message.bytes", "100000")
    of_topic_ = plan(broker, topic=dead, repairs={"key": "'k'"})
    of_files_ = replace(of_topic_, path=str(folder))
    half = replay(spark, replace(of_topic_, where="value = cast('v' as binary)"))
    assert (half.written, half.not_selected) == (1, 4)
    assert written(spark, of_files_, of_topic_) == [(5, 5, 1, 0), (5, 5, 5, 0)]
    assert values(broker, topic) == {"same": 3, "v": 1, LARGE: 1}


def test_files_of_earlier_version_are_replayed_without_topic(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str, tmp_path: Path
) -> None:
    """Without columns for the letter's origin, and without a topic: as ever."""
    folder = tmp_path / "letters"
    frame = spark.range(2).selectExpr("cast(null as string) as key", "cast(concat('v', id) as binary) as value")
    write(frame, broker, topic, errors__tolerance="all", errors__dead__letter__path=str(folder))
    (path,) = folder.glob("*.parquet")
    pq.write_table(pq.read_table(path).drop_columns(["task", "row"]).replace_schema_metadata(None), path)
    keyed = plan(broker, path=str(folder), repairs={"key": "'k'"})
    assert written(spark, replace(keyed, where="value = cast('v1' as binary)"), keyed, keyed) == [(1, 1, 0, 0), (1, 1, 0, 0), (0, 0, 0, 0)]
    assert values(broker, topic) == {"v0": 1, "v1": 1}
    assert list(folder.glob("*.parquet")) == []


def test_letters_missing_in_replayed_topic_are_refused(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, both: Both, dead: str
) -> None:
    """Retention removed them after a replay of the topic: it is unknown whether they were written, so nothing is."""
    of_topic_, of_files_ = both
    replay(spark, replace(of_topic_, only=["INVALID_TIMESTAMP"]))
    with SyncClient(broker.bootstrap_servers) as client:
        drop_first(client, TopicPartition(dead, 0), 3)
    with pytest.raises(
        Refusal, match=r"LETTERS_NOT_IN_TOPIC: --parquet=.*: 3 of 11 letters of .* are not in topic .*--where and your own --token"
    ):
        replay(spark, of_files_)
    assert values(broker, topic) == {"good": 1, "old": 1}


def test_recreated_topic_is_not_matched(spark: SparkSession, broker: EmbeddedBroker, topic: str, both: Both, dead: str) -> None:
    """As in another cluster: its letters are not those of the file, and no note is left there."""
    from chaffinch.admin.topics import delete_topics

    _, of_files_ = both
    with SyncClient(broker.bootstrap_servers) as client:
        delete_topics(client, [dead])
    broker.create_topic(dead, 1, 1, {})
    assert written(spark, of_files_) == [(11, 11, 0, 0)]
    assert broker.read(dead).num_rows == 0
    assert values(broker, topic) == ALL


def test_file_of_later_version_is_refused(spark: SparkSession, broker: EmbeddedBroker, topic: str, both: Both, tmp_path: Path) -> None:
    (path,) = (tmp_path / "letters").glob("*.parquet")
    pq.write_table(pq.read_table(path).replace_schema_metadata({"chaffinch.letters.format": "3"}), path)
    with pytest.raises(Refusal, match=r"FORMAT_NEWER: --parquet=.*: chaffinch-.*.parquet cannot be read: it has format version 3, this Ch"):
        replay(spark, both[1])
    assert values(broker, topic) == {"good": 1}


def test_note_of_later_version_is_refused(spark: SparkSession, broker: EmbeddedBroker, topic: str, both: Both, dead: str) -> None:
    headers = ", ".join(
        f"named_struct('key', '{key}', 'value', cast('{value}' as binary))"
        for key, value in {"chaffinch.replayed": json.dumps({"a later format": 3}), "chaffinch.replayed.by": "later"}.items()
    )
    write(spark.range(1).selectExpr("cast('{}' as binary) as value", f"array({headers}) as headers"), broker, dead)
    for each in both:
        with pytest.raises(
            Refusal, match=r"FORMAT_NEWER: a note of a replay in dead-\d+ cannot be read: it has format version 3, this Chaffinch supports"
        ):
            replay(spark, each)
    assert values(broker, topic) == {"good": 1}


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("nothing = 1", "--where nothing = 1: a letter has no column `nothing`; its columns are: key, value"),
        ("value", "--where value: .*DATATYPE_MISMATCH"),
        ("explode(array(true))", "UNSUPPORTED_GENERATOR|DATATYPE_MISMATCH"),
        ("true) or (true", "--where true"),
    ],
)
def test_invalid_condition_is_refused(spark: SparkSession, broker: EmbeddedBroker, both: Both, where: str, says: str) -> None:
    for place in both:
        with pytest.raises(Exception, match=says):
            replay(spark, replace(place, where=where))


def test_failing_condition_is_named(spark: SparkSession, broker: EmbeddedBroker, topic: str, both: Both) -> None:
    for place in both:
        with pytest.raises(Refusal, match=r"CONFIG: --where cast\(cast\(value as string\) as int\) = 1: \[CAST_INVALID_INPUT\].*nothing"):
            replay(spark, replace(place, where="cast(cast(value as string) as int) = 1"))
    assert values(broker, topic) == {"good": 1}
