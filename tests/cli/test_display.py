"""Names and messages from the network reach neither a terminal nor a log as they came: every command, in tables and in errors."""

from __future__ import annotations

import ast
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import chaffinch.cli
from chaffinch import plain_text
from chaffinch.admin import Admin, groups, topics, transactions
from chaffinch.cli import display
from chaffinch.cli.main import main
from chaffinch.errors import ConfigException, KafkaException
from chaffinch.identifiers import TopicPartition
from chaffinch.plain_text import abbreviate, plain

HOSTILE = "a\x1b[31mred\x1b]0;title\x07 \x9b2J\x7f\u202eevil\u2066 \x00\r\n\u2028forged line [red]markup[/red] :smile: \U000e0001\ud800"
SHOWN = (
    "a\\u001b[31mred\\u001b]0;title\\u0007 \\u009b2J\\u007f\\u202eevil\\u2066 \\u0000\\r\\n\\u2028forged line [red]markup[/red] :smile: "
    "\\udb40\\udc01\\ud800"
)
TP = TopicPartition(HOSTILE, 0)
MEMBER = groups.Member(member_id=HOSTILE, instance_id=HOSTILE, client_id=HOSTILE, host=HOSTILE, partitions=(TP,))
LISTING = groups.GroupListing(group=HOSTILE, group_type=HOSTILE, protocol_type=HOSTILE, state=HOSTILE, coordinator=0)
DESCRIPTION = groups.GroupDescription(
    listing=LISTING,
    assignor=HOSTILE,
    members=(MEMBER,),
    offsets=(groups.GroupOffset(topic_partition=TP, committed=1, end=2, member=MEMBER),),
)
TOPIC = topics.Topic(name=HOSTILE, topic_id=UUID(int=7), is_internal=False, partitions=())
TOPIC_DESCRIPTION = topics.TopicDescription(topic=TOPIC, configs={}, warnings=(HOSTILE,))
LISTED = transactions.TransactionListing(transactional_id=HOSTILE, producer_id=1, state=HOSTILE, coordinator=0)
DESCRIBED = transactions.TransactionDescription(
    transactional_id=HOSTILE,
    producer_id=1,
    producer_epoch=1,
    state=HOSTILE,
    timeout_ms=1,
    started_ms=None,
    partitions=(TP,),
)
PRODUCER = transactions.PartitionProducer(
    topic_partition=TP,
    producer_id=1,
    producer_epoch=1,
    coordinator_epoch=1,
    last_sequence=1,
    last_timestamp_ms=1,
    transaction_start_offset=1,
)
NODE = {"id": 0, "host": HOSTILE, "port": 1, "state": HOSTILE, "leaders": 0, "in_sync": 0}
FAULT = {"id": 1, "api": HOSTILE, "action": HOSTILE, "topic": HOSTILE, "client_id": HOSTILE, "count": 1, "note": HOSTILE}
AT = ("--control", "127.0.0.1:1")

COMMANDS: dict[str, tuple[tuple[str, ...], str, Any]] = {
    "groups list": ((), "chaffinch.admin.groups.list_groups", [LISTING]),
    "groups describe": ((), "chaffinch.admin.groups.describe_groups", [DESCRIPTION]),
    "topics list": ((), "chaffinch.admin.topics.list_topics", [TOPIC]),
    "topics describe": (
        (),
        "chaffinch.admin.topics.describe_topics",
        [TOPIC_DESCRIPTION],
    ),
    "transactions list": ((), "chaffinch.admin.transactions.list_transactions", [LISTED]),
    "transactions describe": (("--transactional-id", "t"), "chaffinch.admin.transactions.describe_transaction", DESCRIBED),
    "transactions find-hanging": ((), "chaffinch.admin.transactions.find_hanging", [PRODUCER]),
    "nodes list": (AT, "chaffinch.cli.nodes.call", [NODE]),
    "faults list": (AT, "chaffinch.cli.faults.call", [FAULT]),
    "faults add": (AT, "chaffinch.cli.faults.call", [FAULT]),
}


def is_harmless(text: str) -> bool:
    return text.replace("\n", "").isprintable()


@pytest.fixture(autouse=True)
def _without_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("groups", "topics", "transactions"):
        monkeypatch.setattr(f"chaffinch.cli.{module}.connect", lambda *_: Admin(bootstrap_servers="127.0.0.1:1"))
    monkeypatch.setattr("chaffinch.cli.transactions._partitions", lambda *_: [])


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


@pytest.mark.parametrize("command", COMMANDS)
def test_hostile_names_are_escaped(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options, function, found = COMMANDS[command]
    monkeypatch.setattr(function, lambda *_, **__: found)
    assert run(*command.split(), *options) == 0
    out = capsys.readouterr().out
    assert is_harmless(out)
    assert "a\\u001b[31mred" in out
    assert "forged line" not in [line[:11] for line in out.splitlines()]
    if command != "topics describe":
        assert "[red]mark" in out or "..." in out


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "faults add"])
def test_json_round_trips_hostile_names(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options, function, found = COMMANDS[command]
    monkeypatch.setattr(function, lambda *_, **__: found)
    assert run(*command.split(), *options, "--json") == 0
    out = capsys.readouterr().out
    assert is_harmless(out)
    assert json.dumps(HOSTILE) in json.dumps(json.loads(out))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("error", "status"), [(KafkaException(HOSTILE), 1), (ConfigException(HOSTILE), 2), (OSError(5, HOSTILE, HOSTILE), 1)]
)
def test_hostile_messages_are_escaped(
    command: str, error: Exception, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options, function, _ = COMMANDS[command]

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(function, fail)
    assert run(*command.split(), *options) == status
    err = capsys.readouterr().err
    assert err.startswith("chaffinch: ")
    assert is_harmless(err)
    assert err.count("\n") == 1


def test_long_ids_are_cut_in_tables(capsys: pytest.CaptureFixture[str]) -> None:
    long = "begin" + "x" * 10_000 + "end"
    display.print_table(("id", "several"), [(long, ("first", long)), (None, ())])
    first, second = capsys.readouterr().out.splitlines()[1:]
    assert len(first) < 4 * display.CELL_LENGTH_MAX
    assert (first.count("begin"), first.count("end"), first.count("...")) == (2, 2, 2)
    assert second.split() == ["-", "-"]


def test_plain_escapes_control_characters() -> None:
    assert plain(HOSTILE) == SHOWN
    assert json.loads(f'"{plain(HOSTILE)}"') == HOSTILE
    assert plain("as it is: äöü 漢字 🙂") == "as it is: äöü 漢字 🙂"
    assert plain("a\n\tb\r", keep="\n\t") == "a\n\tb\\r"


@pytest.mark.parametrize("length", [0, 9, 10, 11, 500])
def test_long_texts_are_abbreviated(length: int) -> None:
    text = "x" * length
    assert len(abbreviate(text, 10)) == min(length, 10)


def test_records_on_a_terminal_are_escaped() -> None:
    shown = io.BytesIO()
    terminal = display.terminal_text(shown)
    for part in ("ä".encode()[:1], "ä".encode()[1:], b"\x1b[31m\xff\x9b", "\u202e\t\x7f\n".encode()):
        assert terminal.write(part) == len(part)
    assert shown.getvalue().decode() == "ä\\u001b[31m\\xff\\x9b\\u202e\t\\u007f\n"


@pytest.mark.parametrize("name", ["chaffinch.broker", "chaffinch.cli", "chaffinch.consumer", "chaffinch.producer", "chaffinch.spark"])
def test_log_lines_cannot_be_forged(name: str, caplog: pytest.LogCaptureFixture) -> None:
    plain_text.logger(name)
    with caplog.at_level(logging.WARNING, name):
        logging.getLogger(name).warning("client %s and %d", HOSTILE, 7)
        logging.getLogger(name).warning("client %s", "harmless")
    assert [record.getMessage() for record in caplog.records] == [f"client {SHOWN} and 7", "client harmless"]


@pytest.mark.parametrize("part", ["broker", "cli", "consumer", "producer", "spark"])
def test_every_logger_escapes(part: str) -> None:
    """By its name once for all files that use it; a logger of a file's own name by that file."""
    folder = Path(chaffinch.cli.__file__).parents[1] / part
    texts = [path.read_text() for path in folder.rglob("*.py")]
    assert any(f'plain_text.logger("chaffinch.{part}")' in text for text in texts)
    own = {path.name for path in folder.rglob("*.py") if "logging.getLogger(__name__)" in path.read_text()}
    assert own <= {"log_maintenance.py"}  # It says what became of partitions, and nothing that a client said.


def _prints(path: Path) -> Iterator[int]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield node.lineno


def test_only_display_prints() -> None:
    folder = Path(chaffinch.cli.__file__).parent
    found = {path.name: list(_prints(path)) for path in folder.rglob("*.py") if path.name != "display.py"}
    assert {name: lines for name, lines in found.items() if lines} == {}
