"""Options of a file and of the command line together, and which names of a file are shown."""

from __future__ import annotations

import base64
import random
from pathlib import Path

import pytest

from chaffinch.cli.connection import parse_settings
from chaffinch.cli.option_source import SourcedOption, merge_options, validate_options
from chaffinch.errors import ConfigException
from chaffinch.producer.core.options import PRODUCER_OPTIONS, parse_options
from chaffinch.settings import ERRORS_SHOWN_MAX, Option, OptionTable
from tests.cli.shell import run_bytes

TABLE = OptionTable(
    [Option("acks", "string", "all", "Who has it."), Option("linger.ms", "int", 5, "How long.")],
    without_effect={"client.dns.lookup"},
    hints={"group.id": "there are no groups"},
)
PEM_LINE = base64.b64encode(random.Random(1).randbytes(47)).decode()

SHOWN = ["linger.mss", "linger_mss", "kafka.linger.mss", "ackss", "group.id", "client.dns.lokup", "listener.name.internal.ssl.key"]
NOT_SHOWN = [
    PEM_LINE,
    PEM_LINE.removesuffix("="),
    PEM_LINE.lower(),
    "Xy2Kd",  # The last line of a key, before its equals signs.
    "hunter2",
    "correct horse",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2VjcmV0",
    "550e8400-e29b-41d4-a716-446655440000",
    "deadbeefdeadbeefdeadbeefdeadbeef.deadbeefdeadbeefdeadbeefdeadbeef",
    "-----BEGIN PRIVATE KEY-----",
    "",
    "correct_horse_battery_staple",
    "npm_a1b2c3d4e5f6g7h8i9",
    "sk_live_4ec39hqlyjwdarjtt1zd",
    "my.secret-password1",
    "client.dns.lookuphunter2",  # A known name and a value, with nothing between.
]


def refusal(*given: SourcedOption) -> str:
    with pytest.raises(ConfigException) as raised:
        validate_options(TABLE, given)
    return str(raised.value.message)


@pytest.mark.parametrize("name", SHOWN)
def test_name_similar_to_a_known_one_is_shown(name: str) -> None:
    assert refusal(SourcedOption(name, "1", "f:1", is_from_file=True)).startswith(f"f:1: unknown option {name!r}: ")


@pytest.mark.parametrize("name", NOT_SHOWN)
def test_possible_secret_is_not_shown(name: str) -> None:
    assert refusal(SourcedOption(name, "1", "f:7", is_from_file=True)).startswith("f:7: unknown option (its name is not shown): ")


def test_name_on_the_command_line_is_shown() -> None:
    assert refusal(SourcedOption("hunter2", "1", "--config")) == "--config: unknown option 'hunter2': no known option is similar"


def test_known_name_with_underscores_is_shown() -> None:
    assert (
        refusal(SourcedOption("linger_ms", "x", "f:1", is_from_file=True))
        == "f:1: option linger.ms cannot be 'x': it must be a whole number"
    )
    assert (
        refusal(SourcedOption("linger", "1", "f:1", is_from_file=True))
        == "f:1: unknown option (its name is not shown): the nearest known one is 'linger.ms'"
    )


def test_many_errors_of_a_file_are_one_line() -> None:
    text = refusal(*(SourcedOption(f"a.{number}", "1", f"f:{number}", is_from_file=True) for number in range(ERRORS_SHOWN_MAX + 2)))
    assert text.count("unknown option") == ERRORS_SHOWN_MAX
    assert text.endswith("; and 2 more")


def test_command_line_overrides_file() -> None:
    file = [SourcedOption("linger.ms", "x", "f:1"), SourcedOption("acks", "1", "f:2")]
    together = merge_options([SourcedOption("linger_ms", "7")], file)
    assert together == [SourcedOption("linger_ms", "7"), SourcedOption("acks", "1", "f:2")]
    settings = validate_options(TABLE, together)
    assert (settings["linger.ms"], settings["acks"]) == (7, "1")


def test_overridden_file_value_is_not_validated(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("linger.ms=long\nbootstrap_servers=a:1\n")
    assert parse_settings(PRODUCER_OPTIONS, None, str(file), (SourcedOption("linger.ms", 3), SourcedOption("acks", None)))["linger.ms"] == 3
    with pytest.raises(ConfigException, match=f"^--command-config {file}:1: option linger.ms cannot be 'long'"):
        parse_settings(PRODUCER_OPTIONS, "a:1", str(file))


def test_contradiction_names_only_the_contradicting_options(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("acks=1\n")
    given = (SourcedOption("transactional.id", "t", "--transactional-id"), SourcedOption("linger.ms", 3, "--linger"))
    with pytest.raises(ConfigException) as raised:
        parse_settings(PRODUCER_OPTIONS, "a:1", str(file), given, parse_options)
    assert raised.value.message == (
        "option acks cannot be '1' with a transactional.id: it must be all "
        f"(transactional.id: --transactional-id, acks: --command-config {file}:1)"
    )


@pytest.mark.parametrize(
    ("environment", "typed", "source"),
    [
        ("c:1", ["--bootstrap-server", "b"], "--bootstrap-server"),
        ("b", ["--bootstrap-server", "b"], "--bootstrap-server"),
        ("b", [], "CHAFFINCH_BOOTSTRAP_SERVER"),
    ],
)
@pytest.mark.parametrize("command", [["topics", "list"], ["produce", "--topic", "t"], ["replay", "--topic", "t"]], ids=" ".join)
def test_server_without_port_names_its_source(
    monkeypatch: pytest.MonkeyPatch, command: list[str], environment: str, typed: list[str], source: str
) -> None:
    monkeypatch.setenv("CHAFFINCH_BOOTSTRAP_SERVER", environment)
    status, out, err = run_bytes([*command, *typed])
    assert (status, out) == (2, b"")
    assert err.startswith("chaffinch: option bootstrap.servers cannot contain 'b': ")
    assert err.endswith(f"(bootstrap.servers: {source})\n")
