"""What a replay refuses before Spark has anything to do, and what it says where it is interrupted. No Java."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
import typer
from pyspark.sql import SparkSession
from typer.main import get_command

from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.cli import replay as command
from chaffinch.errors import ConfigException
from chaffinch.spark.folders import Folder
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.replay import file_replay, topic_replay, writing
from chaffinch.spark.replay.file_replay import DeadLetterFolder, check_folder
from chaffinch.spark.replay.plan import TOKEN_BYTES_MAX, ReplayReport
from chaffinch.spark.replay.replaying import ReplayPlan, check_cluster
from chaffinch.spark.replay.replaying import replay_dead_letters as replay

CLIENT_OPTIONS = {"kafka.bootstrap.servers": "broker:9092"}
COMMAND = typer.Typer(add_completion=False)
COMMAND.command()(command.replay)
IDLE = cast(SparkSession, SimpleNamespace(createDataFrame=lambda *_: pytest.fail("Spark was asked")))


def test_document_lists_every_field_of_plan() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "spark-replay.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (`--.*`) \|", page, re.MULTILINE)
    assert [name for name, _ in rows] == [field.name for field in fields(ReplayPlan)]
    options = {name for parameter in get_command(COMMAND).params for name in parameter.opts} - {"--json", "--help"}
    assert {option for _, named in rows for option in re.findall(r"--[\w-]+", named)} == options
    (report,) = re.findall(r"^It returns a `ReplayReport`: (.*?)\n\n", page, re.MULTILINE | re.DOTALL)
    assert re.findall(r"`(\w+)`", report) == [field.name for field in fields(ReplayReport)]


def test_example_of_document_is_valid() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "replay-dead-letters.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^(plan = ReplayPlan\(.*?^\))$", page, re.DOTALL | re.MULTILINE)
    found: dict[str, Any] = {"ReplayPlan": ReplayPlan}
    exec(example, found)
    assert found["plan"].is_dry_run


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"topic": 5}, "--topic cannot be 5: it must be a string"),
        ({"topic": None, "path": b"/p"}, "--parquet cannot be b'/p': it must be a string"),
        ({"to": ["t"]}, "--to cannot be ['t']: it must be a string"),
        ({"token": 1.5}, "--token cannot be 1.5: it must be a string"),
        ({"token": "a\0"}, r"--token cannot be 'a\x00': it must be printable characters, at most 1000 bytes"),
        ({"token": "\udc80"}, r"--token cannot be '\udc80': it must be printable characters, at most 1000 bytes"),
        ({"token": "x" * (TOKEN_BYTES_MAX + 1)}, f"--token cannot be '{'x' * 199}...: it must be printable characters, at most"),
        ({"is_dry_run": "no"}, "is_dry_run cannot be 'no': it must be True or False"),
        (
            {"client": "broker:9092"},
            "client cannot be 'broker:9092': it must be a mapping of options named kafka.* to values, both strings",
        ),
        ({"client": {**CLIENT_OPTIONS, "kafka.retries": 1}}, "it must be a mapping of options named kafka.* to values, both strings"),
        ({"writing": {"kafka.linger.ms": 5}}, "writing cannot be {'kafka.linger.ms': 5}: it must be a mapping of options named kafka.*"),
        ({"writing": {"kafka.compression.type": "zip"}}, "option kafka.compression.type cannot be 'zip': it must be "),
        ({"writing": {"topic": "t"}}, "unknown option 'topic'"),
        ({"writing": {"kafka.transactional.id": "a"}}, "'kafka.transactional.id': a replay derives the names of its transactions"),
        ({"repairs": ["key"]}, "repairs cannot be ['key']: it must be a mapping of columns to SQL expressions, both strings"),
        ({"only": "INVALID_RECORD"}, "--only cannot be 'INVALID_RECORD': it must be a sequence of error names"),
        ({"only": 5}, "--only cannot be 5: it must be a sequence of error names"),
        ({"only": [5]}, "--only cannot be [5]: it must be a sequence of error names"),
        ({"where": 5}, "--where cannot be 5: it must be a string"),
        ({"repairs": {"key": " "}}, "--repair key= is empty: give it an SQL expression; without a value the column is key=NULL"),
    ],
)
def test_wrong_plan_is_refused(given: Mapping[str, Any], says: str) -> None:
    with pytest.raises(ConfigException) as caught:
        ReplayPlan(**{"client": CLIENT_OPTIONS, "topic": "d", **given})
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("spark", "plan", "says"),
    [
        (IDLE, 5, "plan cannot be 5: it must be a ReplayPlan"),
        (None, ReplayPlan(client=CLIENT_OPTIONS, topic="d"), "spark cannot be None: it must be a SparkSession"),
    ],
)
def test_wrong_argument_types_are_refused(spark: Any, plan: Any, says: str) -> None:
    with pytest.raises(ConfigException, match=says):
        replay(spark, plan)


@pytest.mark.parametrize(
    ("named", "option", "look"),
    [
        ({"topic": "nope"}, "--topic", check_cluster),  # Before Java starts.
        ({"path": "/p", "to": "nope"}, "--to", lambda plan: replay(IDLE, plan)),
    ],
)
def test_unknown_topic_error_names_option(
    broker: EmbeddedBroker, named: Mapping[str, Any], option: str, look: Callable[[ReplayPlan], object]
) -> None:
    with pytest.raises(Refusal) as caught:
        look(ReplayPlan(client={"kafka.bootstrap.servers": broker.bootstrap_servers}, **named))
    said = f"topic 'nope' (option {option}) does not exist on {broker.bootstrap_servers}; create it, or correct the name"
    assert str(caught.value) == f"KAFKA[InvalidConfiguration] UNKNOWN_TOPIC_OR_PARTITION: {said}"


def test_missing_folder_is_refused_before_java_starts(broker: EmbeddedBroker, tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"LOCATION_NOT_USABLE: --parquet=.*/gone: there is no such folder"):
        check_cluster(ReplayPlan(client={"kafka.bootstrap.servers": broker.bootstrap_servers}, path=str(tmp_path / "gone")))


def test_file_instead_of_folder_is_refused_before_java_starts(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """With what it is, and where letters are: a folder that could be written to is of no use to who replays."""
    (tmp_path / "letters.parquet").write_text("")
    said = r"/letters\.parquet: it is a file: give its folder; give the value of errors\.dead\.letter\.path$"
    with pytest.raises(Refusal, match=rf"LOCATION_NOT_USABLE: --parquet=.*{said}"):
        check_cluster(ReplayPlan(client={"kafka.bootstrap.servers": broker.bootstrap_servers}, path=str(tmp_path / "letters.parquet")))


@pytest.mark.parametrize(
    ("files", "is_refused"),
    [
        (["orders/a.parquet"], True), (["readme.txt", "lost+found/x", "orders/a.parquet"], True),
        ([], False), (["readme.txt", "lost+found/x"], False), (["_replayed/a.parquet"], False),
        (["_replayed/a.parquet", "orders/a.parquet"], False), (["a.parquet", "orders/a.parquet"], False),
        ([".letters.parquet.run.pending"], False),
    ],
)  # fmt: skip
def test_parent_folder_is_refused_before_java_starts(tmp_path: Path, files: Sequence[str], is_refused: bool) -> None:
    """One that holds no letters may wait for its first, or have no more."""
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    said = f"NOT_DEAD_LETTERS: --parquet={tmp_path}: the folder has no Parquet file, but its subfolder 'orders' has; give the value"
    with pytest.raises(Refusal, match=re.escape(said)) if is_refused else nullcontext():
        check_folder(str(tmp_path))


def test_unreadable_folder_is_refused_before_java_starts(broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(folder: DeadLetterFolder) -> None:
        raise folder.refusal("cannot be listed", PermissionError("Permission denied"))

    monkeypatch.setattr(Folder, "names", refuses)
    said = "cannot be listed: Permission denied; give the value of errors.dead.letter.path"
    with pytest.raises(Refusal, match=rf"LOCATION_NOT_USABLE: --parquet={tmp_path} {said}$"):
        check_cluster(ReplayPlan(client={"kafka.bootstrap.servers": broker.bootstrap_servers}, path=str(tmp_path)))


def test_unopenable_location_error_does_not_ask_for_write_access() -> None:
    with pytest.raises(Refusal, match=r"--parquet=nosuch://letters cannot be opened: .*; give the value of errors\.dead\.letter\.path$"):
        check_folder("nosuch://letters")


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def interrupted_behind_the_write() -> None:
    with topic_replay._errors_after_write():
        interrupt()


@pytest.mark.parametrize(
    ("work", "note"),
    [
        (
            lambda: writing.write(Mock(write=Mock(format=interrupt)), ReplayPlan(client=CLIENT_OPTIONS, topic="d"), "token", "d", {}),
            "it is unknown whether it was written; run it again: it reads the marker, so nothing is written twice",
        ),
        (interrupted_behind_the_write, "the replay was written"),
    ],
    ids=["while it is written", "while it is asked what became of it"],
)
def test_interruption_has_note_about_writes(work: Callable[[], object], note: str) -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        work()
    assert caught.value.__notes__ == [note]


@pytest.mark.parametrize(
    ("at", "is_dry_run", "notes"),
    [("a.parquet", False, []), ("b.parquet", False, ["the files before b.parquet, by name, are replayed"]), ("b.parquet", True, [])],
)
def test_interruption_has_note_about_replayed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, is_dry_run: bool, notes: Sequence[str]
) -> None:
    for name in ("a.parquet", "b.parquet"):
        (tmp_path / name).touch()
    monkeypatch.setattr(file_replay, "_unsettled", lambda *_: set())
    monkeypatch.setattr(file_replay._FileReplay, "file", lambda *given: interrupt() if at in given else ReplayReport())
    with pytest.raises(KeyboardInterrupt) as caught:
        file_replay.replay_files(IDLE, ReplayPlan(client=CLIENT_OPTIONS, path=str(tmp_path), is_dry_run=is_dry_run), str(tmp_path))
    assert getattr(caught.value, "__notes__", []) == notes
