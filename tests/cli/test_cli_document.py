"""`docs/reference/cli.md`: its examples print what they say, and its JSON fields are those that the commands print."""

from __future__ import annotations

import doctest
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaffinch import EmbeddedBroker
from tests.cli.checks_transactions import open_transaction
from tests.cli.shell import Shell, run_bytes

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```console\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
_ESCAPES = {r"\n": "\n", r"\t": "\t"}


def examples(block: str) -> Iterator[tuple[str, str]]:
    """(command, what it prints) of each `$` line."""
    for part in block.removeprefix("$ ").split("\n$ "):
        command, _, printed = part.partition("\n")
        yield command, printed


def run_line(line: str) -> str:
    """What a line prints on stdout and stderr: `chaffinch ...`, or `printf TEXT | chaffinch ...`."""
    text, bar, command = line.partition(" | ") if line.startswith("printf ") else ("", "", line)
    stdin = ""
    if bar:
        _, stdin = shlex.split(text)
        for written, meant in _ESCAPES.items():
            stdin = stdin.replace(written, meant)
    name, *arguments = shlex.split(command)
    assert name == "chaffinch", line
    _, out, err = run_bytes(arguments, stdin.encode())
    return out.decode() + err


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split()[2])
def test_documented_examples_print_their_output(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checker = doctest.OutputChecker()
    with EmbeddedBroker() as broker:
        monkeypatch.setenv("CHAFFINCH_BOOTSTRAP_SERVER", broker.bootstrap_servers)
        for line, expected in examples(block):
            printed = run_line(line)
            wanted = expected if expected.endswith("\n") or not expected else f"{expected}\n"
            assert checker.check_output(wanted, printed, doctest.ELLIPSIS), f"$ {line}\n{printed}"


def test_every_command_has_an_example() -> None:
    shown = {
        tuple(words[:2]) for block in BLOCKS for line, _ in examples(block) for words in [shlex.split(line.partition("chaffinch ")[2])]
    }
    assert {words[0] for words in shown} == {"topics", "produce", "consume", "groups", "transactions"}
    assert {("groups", "reset-offsets"), ("topics", "describe"), ("transactions", "find-hanging")} <= shown


def documented(command: str) -> set[str]:
    """The fields of a command's row, with those it takes from another's."""
    rows = [line.strip("|").split("|") for line in PAGE.partition("## JSON")[2].splitlines() if line.startswith("| `")]
    cell = next(cells[1] for cells in rows if f"`{command}`" in cells[0])
    names = set(re.findall(r"`([^`]+)`", cell))
    others = {name for name in names if " " in name}
    return names - others | {field for other in others for field in documented(other)}


def fields_in(value: Any) -> set[str]:
    """Names of all fields, but of those that are data (a topic's options by name)."""
    if isinstance(value, list):
        return {name for entry in value for name in fields_in(entry)}
    if not isinstance(value, dict):
        return set()
    inner = [fields_in(list(entry.values()) if name == "configs" else entry) for name, entry in value.items()]
    return set(value).union(*inner)


def test_json_fields_are_documented(tmp_path: Path) -> None:
    with EmbeddedBroker(topics={"orders": {"max.message.bytes": 5000}}) as broker:
        shell = Shell(broker.bootstrap_servers, tmp_path, "json")
        shell.ok("produce", "--topic", "orders", stdin=b"1\n2\n")
        shell.ok("consume", "--topic", "orders", "--group", "readers")
        place = ("--topic", "orders", "--partition", "0")
        reset = ("--group", "readers", "--topic", "orders", "--to-latest")
        with open_transaction(shell, "orders", "payments"):
            for command, arguments in [
                ("topics list", ()),
                ("topics describe", ()),
                ("topics create", ("--topic", "new", "--config", "cleanup.policy=compact")),
                ("topics alter", ("--topic", "new", "--config", "max.message.bytes=5000")),
                ("topics delete", ("--topic", "new")),
                ("groups list", ()),
                ("groups reset-offsets", reset),
                ("groups delete-offsets", ("--group", "readers", "--topic", "orders:0")),
                ("transactions list", ()),
                ("transactions describe", ("--transactional-id", "payments")),
                ("transactions describe-producers", place),
                ("transactions abort", (*place, "--start-offset", "2")),
                ("transactions terminate", ("--transactional-id", "payments")),
            ]:
                assert fields_in(shell.ok(*command.split(), *arguments, "--json").json) == documented(command), command
        assert fields_in(shell.ok("produce", "--topic", "orders", "--json", stdin=b"1\n").json) == documented("produce")


def test_demo_json_fields_are_documented() -> None:
    status, out, err = run_bytes(["demo", "--json"])
    assert (status, err) == (0, "")
    result = json.loads(out)
    assert fields_in(result) <= documented("demo") | {"records", "confluent_kafka"}
    assert (result["chaffinch"]["written"], result["chaffinch"]["failed"]) == (99, 1)
    assert (result["confluent_kafka"]["written"], result["confluent_kafka"]["failed"]) == (0, 100)
    assert "INVALID_COMPACTION_KEY" in result["chaffinch"]["error"]


def test_demo_prints_the_documented_output() -> None:
    status, out, err = run_bytes(["demo"])
    assert (status, err) == (0, "")
    assert b"99 written, 1 failed" in out
    assert b"0 written, 100 failed, 99 of them valid" in out
