"""`chaffinch broker` as a process: the ready line, clear refusals, a clean end, and a SIGKILL that loses nothing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chaffinch.broker.arguments import TopicArgument, parse_text
from chaffinch.broker.core import options
from chaffinch.broker.listeners import Address, listening_socket
from chaffinch.cli.broker import (
    Ports,
    exposure_warnings,
    load_users,
    parse_address,
    parse_addresses,
    parse_config,
    warn_of_readable_secrets,
)
from chaffinch.errors import ConfigException
from chaffinch.protocol.messages.metadata import MetadataRequest
from tests.broker.batches import batch_of
from tests.broker.core_client import produce_request
from tests.broker.socket_client import SocketClient

COMMAND = [sys.executable, "-c", "from chaffinch.cli.main import main; main()", "broker"]


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A broker process and its bootstrap servers."""
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"ready bootstrap\.servers=(\S+)\n", line)
        assert found, f"{line!r}, then: {process.communicate(timeout=60)}"
        yield process, found[1]
    finally:
        process.kill()
        process.communicate()


def refused(*arguments: str) -> tuple[int, str]:
    """Exit status and the one line."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return done.returncode, line


def test_broker_prints_ready_and_ends_by_sigterm(tmp_path: Path) -> None:
    topic = ("--topic", "orders:3:2,cleanup.policy=compact,delete,max.message.bytes=5000")
    arguments = ("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path), "--brokers", "2", *topic, "--config", "num.partitions=4")
    with running(*arguments) as (process, servers):
        assert len(servers.split(",")) == 2
        with SocketClient(servers) as client:
            answer = client.ask(MetadataRequest(topics=None))
            assert [(topic.name, len(topic.partitions)) for topic in answer.topics] == [("orders", 3)]
            assert len(answer.topics[0].partitions[0].replica_nodes) == 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    with running(*arguments):
        pass


def test_exposed_addresses_are_warned_of_once() -> None:
    others = ("--listen", "0.0.0.0:0", "--advertise", "127.0.0.1:0", "--metrics", "0.0.0.0:0")
    for arguments, expected in ((others, ["--listen 0.0.0.0:0", "--metrics 0.0.0.0:0"]), (("--listen", "127.0.0.1:0"), [])):
        process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready ")
        process.send_signal(signal.SIGTERM)
        warnings = [line for line in process.communicate(timeout=60)[1].splitlines() if " WARNING " in line]
        assert len(warnings) == len(expected)
        for option, line in zip(expected, warnings, strict=True):
            assert f" WARNING {option}" in line
            assert "can be reached from other machines, without TLS and without a login: every client can " in line


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({}, "without TLS and without a login"),
        ({"security.protocol": "SSL"}, "without a login"),
        ({"security.protocol": "SSL", "ssl.client.auth": "required"}, None),
        ({"security.protocol": "SASL_PLAINTEXT"}, "without TLS: passwords"),
        ({"security.protocol": "SASL_SSL"}, None),
    ],
)
def test_tls_and_login_silence_exposure_warnings(given: dict[str, str], missing: str | None) -> None:
    ports = Ports(control=None, metrics=None)
    lines = list(exposure_warnings(Address(host="10.0.0.1", port=9092), ports, options.parse(given)))
    assert [missing is not None and missing in line for line in lines] == ([] if missing is None else [True])
    assert not list(exposure_warnings(Address(host="::1", port=9092), ports, options.parse(given)))


def test_exposed_control_port_is_warned_of() -> None:
    ports = Ports(control=Address(host="0.0.0.0", port=1), metrics=Address(host="127.0.0.1", port=2))
    (line,) = exposure_warnings(Address(host="localhost", port=0), ports, options.parse({}))
    assert line.startswith("--control 0.0.0.0:1 can be reached")


def test_sigkill_loses_nothing_acknowledged(tmp_path: Path) -> None:
    arguments = ("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path), "--topic", "orders")
    for round_number in range(3):
        with running(*arguments) as (process, servers), SocketClient(servers) as client:
            for number in range(5):
                answer = client.ask(produce_request("orders", batch_of(b"a")))
                assert answer.responses[0].partition_responses[0].base_offset == round_number * 5 + number
            process.kill()
            assert process.wait(timeout=60) == -signal.SIGKILL


def test_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        status, line = refused("--listen", f"127.0.0.1:{port}", "--data-dir", str(tmp_path))
        others = ("--listen", "127.0.0.1:0", "--metrics", f"127.0.0.1:{port}")
        assert refused(*others) == (1, line.replace("--listen", "--metrics"))
    assert status == 1
    assert line == f"chaffinch: cannot listen on 127.0.0.1:{port}: Address already in use (--listen; port 0 selects a free one)"


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_full_stdout_is_named(unbuffered: str) -> None:
    command, environment = [*COMMAND, "--listen", "127.0.0.1:0"], {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, env=environment)
    assert (done.returncode, done.stderr) == (1, "chaffinch: stdout: No space left on device\n")


def test_data_directory_in_use_is_reported(tmp_path: Path) -> None:
    with running("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path)) as (process, _):
        status, line = refused("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path))
    assert status == 1
    assert str(tmp_path) in line
    assert str(process.pid) in line


def test_foreign_data_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("do not touch")
    status, line = refused("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path))
    assert status == 1
    assert "thesis.txt" in line
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["thesis.txt"]


def test_damaged_journal_names_file_and_offset(tmp_path: Path) -> None:
    with running("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path), "--topic", "a", "--topic", "b") as (process, _):
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
    journal = tmp_path / "journals" / "cluster.journal"
    data = bytearray(journal.read_bytes())
    data[70] ^= 0xFF
    journal.write_bytes(data)
    status, line = refused("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path))
    assert status == 1
    assert "cluster.journal" in line
    assert "byte 0" in line or "offset 0" in line or "position 0" in line
    assert journal.read_bytes() == data
    advice = "put a copy of the whole --data-dir in its place or start with another directory; accept.data.loss does not accept"
    assert line.endswith(f"; the file is unchanged: {advice} damage in the middle")
    (tmp_path / "chaffinch.meta").unlink()
    status, line = refused("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path))
    assert (status, line) == (
        1,
        f"chaffinch: cannot use {tmp_path}/chaffinch.meta: the file is missing, though the directory was in use; nothing was changed: "
        f"{advice} this",
    )


@pytest.mark.parametrize(("lost", "what"), [("logs/orders.*/0", "the log of orders-0"), ("journals/cluster.journal", "the journal")])
def test_missing_files_are_named_with_advice(tmp_path: Path, lost: str, what: str) -> None:
    arguments = ("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path))
    with running(*arguments, "--topic", "orders") as (process, _):
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
    (found,) = tmp_path.glob(lost)
    found.rename(tmp_path.parent / f"{tmp_path.name}-lost")
    status, line = refused(*arguments)
    assert status == 1
    assert f"cannot open {found}: {what} is missing" in line
    assert (
        "; nothing was created instead: put a copy of the whole --data-dir in its place, start with another directory, or start without"
        in line
    )
    assert not found.exists()


def test_emptied_directory_needs_accepted_loss(tmp_path: Path) -> None:
    arguments = ("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path))
    for checked_settings in (), ("--config", "accept.data.loss=true"):
        if checked_settings:
            status, line = refused(*arguments)
            assert status == 1
            assert f"cannot use {tmp_path}: it was emptied" in line
            assert "; nothing was created instead: put a copy" in line
            assert line.endswith(", or create a new cluster there, without its data: --config accept.data.loss=true")
        with running(*arguments, *checked_settings) as (process, _):
            process.kill()
            assert process.stderr is not None
            said = process.stderr.read()
        assert said.count(f" INFO created data directory {tmp_path}, cluster id ") == 1
        assert said.count(f" WARNING {tmp_path} was emptied: ") == len(checked_settings) // 2
        for path in [path for path in tmp_path.iterdir() if path.name != ".lock"]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_directory_in_place_of_a_log_is_reported(tmp_path: Path) -> None:
    arguments = ("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path))
    with running(*arguments, "--topic", "orders") as (process, servers):
        with SocketClient(servers) as client:
            client.ask(produce_request("orders", batch_of(bytes(100_000))))  # More than a directory's size.
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
    (log,) = tmp_path.rglob("*.log")
    log.unlink()
    log.mkdir()
    assert refused(*arguments) == (1, f"chaffinch: cannot open {log}: Is a directory")


def test_data_directory_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    """Below a file, where not even root can make one."""
    (tmp_path / "file").write_text("")
    status, line = refused("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "file" / "data"))
    assert (status, str(tmp_path / "file" / "data") in line) == (1, True)
    status, line = refused("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "file"))
    assert (status, line) == (
        1,
        f"chaffinch: cannot make directory {tmp_path}/file: a file with this name exists, a directory is needed",
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--config", "num.partition=1"], "num.partitions"),
        (["--config", "num.partitions"], "option=value"),
        (["--listen", "nowhere"], "HOST:PORT"),
        (["--listen", "0.0.0.0:0"], "--advertise"),
        (["--listen", "127.0.0.1:65534", "--brokers", "3"], "3 declared nodes from 127.0.0.1:65534 on: the last port would be 65536"),
        (["--listen", "127.0.0.1:0", "--advertise", "0.0.0.0:9092"], "--advertise 0.0.0.0:9092: clients cannot connect"),
        (["--listen", "127.0.0.1:0", "--advertise", ":9092"], "--advertise :9092: clients cannot connect"),
        (["--listen", "0.0.0.0:0", "--advertise", "[::]:9092"], "--advertise [::]:9092: clients cannot connect"),
        (["--listen", "127.0.0.1:0", "--data-dir", ""], "--data-dir ''"),
        (["--listen", "127.0.0.1:0", "--control-from-anywhere"], "needs --control HOST:PORT"),
        (["--listen", "127.0.0.1:0", "--topic", "orders", "--topic", "orders:3"], "--topic orders is given twice"),
        (["--listen", "127.0.0.1:0", "--config", "default.replication.factor=3"], "factor=3, but only 1 node is declared (--brokers)"),
        (["--listen", "127.0.0.1:0", "--topic", "a:1:3"], "more than the 1 node of this cluster: --brokers declares more"),
        (["--listen", "127.0.0.1:0", "--config-file", "/nope"], "--config-file /nope: No such file"),
        (["--listen", "127.0.0.1:0", "--brokers", "2", "--config", "default.replication.factor=3"], "only 2 nodes are declared"),
        (["--listen", "127.0.0.1:0", "--advertise", "a:65534", "--brokers", "3"], "the highest is 65535"),
        (["--listen", "127.0.0.1:0", "--topic", "a:x"], "option=value...], up to 100000 partitions"),
        (["--listen", "127.0.0.1:0", "--topic", "__consumer_offsets"], "the name belongs to an internal topic of the broker"),
        (["--config", "max.message.bytes=5"], "the nearest known one is 'message.max.bytes'"),
        (["--config", "num.partitions=" + "9" * 26], "at most 2147483647"),
        (["--listen", "127.0.0.1:0", "--topic", "a/b"], "letters"),
        (["--listen", "127.0.0.1:0", "--topic", "a,retention.mss=1"], "retention.ms"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_invalid_arguments_are_refused(arguments: list[str], says: str) -> None:
    status, line = refused(*arguments)
    assert status == 2
    assert says in line


def test_advertised_address_is_returned_to_clients(tmp_path: Path) -> None:
    with running("--listen", "127.0.0.1:0", "--advertise", "kafka.example:19092", "--brokers", "2") as (_, servers):
        assert servers == "kafka.example:19092,kafka.example:19093"


TOPICS = {
    "a": TopicArgument(name="a"),
    "a:3": TopicArgument(name="a", partitions=3),
    "a:3:2": TopicArgument(name="a", partitions=3, replication=2),
    "a,x=1": TopicArgument(name="a", config={"x": "1"}),
    "a:1,cleanup.policy=compact,delete,x= 2": TopicArgument(name="a", partitions=1, config={"cleanup.policy": "compact,delete", "x": "2"}),
}


@pytest.mark.parametrize(("text", "expected"), TOPICS.items(), ids=TOPICS)
def test_topic_arguments_are_parsed(text: str, expected: TopicArgument) -> None:
    assert parse_text(text) == expected


@pytest.mark.parametrize("text", ["", ":3", "a:0", "a:-1", "a:1:2:3", "a,b", "a:1.5", "a:\u0663", "a:" + "9" * 5000])
def test_invalid_topic_arguments_are_refused(text: str) -> None:
    with pytest.raises(ConfigException):
        parse_text(text)


def test_addresses_and_options_are_parsed() -> None:
    assert parse_address("--listen", "[::1]:9092") == Address(host="::1", port=9092)
    assert parse_address("--listen", "localhost:0") == Address(host="localhost", port=0)
    for text in ("localhost", "localhost:", "localhost:x", "localhost:70000", "localhost:\u0663", "localhost:" + "9" * 5000):
        with pytest.raises(ConfigException):
            parse_address("--listen", text)
    assert parse_config(["num.partitions = 3"]) == {"num.partitions": "3"}
    with pytest.raises(ConfigException, match="twice"):
        parse_config(["num.partitions=3", "num.partitions=3"])


NO_HOSTS = ("a b", "a..b", ".x", "a" * 64, "a" * 40_000, "a." * 127 + "a", "\udcff", "a:b", "::1%\udcff", "http://a", "[a", "a\nb")


@pytest.mark.parametrize("host", NO_HOSTS, ids=lambda host: ascii(host[:9]))
def test_invalid_host_names_are_refused(host: str) -> None:
    """For each option with a host: such a name can be neither listened on nor connected to."""
    for listen_at, advertise in ((f"{host}:1", None), ("127.0.0.1:0", f"{host}:1")):
        with pytest.raises(ConfigException, match=r"^--[a-z]+ '.*: not a valid host name: a HOST has letters, .*\[::1\]:9092$") as raised:
            parse_addresses(listen_at, advertise)
        assert len(raised.value.message) < 400


@pytest.mark.parametrize(
    "host", ["a", "a-b.c_d.", "b\N{LATIN SMALL LETTER U WITH DIAERESIS}cher.example", "10.0.0.1", "fe80::1%eth0", "a" * 63]
)
def test_valid_host_names_are_accepted(host: str) -> None:
    assert parse_addresses("127.0.0.1:0", f"[{host}]:1" if ":" in host else f"{host}:1")[1] == Address(host=host, port=1)


@pytest.mark.parametrize("host", ["", "*", "0", "0.0", "0.0.0.0", "[::]", "[0::0]"])
def test_wildcard_cannot_be_advertised(host: str) -> None:
    with pytest.raises(ConfigException, match="stands for every address of this machine: name one for clients with --advertise"):
        parse_addresses(f"{host}:0", None)
    with pytest.raises(ConfigException, match=": clients cannot connect to it"):
        parse_addresses("127.0.0.1:0", f"{host}:1")


@pytest.mark.parametrize("host", ["", "*"])
def test_empty_host_listens_on_every_address(host: str) -> None:
    ports = ("--metrics", f"{host}:0", "--control", f"{host}:0", "--control-from-anywhere")
    command = [*COMMAND, "--listen", f"{host}:0", "--advertise", "localhost:0", *ports]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert re.fullmatch(r"ready bootstrap\.servers=localhost:\d+ control=0\.0\.0\.0:\d+ metrics=0\.0\.0\.0:\d+\n", line), line
    finally:
        process.kill()
        process.communicate()


def test_unresolvable_host_name_raises_oserror() -> None:
    with pytest.raises(OSError, match=r"^\[Errno 22\] cannot listen on a\.\.b:0: "):
        listening_socket(Address(host="a..b", port=0))


def test_command_line_overrides_config_file(tmp_path: Path) -> None:
    """What must not be in the list of processes, a key's password, stands in a file."""
    path = tmp_path / "broker.properties"
    path.write_text("ssl.key.password=secret\nnum.partitions=3\n")
    key = {"ssl.key.password": "secret", "security.protocol": "SSL"}
    assert parse_config([], str(path), "SSL") == {"num.partitions": "3", **key}
    assert parse_config(["num_partitions=4"], str(path), "SSL") == {"num_partitions": "4", **key}


NOT_MANY = "option num.partitions cannot be 'many': it must be a whole number"
FILES = {
    "what the line overrides is not looked at": ("num.partitions=many", ["num.partitions=4"], "SSL", None),
    "nor what it would contradict": ("group.max.session.timeout.ms=10", ["group.max.session.timeout.ms=600000"], "SSL", None),
    "nor another protocol": ("security.protocol=PLAINTEXT", [], "SSL", None),
    "an unknown name": (
        "\nnum.partition=3",
        [],
        None,
        "FILE:2: unknown option 'num.partition': the nearest known one is 'num.partitions'",
    ),
    "a bad value of the file": ("num.partitions=many", [], None, f"FILE:1: {NOT_MANY}"),
    "a bad value of the line": ("", ["num.partitions=many"], None, f"--config: {NOT_MANY}"),
    "one of each": (
        "num.partitions=many",
        ["nope=1"],
        None,
        f"--config: unknown option 'nope': no known option is similar; FILE:1: {NOT_MANY}",
    ),
    "a combination": (
        "num.partitions=2\ngroup.max.session.timeout.ms=10",
        ["group.min.session.timeout.ms=11"],
        None,
        "group.min.session.timeout.ms=11 is above group.max.session.timeout.ms=10: no member could join "
        "(group.min.session.timeout.ms: --config, group.max.session.timeout.ms: FILE:2)",
    ),
    "a combination with a default, which names no option": (
        "log.retention.hours=0",
        ["num.partitions=2"],
        None,
        "log.retention.ms, or the minutes or hours in its place, cannot be 0: at least 1, or below 0 for no limit "
        "(log.retention.hours: FILE:1)",
    ),
    "what its protocol does not use": (
        "num.partitions=2\nssl.key.password=secret",
        [],
        "PLAINTEXT",
        "option ssl.key.password cannot be used with security.protocol=PLAINTEXT: set it to SSL or SASL_SSL (--listener-security), "
        "or leave it out (ssl.key.password: FILE:2)",
    ),
    "one option in two spellings": (
        "num.partitions=2\nnum_partitions=3",
        [],
        None,
        "option num.partitions is given twice, as 'num.partitions' and as 'num_partitions': give it once "
        "(num.partitions: FILE:1, num_partitions: FILE:2)",
    ),
    "unknown names": (
        "log.retention.hourz=5\nno.such.option=1\n",
        [],
        None,
        "FILE:1: unknown option 'log.retention.hourz': the nearest known one is 'log.retention.hours'; "
        "FILE:2: unknown option 'no.such.option': no known option is similar",
    ),
    "no name=value": ("ssl.keystore.key=-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\n", [], None, "FILE:2: not name=value"),
}


@pytest.mark.parametrize(("text", "line", "security", "says"), FILES.values(), ids=FILES)
def test_config_file_and_command_line_are_validated_together(
    tmp_path: Path, text: str, line: list[str], security: str | None, says: str | None
) -> None:
    path = tmp_path / "broker.properties"
    path.write_text(text)
    if says is None:
        parse_config(line, str(path), security)
        return
    with pytest.raises(ConfigException) as raised:
        parse_config(line, str(path), security)
    assert raised.value.message == says.replace("FILE", f"--config-file {path}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it contains no users: expected lines of name=password"),
        ("garbage line", "not name=value"),
        ("a=1\na=2", "repeats the user of line 1"),
        ("a=", "password of user 'a'"),
    ],
)
def test_invalid_users_files_are_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "users"
    path.write_text(text)
    with pytest.raises(ConfigException, match=f"--users {path}:.*{says}"):
        load_users(str(path))


@pytest.mark.parametrize(("mode", "is_warned"), [(0o600, False), (0o400, False), (0o640, True), (0o644, True), (0o604, True)])
def test_readable_secrets_are_warned_of(tmp_path: Path, mode: int, is_warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    paths = [tmp_path / name for name in ("users", "config", "server.pem", "data/journals/cluster.journal")]
    paths[-1].parent.mkdir(parents=True)
    (tmp_path / "data").chmod(0o755)
    for path in paths:
        path.write_text("alice=secret\n")
        path.chmod(mode)
    users, config, key, journal = map(str, paths)
    warn_of_readable_secrets(users, config, {"ssl.keystore.location": key, "ssl.key.password": "x"}, str(tmp_path / "data"))
    named = [path for path in (users, config, key, journal) if f"chmod 600 {path}" in caplog.text]
    assert named == ([users, config, key, journal] if is_warned else [])
    assert f"(mode {mode:04o})" in caplog.text or not is_warned


def test_journal_in_private_directory_is_not_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "journals").mkdir()
    (tmp_path / "journals" / "cluster.journal").write_bytes(b"")
    tmp_path.chmod(0o700)
    warn_of_readable_secrets(None, None, {}, str(tmp_path))
    warn_of_readable_secrets(str(tmp_path / "missing"), None, {}, str(tmp_path / "missing"))
    assert caplog.text == ""
