"""The Parquet file of dead letters is that of the writer that has committed the batch, whichever writers died."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.spark.commit.operations import Operation, Step
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.sink import commit_shell
from chaffinch.spark.sink.commit_shell import CommitShell
from tests.spark.query_driver import QueryDriver
from tests.spark.test_spark_write import alter, values

FILE = "chaffinch-q-000000000.parquet"
NO_ROWS = {"key": pa.array([], pa.string()), "value": pa.array([], pa.binary())}


class Killed(BaseException):
    """The committing process is gone."""


@pytest.fixture
def kafka() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"orders": {"partitions": 1, "cleanup.policy": "compact"}}) as broker:
        yield broker


@pytest.fixture
def query(kafka: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., QueryDriver]]:
    """Makes drivers of one query: one per name, on the checkpoint of that name or on another's."""
    made = []

    def make(name: str, checkpoint: str | None = None) -> QueryDriver:
        options = {"errors__tolerance": "all", "errors__dead__letter__path": str(tmp_path / "dead"), "kafka__client__id": name}
        folder = tmp_path / (checkpoint or name)
        made.append(QueryDriver(monkeypatch, kafka.bootstrap_servers, folder, run_id=f"run-{name}", **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def letters(tmp_path: Path) -> Callable[[], tuple[list[bytes], list[str]]]:
    """The values in the files that readers of the folder see, and the names of all others."""

    def found() -> tuple[list[bytes], list[str]]:
        paths = sorted((tmp_path / "dead").iterdir())
        seen = [path for path in paths if not path.name.startswith((".", "_"))]
        return [row["value"] for path in seen for row in pq.read_table(path).to_pylist()], [p.name for p in paths if p not in seen]

    return found


def rows_of(name: str) -> dict[str, Any]:
    return {"key": ["a", None], "value": [f"good {name}".encode(), f"bad {name}".encode()]}


def before(monkeypatch: pytest.MonkeyPatch, step: Step, deed: Callable[[], object]) -> None:
    """Does something once, just before a commit takes a step."""
    perform = CommitShell._perform

    def interrupted(shell: CommitShell, operation: Operation) -> object:
        if operation.step is step:
            monkeypatch.setattr(CommitShell, "_perform", perform)
            deed()
        return perform(shell, operation)

    monkeypatch.setattr(CommitShell, "_perform", interrupted)


@pytest.mark.parametrize("step", [Step.PUSH, Step.WRITE_DEAD_LETTERS, Step.ADD_OFFSETS, Step.NOTE_ENDING, Step.END_TRANSACTION])
def test_fenced_driver_keeps_file_of_other_driver(
    kafka: EmbeddedBroker,
    query: Callable[..., QueryDriver],
    letters: Callable[[], tuple[list[bytes], list[str]]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    step: Step,
) -> None:
    """From a copy of the checkpoint, with other rows. Kafka is not asked between the last Produce and the file."""
    one, two = query("one"), query("two")
    (tmp_path / "two" / "offsets" / "0").write_text("v1\nother offsets")
    mine, others = one.write(rows_of("one")), two.write(rows_of("two"))
    before(monkeypatch, step, lambda: two.commit(others))
    with pytest.raises(Refusal, match=r"ANOTHER_WRITER: .*batch 0 by run run-two"):
        one.commit(mine)
    assert values(kafka, "orders") == {"good two": 1}
    assert letters()[0] == [b"bad two"]


def test_row_written_by_other_driver_is_not_a_dead_letter(
    kafka: EmbeddedBroker,
    query: Callable[..., QueryDriver],
    letters: Callable[[], tuple[list[bytes], list[str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On one checkpoint: the topic takes the row by the time that the second driver begins; a replay of the file would double it."""
    one, two = query("one", "shared"), query("two", "shared")
    rows = {"key": ["a", None], "value": [b"1", b"2"]}
    mine = one.write(rows)

    def overtake() -> None:
        alter(kafka, "orders", "cleanup.policy", "delete")
        two.run(rows)

    before(monkeypatch, Step.WRITE_DEAD_LETTERS, overtake)
    with pytest.raises(Refusal, match="ANOTHER_WRITER"):
        one.commit(mine)
    assert values(kafka, "orders") == {"1": 1, "2": 1}
    assert letters()[0] == []


def test_empty_batch_keeps_dead_letters_of_other_driver(
    kafka: EmbeddedBroker,
    query: Callable[..., QueryDriver],
    letters: Callable[[], tuple[list[bytes], list[str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such a batch fences no driver: the other one is detected by its marker in the next batch."""
    one, two = query("one"), query("two")
    before(monkeypatch, Step.WRITE_DEAD_LETTERS, lambda: two.run(rows_of("two")))
    one.run(NO_ROWS)
    assert letters() == ([b"bad two"], [])


@pytest.mark.parametrize(
    ("step", "is_written"),
    [
        (Step.WRITE_DEAD_LETTERS, False),
        (Step.ADD_OFFSETS, False),
        (Step.END_TRANSACTION, False),
        (Step.NAME_DEAD_LETTERS, True),
        (Step.NOTE_DONE, True),
    ],
    ids=lambda given: given.value if isinstance(given, Step) else "",
)
@pytest.mark.parametrize("is_same_process", [True, False])
def test_dead_letters_of_killed_driver_are_published_or_removed(
    kafka: EmbeddedBroker,
    query: Callable[..., QueryDriver],
    letters: Callable[[], tuple[list[bytes], list[str]]],
    monkeypatch: pytest.MonkeyPatch,
    step: Step,
    is_written: bool,
    is_same_process: bool,
) -> None:
    """They are visible when the batch is written, and not before. The next driver renames them and removes all others."""
    first, second = query("first", "shared"), query("second", "shared")

    def die() -> None:
        raise Killed

    before(monkeypatch, step, die)
    with pytest.raises(Killed):
        first.run(rows_of("each"))
    assert letters()[0] == ([b"bad each"] if step is Step.NOTE_DONE else [])
    if not is_same_process:
        commit_shell._swept.clear()
    second.run(rows_of("each"))
    assert values(kafka, "orders") == {"good each": 1}
    assert letters() == ([b"bad each"], [])


def test_next_commit_removes_dead_letters_of_failed_commit(
    kafka: EmbeddedBroker, query: Callable[..., QueryDriver], letters: Callable[[], tuple[list[bytes], list[str]]]
) -> None:
    """Which has looked for such files before, when it had committed the batch before."""
    first, second = query("first", "shared"), query("second", "shared")
    first.run(rows_of("0"))
    kafka.faults.add(api="TxnOffsetCommit", error="GROUP_AUTHORIZATION_FAILED", count=1)
    with pytest.raises(Refusal, match="GROUP_AUTHORIZATION_FAILED"):
        first.run(rows_of("1"), batch_id=1)
    second.run(rows_of("1"), batch_id=1)
    assert letters() == ([b"bad 0", b"bad 1"], [])


def test_late_driver_finds_pending_file_renamed(
    kafka: EmbeddedBroker,
    query: Callable[..., QueryDriver],
    letters: Callable[[], tuple[list[bytes], list[str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if a replay has moved them by then."""
    first, second = query("first", "shared"), query("second", "shared")
    mine, others = first.write(rows_of("each")), second.write(rows_of("each"))
    replayed = first.checkpoint.parent / "replayed"

    def overtake() -> None:
        second.commit(others)
        (first.checkpoint.parent / "dead" / FILE).rename(replayed)

    before(monkeypatch, Step.NAME_DEAD_LETTERS, overtake)
    first.commit(mine)
    assert (letters(), pq.read_table(replayed).num_rows) == (([], []), 1)


def test_file_of_earlier_version_is_kept(
    query: Callable[..., QueryDriver], letters: Callable[[], tuple[list[bytes], list[str]]], tmp_path: Path
) -> None:
    """It was renamed before EndTxn: when its batch is run again and is in Kafka, there is nothing pending."""
    one = query("one")
    one.run(rows_of("one"))
    shutil.copy(tmp_path / "dead" / FILE, tmp_path / "kept")
    one.run(rows_of("one"))
    assert letters() == ([b"bad one"], [])
    assert (tmp_path / "kept").read_bytes() == (tmp_path / "dead" / FILE).read_bytes()


def test_file_of_earlier_version_is_removed_if_batch_has_no_dead_letters(
    query: Callable[..., QueryDriver], letters: Callable[[], tuple[list[bytes], list[str]]], tmp_path: Path
) -> None:
    """It was renamed before an EndTxn that failed, and its rows are good by now: a replay of the file would double them."""
    (tmp_path / "dead").mkdir()
    pq.write_table(pa.table({"value": [b"1"]}), tmp_path / "dead" / FILE)
    query("one").run({"key": ["a"], "value": [b"1"]})
    assert letters() == ([], [])
