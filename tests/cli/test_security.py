"""Commands against a listener with TLS and logins: the options come from --command-config, as for Kafka's own tools."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from chaffinch import EmbeddedBroker
from tests.cli.shell import Shell
from tests.cli.test_broker import COMMAND
from tests.support.certificates import Certificates

TIMEOUT_SECONDS = 60


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def properties(root: str, password: str = "s3cret") -> str:
    """As Java's tools have them."""
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return (
        f"security.protocol=SASL_SSL\nssl.truststore.type=PEM\nssl.truststore.location={root}\n"
        f'sasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config={module} required \\\n  username="alice" \\\n  password="{password}";\n'
    )


def test_cluster_commands_use_tls_and_login(certificates: Certificates, tmp_path: Path) -> None:
    config = {"security.protocol": "SASL_SSL", "ssl.keystore.location": certificates.server}
    with EmbeddedBroker(config=config, users={"alice": "s3cret"}) as broker:
        shell = Shell(broker.bootstrap_servers, tmp_path, "t")
        options = ("--command-config", shell.file("right.properties", properties(certificates.root)))
        shell.ok("topics", "create", "--topic", "orders", *options)
        assert "orders" in shell.ok("topics", "list", *options).out
        assert shell.ok("produce", "--topic", "orders", *options, stdin=b"one\ntwo\n").out == "2 rows written to orders\n"
        assert shell.ok("consume", "--topic", "orders", *options).lines == ["one", "two"]
        shell.ok("groups", "list", *options)
        shell.ok("transactions", "list", *options)
        wrong = ("--command-config", shell.file("wrong.properties", properties(certificates.root, "guess")))
        produce, consume = ("produce", "--topic", "orders"), ("consume", "--topic", "orders")
        for command in (("topics", "list"), produce, consume, ("groups", "list"), ("transactions", "list")):
            ended = shell(*command, *wrong, stdin=b"three\n")
            assert ended.status == 1, command
            (line,) = ended.err.splitlines()
            assert "login of user 'alice' by SCRAM-SHA-512" in line, command
            assert "guess" not in line


def test_broker_command_serves_tls_and_login(certificates: Certificates, tmp_path: Path) -> None:
    users = tmp_path / "users.properties"
    users.write_text("alice=s3cret\n")
    arguments = ["--listen", "127.0.0.1:0", "--listener-security", "SASL_SSL", "--users", str(users)]
    arguments += ["--config", f"ssl.keystore.location={certificates.server}", "--topic", "orders"]
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        ready = re.match(r"ready bootstrap\.servers=(\S+)", broker.stdout.readline())
        assert ready is not None
        shell = Shell(ready[1], tmp_path, "t")
        options = ("--command-config", shell.file("right.properties", properties(certificates.root)))
        assert "orders" in shell.ok("topics", "list", *options).out
        broker.send_signal(signal.SIGTERM)
        _, err = broker.communicate(timeout=TIMEOUT_SECONDS)
    assert broker.returncode == 0
    assert "s3cret" not in err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--listener-security", "TLS"), "--listener-security 'TLS': it must be one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        (("--listener-security", "SSL", "--config", "security.protocol=SSL"), "the same option: give one of them"),
        (("--listener-security", "SSL", "--config", "security_protocol=SSL"), "the same option: give one of them"),
        (("--listener-security", "SASL_PLAINTEXT"), "there are no users: give some with --users FILE"),
        (("--users", "USERS"), "has no login"),
        (("--config", "ssl.keystore.location=/nowhere"), "security.protocol=PLAINTEXT: set it to SSL or SASL_SSL (--listener-security)"),
        (("--users", "EMPTY"), "name and password of user 'alice' must be"),
        (("--users", "/nowhere/users"), "/nowhere/users: No such file"),
    ],
)
def test_contradicting_security_options_are_refused(arguments: tuple[str, ...], text: str, tmp_path: Path) -> None:
    shell = Shell("127.0.0.1:1", tmp_path, "t")
    files = {"USERS": shell.file("users", "alice=s3cret\n"), "EMPTY": shell.file("empty", "alice=\n")}
    Path(files["USERS"]).chmod(0o600)  # Else the mode is a line of its own.
    command = [*COMMAND, "--listen", "127.0.0.1:0", *(files.get(argument, argument) for argument in arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert ended.returncode != 0
    (line,) = ended.stderr.splitlines()
    assert text in line
    assert "s3cret" not in line
