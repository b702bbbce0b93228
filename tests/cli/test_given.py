"""Options of a file and of the command line together, and which names of a file are shown."""

from __future__ import annotations

import base64
import random
from pathlib import Path

import pytest

from chaffinch.cli.connection import settings_of
from chaffinch.cli.given import Given, judged, over
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


def refusal(*given: Given) -> str:
    with pytest.raises(ConfigException) as raised:
        judged(TABLE, given)
    return str(raised.value.message)


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_nearly_a_known_name_is_shown(name: str) -> None:
    assert refusal(Given(name, "1", "f:1", is_read=True)).startswith(f"f:1: unknown option {name!r}: ")


@pytest.mark.parametrize("name", NOT_SHOWN)
def test_what_may_be_a_secret_is_not_shown(name: str) -> None:
    assert refusal(Given(name, "1", "f:7", is_read=True)).startswith("f:7: unknown option (its name is not shown): ")


def test_what_stands_on_the_command_line_is_shown() -> None:
    assert refusal(Given("hunter2", "1", "--config")) == "--config: unknown option 'hunter2': no known option is similar"


def test_known_names_without_dots_are_shown_and_near_ones_named() -> None:
    assert refusal(Given("linger_ms", "x", "f:1", is_read=True)) == "f:1: option linger.ms cannot be 'x': it must be a whole number"
    assert (
        refusal(Given("linger", "1", "f:1", is_read=True))
        == "f:1: unknown option (its name is not shown): the nearest known one is 'linger.ms'"
    )


def test_a_file_with_much_that_is_wrong_takes_one_line() -> None:
    text = refusal(*(Given(f"a.{number}", "1", f"f:{number}", is_read=True) for number in range(ERRORS_SHOWN_MAX + 2)))
    assert text.count("unknown option") == ERRORS_SHOWN_MAX
    assert text.endswith("; and 2 more")


def test_the_command_line_wins() -> None:
    file = [Given("linger.ms", "x", "f:1"), Given("acks", "1", "f:2")]
    together = over([Given("linger_ms", "7")], file)
    assert together == [Given("linger_ms", "7"), Given("acks", "1", "f:2")]
    settings = judged(TABLE, together)
    assert (settings["linger.ms"], settings["acks"]) == (7, "1")


def test_what_a_command_is_told_wins_over_its_file_before_that_is_looked_at(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("linger.ms=long\nbootstrap_servers=a:1\n")
    assert settings_of(PRODUCER_OPTIONS, None, str(file), (Given("linger.ms", 3), Given("acks", None)))["linger.ms"] == 3
    with pytest.raises(ConfigException, match=f"^--command-config {file}:1: option linger.ms cannot be 'long'"):
        settings_of(PRODUCER_OPTIONS, "a:1", str(file))


def test_what_contradicts_itself_names_those_that_do_and_no_option_that_only_has_to_be_there(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("acks=1\n")
    given = (Given("transactional.id", "t", "--transactional-id"), Given("linger.ms", 3, "--linger"))
    with pytest.raises(ConfigException) as raised:
        settings_of(PRODUCER_OPTIONS, "a:1", str(file), given, parse_options)
    assert raised.value.message == (
        "option acks cannot be '1' with a transactional.id: it must be all "
        f"(transactional.id: --transactional-id, acks: --command-config {file}:1)"
    )


@pytest.mark.parametrize(
    ("of_shell", "typed", "place"),
    [
        ("c:1", ["--bootstrap-server", "b"], "--bootstrap-server"),
        ("b", ["--bootstrap-server", "b"], "--bootstrap-server"),
        ("b", [], "CHAFFINCH_BOOTSTRAP_SERVER"),
    ],
)
@pytest.mark.parametrize("command", [["topics", "list"], ["produce", "--topic", "t"], ["replay", "--topic", "t"]], ids=" ".join)
def test_where_a_server_without_a_port_was_given(
    monkeypatch: pytest.MonkeyPatch, command: list[str], of_shell: str, typed: list[str], place: str
) -> None:
    monkeypatch.setenv("CHAFFINCH_BOOTSTRAP_SERVER", of_shell)
    status, out, err = run_bytes([*command, *typed])
    assert (status, out) == (2, b"")
    assert err.startswith("chaffinch: option bootstrap.servers cannot contain 'b': ")
    assert err.endswith(f"(bootstrap.servers: {place})\n")
