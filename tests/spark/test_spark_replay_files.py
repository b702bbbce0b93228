"""Parquet files of dead letters replayed with a real Spark."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from chaffinch.admin.group_offsets import committed_offsets
from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors.codes import Group
from chaffinch.spark.commit.marker import Marker
from chaffinch.spark.folders import Folder
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.replay import dead_letters, file_replay, writing
from chaffinch.spark.replay.letter_matching import MatchingTopics
from chaffinch.spark.replay.plan import ReplayPlan, ReplayReport
from chaffinch.spark.replay.replaying import replay_dead_letters as replay
from tests.spark.test_spark_replay import bad_rows, outcome, plan, rows
from tests.spark.test_spark_write import values, write

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::FutureWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def test_letters_without_topic_need_option(spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    nameless = spark.range(1).selectExpr("'k' as key", "cast('v' as binary) as value", "cast(null as string) as topic")
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "errors.tolerance": "all", "errors.dead.letter.path": str(tmp_path)}
    nameless.write.format("chaffinch").mode("append").options(**given).save()
    report = replay(spark, plan(broker, path=str(tmp_path)))
    assert outcome(report) == (1, 0, {"INVALID_TOPIC_EXCEPTION": 1})
    assert report.examples[0].endswith("its letters have no topic; set it with --to or --repair topic=...")
    assert outcome(replay(spark, plan(broker, path=str(tmp_path), repairs={"topic": f"coalesce(topic, '{topic}')"}))) == (1, 1, {})
    assert values(broker, topic) == {"v": 1}


def test_file_system_unknown_to_spark_is_refused(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyarrow knows more of them: the folder is found, and its files are no fault of the sink's."""

    def unknown(*_: object) -> None:
        raise Py4JError('org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "gs"')

    (tmp_path / "a.parquet").write_bytes(b"")
    monkeypatch.setattr(dead_letters, "dead_letters_in_file", unknown)
    with pytest.raises(Refusal, match=r"LOCATION_NOT_USABLE: --parquet=.*: Spark cannot read it: .* locations that begin with gs: put"):
        replay(spark, plan(broker, path=str(tmp_path)))


def test_folder_without_dead_letters_is_refused(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    def asked(folder: Path) -> ReplayReport:
        return replay(spark, plan(broker, path=str(folder)))

    with pytest.raises(Refusal, match=r"LOCATION_NOT_USABLE: --parquet=.*/gone: there is no such folder"):
        asked(tmp_path / "gone")
    assert asked(tmp_path).read == 0
    spark.range(1).coalesce(1).write.parquet(str(tmp_path / "other"))
    with pytest.raises(Refusal, match=r"NOT_DEAD_LETTERS: --parquet=.*/other: part-.* is not a file of dead letters: \[UNRESOLVED_COLUMN"):
        asked(tmp_path / "other")
    (tmp_path / "damaged.parquet").write_bytes(b"damaged")
    # What follows is Spark's, and each release has other words.
    with pytest.raises(
        Refusal, match=r"damaged.parquet is not a file of dead letters: org.apache.spark.SparkException: .*; the files before it"
    ):
        asked(tmp_path)


def test_each_file_is_one_transaction(spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str, tmp_path: Path) -> None:
    """Also when a replay died before it could move a file that it had written: the next one moves it, and writes nothing."""
    folder = tmp_path / r"letters [of] {a,b}\*?"  # A name, although Spark has patterns with these marks.
    write(rows(spark, 0), broker, topic, errors__tolerance="all", errors__dead__letter__path=str(folder))
    names = sorted(path.name for path in folder.glob("*.parquet"))
    to_dead = plan(broker, path=str(folder), to=dead, repairs={"value": "substring(value, 1, 3)"})
    report = replay(spark, to_dead)
    assert (outcome(report), report.written_before) == ((2, 2, {}), 0)
    assert sorted(path.name for path in (folder / "_replayed").iterdir()) == names
    (folder / "_replayed" / names[0]).rename(folder / names[0])
    assert outcome(replay(spark, replace(to_dead, is_dry_run=True))) == (2, 2, {})
    assert [path.name for path in folder.glob("*.parquet")] == names
    replay(spark, to_dead)
    assert list(folder.glob("*.parquet")) == []
    assert values(broker, dead) == {"v0": 1, "xxx": 1}

    # The same where the next one would write elsewhere: the letters are written already.
    (folder / "_replayed" / names[0]).rename(folder / names[0])
    broker.create_topic(f"{dead}-2", 1, 1, {})
    replay(spark, replace(to_dead, to=f"{dead}-2"))
    assert (list(folder.glob("*.parquet")), broker.read(f"{dead}-2").num_rows) == ([], 0)


@pytest.mark.parametrize("step", ["_is_of_another", "_move_to_replayed"])
def test_interruption_after_write_has_note(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    write(bad_rows(spark, 1), broker, topic, errors__tolerance="all", errors__dead__letter__path=str(tmp_path))
    (name,) = (path.name for path in tmp_path.glob("*.parquet"))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(file_replay, step, interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        replay(spark, plan(broker, path=str(tmp_path), repairs={"key": "value"}))
    assert caught.value.__notes__ == [f"{name} is written"]
    assert values(broker, topic) == {"v0": 1}


def test_only_one_of_two_replays_to_different_topics_writes(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marker lies where both look for it, whatever their repairs: what one has written in the meantime the other skips."""
    write(rows(spark, 0), broker, topic, errors__tolerance="all", errors__dead__letter__path=str(tmp_path))
    broker.create_topic(f"{dead}-2", 1, 1, {})
    really = writing.write

    def late(*given: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(writing, "write", really)
            patch.setattr(file_replay, "_move_to_replayed", lambda *_: None)
            assert outcome(replay(spark, plan(broker, path=str(tmp_path), to=f"{dead}-2"))) == (2, 2, {})
        really(*given)

    monkeypatch.setattr(writing, "write", late)
    report = replay(spark, plan(broker, path=str(tmp_path), to=dead))
    assert (report.read, report.written_before) == (2, 2)
    assert (broker.read(f"{dead}-2").num_rows, broker.read(dead).num_rows) == (2, 0)


@pytest.mark.parametrize("is_marker_seen", [True, False])
def test_file_moved_after_read_is_not_written_again(
    spark: SparkSession,
    broker: EmbeddedBroker,
    topic: str,
    dead: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_marker_seen: bool,
) -> None:
    """It is the same file to both: what one has written the other passes over, also where it looks before Kafka shows the marker."""
    write(bad_rows(spark, 2), broker, topic, errors__tolerance="all", errors__dead__letter__path=str(tmp_path))
    keyed = plan(broker, path=str(tmp_path), repairs={"key": "value"})
    really = file_replay._marker_topic

    def replay_concurrently(*given: Any) -> str:
        monkeypatch.setattr(file_replay, "_marker_topic", really)
        assert outcome(replay(spark, keyed)) == (2, 2, {})
        if not is_marker_seen:
            seen, really_of = [None], writing.writer_of
            monkeypatch.setattr(writing, "writer_of", lambda *asked: seen.pop() if seen else really_of(*asked))
        return really(*given)

    monkeypatch.setattr(file_replay, "_marker_topic", replay_concurrently)
    report = replay(spark, keyed)
    assert (outcome(report), report.written_before) == ((2, 2, {}), 2)
    assert values(broker, topic) == {"v0": 1, "v1": 1}
    assert [path.parent.name for path in tmp_path.rglob("*.parquet")] == ["_replayed"]


def test_file_moved_before_read_is_skipped(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(bad_rows(spark, 2), broker, topic, errors__tolerance="all", errors__dead__letter__path=str(tmp_path))
    keyed = plan(broker, path=str(tmp_path), repairs={"key": "value"})
    really = file_replay._unsettled

    def replay_concurrently(*given: Any) -> set[str]:
        with monkeypatch.context() as patch:
            patch.setattr(file_replay, "_unsettled", really)
            assert outcome(replay(spark, keyed)) == (2, 2, {})
        return really(*given)

    monkeypatch.setattr(file_replay, "_unsettled", replay_concurrently)
    assert outcome(replay(spark, keyed)) == (0, 0, {})
    assert values(broker, topic) == {"v0": 1, "v1": 1}


def test_removed_file_is_not_reported_as_failing_repair(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Spark says of it is shown as it is."""
    write(bad_rows(spark, 2), broker, topic, errors__tolerance="all", errors__dead__letter__path=str(tmp_path))
    (file,) = tmp_path.glob("*.parquet")
    really = file_replay._marker_topic

    def removing(*given: Any) -> str:
        file.unlink()
        return really(*given)

    monkeypatch.setattr(file_replay, "_marker_topic", removing)
    with pytest.raises(Exception, match=file.name) as caught:
        replay(spark, plan(broker, path=str(tmp_path), repairs={"key": "value"}))
    assert not re.search("--repair|_replayed", str(caught.value))
    assert values(broker, topic) == {}


@pytest.mark.parametrize("token", [None, "again"])
def test_replay_killed_before_rename_is_completed(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    """Its transaction has ended: the next one writes nothing, and gives the letters their name before the file of the old ones goes."""
    folder = tmp_path / "letters"
    write(rows(spark, 0), broker, topic, errors__tolerance="all", errors__dead__letter__path=str(folder))
    (name,) = (path.name for path in folder.glob("*.parquet"))
    as_they_are = plan(broker, path=str(folder), token=token)
    own_token = file_replay._file_token(as_they_are, Folder(str(folder), "--parquet"), name)
    found = file_replay._rejected_file_name(own_token)
    with monkeypatch.context() as patch:
        patch.setattr(file_replay, "_move_to_replayed", lambda *_: None)
        assert outcome(replay(spark, as_they_are))[:2] == (2, 0)
    with SyncClient(broker.bootstrap_servers) as client:
        (marker,) = committed_offsets(client, f"chaffinch-{own_token}").values()
    (folder / found).rename(folder / f".{found}.{Marker.from_text(marker.metadata).writer_id}.pending")
    again = replay(spark, as_they_are)
    assert again.is_repetition is (token is not None)
    assert sum(again.still_rejected.values()) == (2 if token is None else 0)
    assert (folder / found).exists()
    assert (folder / name).exists() is (token is not None)


def die(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, plan: ReplayPlan, leaves: Callable[[str], None]) -> None:
    """Replay, and die before the transaction has ended: `leaves(token)` is what is in the folder then."""

    def dies(rows: DataFrame, plan: ReplayPlan, token: str, marker_topic: str, dead_letter_options: Mapping[str, str]) -> None:
        leaves(token)
        raise RuntimeError("died")

    with monkeypatch.context() as patch:
        patch.setattr(writing, "write", dies)
        with pytest.raises(RuntimeError, match="died"):
            replay(spark, plan)


def test_replay_killed_before_commit_is_repeated(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, dead: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has left a file with the letters of another one, which is still there: they are replayed once."""
    folder = tmp_path / "letters"
    write(rows(spark, 0), broker, topic, errors__tolerance="all", errors__dead__letter__path=str(folder))
    (name,) = (path.name for path in folder.glob("*.parquet"))
    (folder / name).rename(folder / f"z-{name}")  # Behind the other one.
    as_they_are = plan(broker, path=str(folder))

    def leaves(token: str) -> None:
        (folder / file_replay._rejected_file_name(token)).write_bytes((folder / f"z-{name}").read_bytes())

    die(spark, monkeypatch, as_they_are, leaves)
    assert len(list(folder.glob("*.parquet"))) == 2
    assert outcome(replay(spark, replace(as_they_are, to=dead))) == (2, 2, {})
    assert broker.read(dead).num_rows == 2


@pytest.mark.parametrize(("first", "second"), [(None, "X"), ("X", None), ("X", "Y")])
def test_killed_replay_and_replay_with_other_token(
    spark: SparkSession,
    broker: EmbeddedBroker,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: str | None,
    second: str | None,
) -> None:
    """Its file is skipped by all later replays."""
    write(bad_rows(spark, 2), broker, topic, errors__tolerance="all", errors__dead__letter__path=str(tmp_path))
    (file,) = tmp_path.glob("*.parquet")
    file = file.rename(tmp_path / f"z-{file.name}")  # Behind the other one.
    begun, keyed = plan(broker, path=str(tmp_path), token=first), plan(broker, path=str(tmp_path), repairs={"key": "value"})

    def leaves(token: str) -> None:
        table = pq.read_table(file)
        named = table.set_column(table.column_names.index("query"), "query", pa.array([token] * 2))
        pq.write_table(named, tmp_path / file_replay._rejected_file_name(token))

    die(spark, monkeypatch, begun, leaves)
    assert len(list(tmp_path.glob("*.parquet"))) == 2
    report = replay(spark, replace(keyed, token=second))
    assert outcome(report) == (2, 2, {})
    assert report.written_before == 0
    assert values(broker, topic) == {"v0": 1, "v1": 1}
    if second is None:
        assert outcome(replay(spark, keyed)) == (0, 0, {}), "the file that it is a copy of has gone to _replayed"
    else:
        assert replay(spark, replace(keyed, token=second)).is_repetition
    assert values(broker, topic) == {"v0": 1, "v1": 1}


def test_letters_left_by_replay_with_token_are_replayed(spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    """Its transaction has ended, so that what it has left is no copy."""
    write(bad_rows(spark, 2), broker, topic, errors__tolerance="all", errors__dead__letter__path=str(tmp_path))
    (file,) = tmp_path.glob("*.parquet")
    half = plan(broker, path=str(tmp_path), token="half", repairs={"key": "if(value = cast('v0' as binary), 'k', null)"})
    assert outcome(replay(spark, half)) == (2, 1, {"INVALID_COMPACTION_KEY": 1})
    file.unlink()
    assert outcome(replay(spark, plan(broker, path=str(tmp_path), repairs={"key": "'k'"}))) == (1, 1, {})
    assert values(broker, topic) == {"v0": 1, "v1": 1}


def test_report_counts_only_written_letters_of_other_replay(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of its two letters was rejected once more. A broker that is away now changes the count alone."""
    write(rows(spark, 0), broker, topic, errors__tolerance="all", errors__dead__letter__path=str(tmp_path))
    (file,) = tmp_path.glob("*.parquet")
    keyed = plan(broker, path=str(tmp_path), repairs={"key": "'k'"})
    with monkeypatch.context() as patch:
        patch.setattr(file_replay, "_move_to_replayed", lambda *_: None)
        assert outcome(replay(spark, keyed)) == (2, 1, {"MESSAGE_TOO_LARGE": 1})
    folder = Folder(str(tmp_path), "--parquet")
    with MatchingTopics(spark, keyed) as topics:
        report = file_replay._FileReplay(spark, keyed, folder, topics).file(file.name, "")
    assert (outcome(report), report.written_before) == ((2, 1, {"MESSAGE_TOO_LARGE": 1}), 1)

    def away(*_: object) -> None:
        raise Refusal(Group.RETRIABLE, "REQUEST_TIMED_OUT", "no broker reachable")

    monkeypatch.setattr(writing, "writer_of", away)
    assert not file_replay._is_of_another(keyed, "t", "run")
