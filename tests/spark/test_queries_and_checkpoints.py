"""Queries that are renamed, copied, restored, or meet in one topic: what is written, what is refused, and by which name.

The table of `docs/explanation/exactly-once.md`, played against a real broker. A query's id is in its checkpoint, so a
copy has the same one.
"""

import errno
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.spark.commit.marker import STATE_FILE
from chaffinch.spark.commit.operations import Operation
from chaffinch.spark.folders import Folder
from chaffinch.spark.refusals import Refusal
from tests.spark.query_driver import QueryDriver
from tests.spark.test_spark_write import values

BEFORE_THE_END = ["the transactional id", "that it is about to end"]
"""What a first commit writes into the checkpoint before the batch is in Kafka, each once."""


def row(value: str) -> dict[str, Any]:
    return {"key": [value], "value": [value.encode()]}


@pytest.fixture
def kafka() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"orders": {"partitions": 2}, "others": {"partitions": 1}}) as broker:
        yield broker


@pytest.fixture
def query(kafka: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., QueryDriver]]:
    """Makes queries: one per checkpoint, and one per id."""
    made = []

    def make(name: str = "one", query_id: str | None = None, run_id: str = "run-1", **options: Any) -> QueryDriver:
        made.append(QueryDriver(monkeypatch, kafka.bootstrap_servers, tmp_path / name, query_id or f"id-{name}", run_id, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def restored(query: QueryDriver, copy: Path) -> None:
    """The checkpoint as it was."""
    shutil.rmtree(query.checkpoint)
    shutil.copytree(copy, query.checkpoint)


def test_two_queries_to_one_topic_are_independent(kafka: EmbeddedBroker, query: Callable[..., QueryDriver]) -> None:
    one, two = query("one"), query("two")
    for batch_id in range(2):
        one.run(row(f"one {batch_id}"), batch_id=batch_id)
        two.run(row(f"two {batch_id}"), batch_id=batch_id)
    one.run(row("one 1"), batch_id=1)  # Repeated by Spark: it is in Kafka already.
    assert values(kafka, "orders") == {"one 0": 1, "one 1": 1, "two 0": 1, "two 1": 1}


def test_one_query_writes_several_topics(kafka: EmbeddedBroker, query: Callable[..., QueryDriver]) -> None:
    both = query("both", markerTopic="others")
    del both.options["topic"]
    table = {"value": [b"to orders", b"to others"], "topic": ["orders", "others"]}
    for _ in range(2):
        both.run(table)
    assert (values(kafka, "orders"), values(kafka, "others")) == ({"to orders": 1}, {"to others": 1})


def test_query_can_change_topic_and_return(kafka: EmbeddedBroker, query: Callable[..., QueryDriver]) -> None:
    """The marker of the first topic is old by then; the checkpoint knows where batch 1 is."""
    one = query("one")
    one.run(row("0"))
    one.run(row("1"), batch_id=1, topic="others")
    one.run(row("1"), batch_id=1)
    one.run(row("2"), batch_id=2)
    assert (values(kafka, "orders"), values(kafka, "others")) == ({"0": 1, "2": 1}, {"1": 1})


def test_renamed_query_continues(kafka: EmbeddedBroker, query: Callable[..., QueryDriver]) -> None:
    """Its id is in the checkpoint; the name is only for people."""
    query("one", queryName="before").run(row("0"))
    renamed = query("one", run_id="run-2", queryName="after")
    renamed.run(row("0"))
    renamed.run(row("1"), batch_id=1)
    assert values(kafka, "orders") == {"0": 1, "1": 1}


def test_moved_checkpoint_continues(kafka: EmbeddedBroker, query: Callable[..., QueryDriver], tmp_path: Path) -> None:
    one = query("one")
    one.run(row("0"))
    shutil.move(tmp_path / "one", tmp_path / "elsewhere")
    moved = query("elsewhere", query_id="id-one", run_id="run-2")
    moved.run(row("0"))
    moved.run(row("1"), batch_id=1)
    assert values(kafka, "orders") == {"0": 1, "1": 1}


def test_copied_checkpoint_is_refused(kafka: EmbeddedBroker, query: Callable[..., QueryDriver], tmp_path: Path) -> None:
    """Both have one id: only one of them writes the same batch. The one that is behind gets an error."""
    one = query("one")
    one.run(row("0"))
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    copy = query("copy", query_id="id-one", run_id="run-copy")
    one.run(row("1"), batch_id=1)
    copy.run(row("1"), batch_id=1)
    copy.run(row("2"), batch_id=2)
    with pytest.raises(Refusal, match=r"KAFKA\[InvalidConfiguration\] CHECKPOINT_RESTORED: batch 1 is older than batch 2"):
        one.run(row("1"), batch_id=1)
    assert values(kafka, "orders") == {"0": 1, "1": 1, "2": 1}


def test_copied_checkpoint_with_other_rows_is_refused(kafka: EmbeddedBroker, query: Callable[..., QueryDriver], tmp_path: Path) -> None:
    """The same batch of the copy covers other offsets of the source: neither written nor skipped silently."""
    one = query("one")
    one.run(row("0"))
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    copy = query("copy", query_id="id-one", run_id="run-copy")
    (tmp_path / "copy" / "offsets" / "1").write_text("v1\nother offsets")
    one.run(row("1"), batch_id=1)
    with pytest.raises(Refusal, match="CHECKPOINT_RESTORED: batch 1 was written before with different contents"):
        copy.run(row("another 1"), batch_id=1)
    assert values(kafka, "orders") == {"0": 1, "1": 1}


def test_restored_checkpoint_writes_no_duplicates(kafka: EmbeddedBroker, query: Callable[..., QueryDriver], tmp_path: Path) -> None:
    one = query("one")
    one.run(row("0"))
    shutil.copytree(tmp_path / "one", tmp_path / "backup")
    for batch_id in (1, 2):
        one.run(row(str(batch_id)), batch_id=batch_id)
    restored(one, tmp_path / "backup")
    with pytest.raises(Refusal, match="CHECKPOINT_RESTORED: batch 1 is older than batch 2"):
        one.run(row("1"), batch_id=1)
    assert values(kafka, "orders") == {"0": 1, "1": 1, "2": 1}


def test_deleted_checkpoint_starts_new_query(kafka: EmbeddedBroker, query: Callable[..., QueryDriver], tmp_path: Path) -> None:
    """Spark gives it a new id, and begins where its source begins: the rows are written again."""
    query("one").run(row("0"))
    shutil.rmtree(tmp_path / "one")
    query("one", query_id="id-anew").run(row("0"))
    assert values(kafka, "orders") == {"0": 2}


def test_deleted_sink_folder_is_detected(kafka: EmbeddedBroker, query: Callable[..., QueryDriver], tmp_path: Path) -> None:
    one = query("one")
    one.run(row("0"))
    shutil.rmtree(tmp_path / "one" / "chaffinch")
    one.run(row("0"))
    one.run(row("1"), batch_id=1)
    assert values(kafka, "orders") == {"0": 1, "1": 1}


def test_wrong_checkpoint_location_is_not_used(
    kafka: EmbeddedBroker, query: Callable[..., QueryDriver], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The option names the checkpoint of another query: its notes are not this query's, so they are neither read nor written."""
    query("one").run(row("0"))
    before = (tmp_path / "one" / "chaffinch" / "state.json").read_bytes()
    mistaken = query("two", checkpointlocation=str(tmp_path / "one"))
    mistaken.run(row("two 0"))
    assert (tmp_path / "one" / "chaffinch" / "state.json").read_bytes() == before
    assert "checkpointLocation belongs to query id-one, this is query id-two" in caplog.text
    assert values(kafka, "orders") == {"0": 1, "two 0": 1}


def test_second_run_during_commit_fences_first(
    kafka: EmbeddedBroker, query: Callable[..., QueryDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is fenced in the middle; the second one has written the batch, so the error of the first one names it."""
    from chaffinch.spark.commit.operations import Step
    from chaffinch.spark.sink.commit_shell import CommitShell

    first, second = query("one"), query("one", run_id="run-2")
    messages = first.write(row("0"))
    perform = CommitShell._perform

    def interrupted(shell: CommitShell, operation: Operation) -> object:
        if operation.step is Step.PUSH:
            monkeypatch.setattr(CommitShell, "_perform", perform)
            second.run(row("0"))
        return perform(shell, operation)

    monkeypatch.setattr(CommitShell, "_perform", interrupted)
    with pytest.raises(Refusal, match=r"KAFKA\[ApplicationRecoverable\] ANOTHER_WRITER: .*batch 0 by run run-2"):
        first.commit(messages)
    assert values(kafka, "orders") == {"0": 1}


def failing(folder: Folder, name: str, parts: Sequence[bytes]) -> None:
    raise folder.refusal("cannot be written", OSError(errno.EIO, "Input/output error"))


def test_storage_failure_after_commit_does_not_fail_batch(
    kafka: EmbeddedBroker, query: Callable[..., QueryDriver], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The marker says that it is written; the note is for people."""
    one = query("one")
    write, written = Folder.write, []

    def once_in_kafka(folder: Folder, name: str, parts: Sequence[bytes]) -> None:
        written.append(name)
        (failing if written.count(STATE_FILE) == len(BEFORE_THE_END) + 1 else write)(folder, name, parts)

    monkeypatch.setattr(Folder, "write", once_in_kafka)
    one.run(row("0"))
    assert "batch 0 is in Kafka, but this cannot be recorded in the checkpoint: checkpointLocation=" in caplog.text
    one.run(row("0"))
    one.run(row("1"), batch_id=1)
    assert values(kafka, "orders") == {"0": 1, "1": 1}


@pytest.mark.parametrize("at", range(len(BEFORE_THE_END)), ids=BEFORE_THE_END)
def test_storage_failure_before_commit_advises_restart(
    kafka: EmbeddedBroker, query: Callable[..., QueryDriver], at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = query("one")
    write, written = Folder.write, []

    def fails_once(folder: Folder, name: str, parts: Sequence[bytes]) -> None:
        written.append(name)
        (failing if written.count(STATE_FILE) == at + 1 else write)(folder, name, parts)

    monkeypatch.setattr(Folder, "write", fails_once)
    with pytest.raises(Refusal, match=r"KAFKA\[ApplicationRecoverable\] STORAGE_FAILED"):
        one.run(row("0"))
    assert values(kafka, "orders") == {}
    one.run(row("0"))
    assert values(kafka, "orders") == {"0": 1}
