"""`chaffinch broker --control --metrics`, and the commands that talk to it; topics that are there already."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chaffinch import EmbeddedBroker
from chaffinch.broker.control import Control
from chaffinch.broker.core.counters import HELP
from chaffinch.broker.http_listener import HttpListener
from chaffinch.broker.listeners import Address
from chaffinch.broker.metrics import families
from chaffinch.cli.broker import control_address
from chaffinch.cli.main import main
from chaffinch.errors import ConfigException
from tests.cli.test_broker import COMMAND


class Shell:
    """Runs sub-commands in this process against one control port."""

    def __init__(self, control: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.control = control
        self._capsys = capsys

    def run(self, *arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--control", self.control])
        out, err = self._capsys.readouterr()
        return int(ended.value.code or 0), out, err

    def ok(self, *arguments: str) -> str:
        status, out, err = self.run(*arguments)
        assert (status, err) == (0, "")
        return out

    def refused(self, *arguments: str) -> tuple[int, str]:
        status, out, err = self.run(*arguments)
        assert out == ""
        (line,) = err.splitlines()
        return status, line


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    with EmbeddedBroker(topics={"orders": {"partitions": 3, "replication": 3}}, brokers=3) as broker:
        server = broker._running
        listener = broker._thread.run(
            HttpListener.start(Address(host="127.0.0.1", port=0), Control(server, "127.0.0.1"), server.log_rate_limited)
        )
        yield Shell(f"127.0.0.1:{listener.port}", capsys)
        broker._thread.call(listener.close)


def states(shell: Shell) -> list[str]:
    return [node["state"] for node in json.loads(shell.ok("nodes", "list", "--json"))]


def test_nodes_are_listed_stopped_and_started(shell: Shell) -> None:
    lines = shell.ok("nodes", "list").splitlines()
    assert lines[0].split() == ["id", "host", "port", "state", "leaders", "in", "sync"]
    assert [line.split()[3] for line in lines[1:]] == ["running"] * 3
    shell.ok("nodes", "stop", "1")
    shell.ok("nodes", "stop", "2", "--abruptly")
    assert states(shell) == ["running", "stopped", "lagging"]
    shell.ok("nodes", "start", "1")
    assert states(shell) == ["running", "running", "lagging"]


def test_faults_are_added_listed_and_cleared(shell: Shell) -> None:
    assert shell.ok("faults", "list") == "no faults\n"
    shell.ok("faults", "add", "--topic", "orders", "--partition", "1", "--client-id", "app", "--error", "INVALID_RECORD", "--count", "3")
    shell.ok("faults", "add", "--api", "Fetch", "--action", "slow_down", "--bytes-per-second", "100", "--direction", "both")
    shell.ok("faults", "add", "--action", "delay", "--delay-ms", "50")
    listed = json.loads(shell.ok("faults", "list", "--json"))
    assert listed == [
        {
            "id": 1,
            "api": "Produce",
            "action": "error",
            "topic": "orders",
            "partition": 1,
            "client_id": "app",
            "error": "INVALID_RECORD",
            "count": 3,
        },
        {"id": 2, "api": "Fetch", "action": "slow_down", "bytes_per_second": 100, "direction": "both", "count": 1},
        {"id": 3, "api": "Produce", "action": "delay", "delay_ms": 50, "count": 1},
    ]
    assert "slow_down" in shell.ok("faults", "clear", "1")
    assert shell.ok("faults", "clear") == "no faults\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nodes", "stop", "x"), "expected the number of a node, not 'x'"),
        (("nodes", "start", "1?"), "expected the number of a node, not '1?'"),
        (("faults", "add", "--api", "Produze"), "did you mean Produce?"),
        (("faults", "add", "--action", "explode"), "drop_after"),
        (("faults", "add", "--error", "INVALIDRECORD"), "INVALID_RECORD"),
        (("faults", "add", "--error", "zzz"), "unknown error 'zzz' of a fault: no error code has this number or a name like it"),
        (("faults", "add", "--error", "9999"), "no error code has this number"),
        (("faults", "add", "--error", "0"), "NONE is not an error"),
        (("faults", "add", "--action", "delay"), "action delay requires delay_ms"),
        (("faults", "add", "--action", "delay", "--delay-ms", "1", "--error", "NOT_ENOUGH_REPLICAS"), "for action error, not for delay"),
        (("faults", "add", "--action", "drop_after", "--direction", "both"), "for action slow_down, not for drop_after"),
        (("faults", "add", "--delay-ms", "5"), "delay_ms of a fault is for action delay, not for error"),
        (("faults", "add", "--count", "0"), "count"),
    ],
    ids=str,
)
def test_invalid_input_is_one_line_with_status_2(shell: Shell, arguments: tuple[str, ...], says: str) -> None:
    status, line = shell.refused(*arguments)
    assert status == 2
    assert line.startswith("chaffinch: ")
    assert says in line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nodes", "stop", "7"), "node 7 does not exist: this broker has nodes 0 to 2"),
        (("nodes", "start", "7"), "node 7 does not exist: this broker has nodes 0 to 2"),
        (("nodes", "stop", "9999999999"), "node 9999999999 does not exist: this broker has nodes 0 to 2"),
        (("faults", "clear", "5"), "there is no fault 5: it does not exist, or has expired"),
        (("faults", "clear", "9999999999"), "there is no fault 9999999999: it does not exist, or has expired"),
    ],
    ids=str,
)
def test_unknown_node_or_fault_has_status_1(shell: Shell, arguments: tuple[str, ...], says: str) -> None:
    assert shell.refused(*arguments) == (1, f"chaffinch: {says}")


ADDED = [
    ((), "the next Produce request of any client for any topic, any partition: error=NOT_LEADER_OR_FOLLOWER"),
    (
        ("--error", "19", "--count", "2", "--topic", "orders"),
        "the next 2 Produce requests of any client for topic orders, any partition: error=NOT_ENOUGH_REPLICAS",
    ),
    (("--error=-1",), "the next Produce request of any client for any topic, any partition: error=UNKNOWN_SERVER_ERROR"),
    (
        ("--action", "drop_after", "--topic", "nosuchtopic", "--partition", "0", "--client-id", "app"),
        "the next Produce request of client app for topic nosuchtopic, partition 0: drop_after; topic nosuchtopic does not exist yet",
    ),
    (
        ("--client-id", "", "--api", "1"),
        "the next Fetch request of client '' for any topic, any partition: error=NOT_LEADER_OR_FOLLOWER",
    ),
    (
        ("--client-id", "a\nb"),
        r"the next Produce request of client 'a\nb' for any topic, any partition: error=NOT_LEADER_OR_FOLLOWER",
    ),
]


@pytest.mark.parametrize(("arguments", "says"), ADDED, ids=str)
def test_added_fault_is_described_completely(shell: Shell, arguments: tuple[str, ...], says: str) -> None:
    assert shell.ok("faults", "add", *arguments).splitlines()[0] == f"added: {says}"


def test_no_or_foreign_server_at_control_port(shell: Shell) -> None:
    shell.control, control = "127.0.0.1:1", shell.control
    status, line = shell.refused("nodes", "list")
    assert (status, line) == (1, "chaffinch: no control port responds at 127.0.0.1:1: Connection refused")
    shell.control = "nowhere"
    assert shell.refused("nodes", "list")[0] == 2
    for host in ("a b", "a..b"):  # Refused before a request is sent.
        shell.control = f"{host}:1"
        status, line = shell.refused("nodes", "list")
        assert (status, line.partition(": a HOST")[0]) == (2, f"chaffinch: --control {shell.control!r}: not a valid host name")
    shell.control = control
    assert states(shell) == ["running"] * 3


def test_broker_port_is_not_a_control_port(capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedBroker() as broker:
        status, line = Shell(broker.bootstrap_servers, capsys).refused("nodes", "list")
    assert status == 1
    assert broker.bootstrap_servers in line


@pytest.mark.parametrize("text", ["127.0.0.1:1", "127.9.9.9:1", "localhost:1", "[::1]:1"])
def test_control_on_loopback_is_allowed(text: str) -> None:
    assert control_address(text, from_anywhere=False).port == 1


@pytest.mark.parametrize("text", ["0.0.0.0:1", "[::]:1", ":1", "10.0.0.1:1", "some.host:1"])
def test_control_elsewhere_needs_its_option(text: str) -> None:
    with pytest.raises(ConfigException, match="--control-from-anywhere"):
        control_address(text, from_anywhere=False)
    assert control_address(text, from_anywhere=True).port == 1


@contextmanager
def broker_process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """A process, and the words of its ready line."""
    process = subprocess.Popen([*COMMAND, "--listen", "127.0.0.1:0", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready "), (line, process.communicate(timeout=60))
        yield process, dict(re.findall(r"(\S+)=(\S+)", line))
    finally:
        process.kill()
        process.communicate()


def test_ready_line_has_control_and_metrics_ports(capsys: pytest.CaptureFixture[str]) -> None:
    with broker_process("--control", "127.0.0.1:0", "--metrics", "127.0.0.1:0") as (process, ready):
        assert list(ready) == ["bootstrap.servers", "control", "metrics"]
        assert states(Shell(ready["control"], capsys)) == ["running"]
        with urllib.request.urlopen(f"http://{ready['metrics']}/metrics", timeout=60) as answer:
            assert b"\nchaffinch_nodes{" in answer.read()
        process.terminate()
        assert process.wait(timeout=60) == 0


def test_control_port_in_use_is_reported() -> None:
    with broker_process("--control", "127.0.0.1:0") as (_, ready):
        done = subprocess.run(
            [*COMMAND, "--listen", "127.0.0.1:0", "--control", ready["control"]], capture_output=True, text=True, timeout=120
        )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith(f"chaffinch: cannot listen on {ready['control']}: ")


def test_control_on_every_address_is_refused() -> None:
    done = subprocess.run([*COMMAND, "--listen", "127.0.0.1:0", "--control", "0.0.0.0:0"], capture_output=True, text=True, timeout=120)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert "no password" in line


def test_existing_topic_with_other_settings_is_logged(tmp_path: Path) -> None:
    with broker_process("--data-dir", str(tmp_path), "--topic", "orders:3,retention.ms=5", "--topic", "same:2") as (process, _):
        process.terminate()
        process.wait(timeout=60)
    arguments = ("--topic", "orders:5:1,retention.ms=6,cleanup.policy=compact", "--topic", "same:2")
    with broker_process("--data-dir", str(tmp_path), *arguments) as (process, _):
        process.terminate()
        _, log = process.communicate(timeout=60)
    (line,) = [line for line in log.splitlines() if "is not changed" in line]
    assert line.endswith(
        "topic orders already exists and is not changed: partitions 3, not 5; retention.ms=5, not 6; "
        "cleanup.policy=its default, not compact"
    )


DOCUMENT = (Path(__file__).parents[2] / "docs" / "reference" / "broker.md").read_text(encoding="utf-8")


def test_documented_commands_work(shell: Shell) -> None:
    """In the order in which they stand there; the last ones undo what was done."""
    commands = re.findall(r"^chaffinch ((?:nodes|faults) .*) --control 127\.0\.0\.1:9099$", DOCUMENT, re.MULTILINE)
    assert len(commands) == 9
    for command in commands:
        shell.ok(*command.split())
    assert states(shell) == ["running", "running", "lagging"]


def test_documented_metrics_match() -> None:
    """Each name of the table is there, and each one there is in the table."""
    with EmbeddedBroker(topics=["orders"]) as broker:
        server = broker._running
        there = {family.name for family in broker._thread.call(lambda: list(families(server)))}
    rows = re.findall(r"^\| (`(?:kafka|chaffinch)_.*?) \|", DOCUMENT, re.MULTILINE)
    documented = set()
    for row in rows:
        names = [name.partition("{")[0] for name in re.findall(r"`([^`]+)`", row)]
        first = names[0].rpartition("_")[0]
        for name in names:
            name = first + name if name.startswith("_") else name
            documented |= {name.replace("<counter>", counter) for counter in HELP} if "<counter>" in name else {name}
    assert documented == there
