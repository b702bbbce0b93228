"""`chaffinch broker`: runs a broker in this process until SIGTERM or SIGINT, which shut it down cleanly.

Prints one line once it accepts connections: `ready bootstrap.servers=HOST:PORT[,...]`, followed by ` control=HOST:PORT` and
` metrics=HOST:PORT` if requested. If it cannot start it prints the reason on one line and exits with 1 (port or data directory in use,
foreign or damaged data directory), or with 2 for invalid arguments.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import random
import resource
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from chaffinch.broker.arguments import BROKERS_MAX, TopicArgument, check_users, parse_text
from chaffinch.broker.control import Control
from chaffinch.broker.core import options
from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.broker.core.replicas.declared_replicas import Node
from chaffinch.broker.core.security.options import refuse_idle
from chaffinch.broker.core.startup import JOURNALS
from chaffinch.broker.core.topics.creation_rules import INTERNAL
from chaffinch.broker.core.topics.registry import ACCEPT_LOSS
from chaffinch.broker.http_listener import HttpListener, Route
from chaffinch.broker.listeners import (
    LABEL_LENGTH_MAX,
    NAME_LENGTH_MAX,
    PORT_MAX,
    Address,
    check_ports,
    is_every_address,
    is_host,
    listen,
    nodes_of,
)
from chaffinch.broker.metrics import Metrics
from chaffinch.broker.server import BrokerServer
from chaffinch.cli import properties
from chaffinch.cli.display import print_error, print_line
from chaffinch.cli.main import EXIT_REFUSED
from chaffinch.cli.option_source import SourcedOption, merge_options, parse_pairs, validate_options
from chaffinch.errors import ConfigException, codes
from chaffinch.protocol.security_options import SASL_PROTOCOLS, TLS_PROTOCOLS
from chaffinch.runtime import loop
from chaffinch.runtime.allocator import keep_freed_memory
from chaffinch.runtime.exposure import is_accessible_to_others, is_loopback, warn_if_readable, warning
from chaffinch.settings import Settings
from chaffinch.storage.data_directory import META_NAME, DamagedDirectory, EmptiedDirectory
from chaffinch.storage.file_system import CorruptLog, DiskFileSystem, MemoryFileSystem, MissingLog, StorageError

LOG = logging.getLogger("chaffinch.broker")
# How long a thread may hold the interpreter while another one waits for it. With the default of 5 ms, requests would repeatedly wait
# that long while another thread loads the compiled loops.
SWITCH_INTERVAL_S: Final = 0.0005

EVERY_ADDRESS: Final = "0.0.0.0"
_RESTORE: Final = "put a copy of the whole --data-dir in its place, start with another directory, "
_RESTORE_OR_ACCEPT_LOSS: Final = f"{_RESTORE}or start without the missing data: --config {ACCEPT_LOSS}=true"
_RESTORE_OR_NEW_CLUSTER: Final = f"{_RESTORE}or create a new cluster there, without its data: --config {ACCEPT_LOSS}=true"
_RESTORE_ONLY: Final = f"put a copy of the whole --data-dir in its place or start with another directory; {ACCEPT_LOSS} does not accept "
# Number of characters of an invalid argument that an error shows.
SHOWN_MAX: Final = 100


def broker(
    listen_at: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Address of node 0; port 0 selects a free one.")
    ] = "127.0.0.1:9092",
    data_dir: Annotated[
        str | None, typer.Option("--data-dir", metavar="DIR", help="Data directory; without it all data is in memory.")
    ] = None,
    brokers: Annotated[
        int, typer.Option("--brokers", min=1, max=BROKERS_MAX, help="Number of declared nodes; the others listen on the next ports.")
    ] = 1,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="NAME[:PARTITIONS[:REPLICATION]][,option=value...]", help="A topic to create if missing."),
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option("--config", metavar="option=value", help="A broker option, named as in Apache Kafka.")
    ] = None,
    config_file: Annotated[
        str | None, typer.Option("--config-file", metavar="FILE", help="Broker options as a Java properties file; --config overrides it.")
    ] = None,
    listener_security: Annotated[
        str | None,
        typer.Option(
            "--listener-security", metavar="PROTOCOL", help="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL; see docs/reference/security.md."
        ),
    ] = None,
    users: Annotated[
        str | None, typer.Option("--users", metavar="FILE", help="Users that may log in: a properties file of name=password lines.")
    ] = None,
    advertise: Annotated[str | None, typer.Option("--advertise", metavar="HOST:PORT", help="The address that clients connect to.")] = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics", metavar="HOST:PORT", help="Address of /metrics for Prometheus; default: none.")
    ] = None,
    control: Annotated[
        str | None,
        typer.Option("--control", metavar="HOST:PORT", help="Address for `chaffinch nodes` and `faults`; default: none."),
    ] = None,
    control_from_anywhere: Annotated[
        bool,
        typer.Option("--control-from-anywhere", help="Allow --control on an address that other machines can reach. It has no password."),
    ] = False,
) -> None:
    """Run a broker that speaks Kafka's protocol."""
    address, advertised = parse_addresses(listen_at, advertise)
    for first in (address, advertised):
        if first is not None:
            check_ports(first, brokers)
    if data_dir == "":
        raise ConfigException("--data-dir '': expected the name of a directory; without the option all data is in memory")
    if control_from_anywhere and control is None:
        raise ConfigException("--control-from-anywhere needs --control HOST:PORT")
    ports = Ports(
        control=None if control is None else control_address(control, from_anywhere=control_from_anywhere),
        metrics=None if metrics is None else listening_address("--metrics", metrics),
    )
    settings = parse_config(config or [], config_file, listener_security)
    passwords = {} if users is None else load_users(users)
    _allow_many_connections()
    keep_freed_memory()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    topics = parse_topics(topic or [])
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    warn_of_readable_secrets(users, config_file, settings, data_dir)
    try:
        loop.run(_main(address, advertised, data_dir, brokers, topics, settings, ports, passwords))
    except StorageError as error:
        print_error(f"{error}{_advice_for(error)}")
        sys.exit(EXIT_REFUSED)


def _advice_for(error: StorageError) -> str:
    """Advice about a refused data directory."""
    match error:
        case CorruptLog():
            return "; the file is unchanged: " + (_RESTORE_OR_ACCEPT_LOSS if error.is_loss else f"{_RESTORE_ONLY}damage in the middle")
        case EmptiedDirectory():
            return f"; nothing was created instead: {_RESTORE_OR_NEW_CLUSTER}"
        case MissingLog():
            return f"; nothing was created instead: {_RESTORE_OR_ACCEPT_LOSS}"
        case DamagedDirectory():
            return f"; nothing was changed: {_RESTORE_ONLY}this"
        case _:
            return ""


async def _main(
    address: Address,
    advertised: Address | None,
    data_dir: str | None,
    brokers: int,
    topics: list[TopicArgument],
    settings: dict[str, str],
    ports: Ports,
    users: Mapping[str, str],
) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    with name_option_in_errors("--listen"):
        listeners = listen(address, brokers)
    nodes = nodes_of(listeners, address.host, advertised)
    file_system = MemoryFileSystem() if data_dir is None else DiskFileSystem(data_dir)
    is_new = data_dir is not None and not os.path.exists(os.path.join(data_dir, META_NAME))
    server = await BrokerServer.start(file_system, settings, listeners=listeners, nodes=nodes, rng=random.SystemRandom(), users=users)
    if is_new:
        LOG.info("created data directory %s, cluster id %s", file_system.describe(""), server.core.state.cluster_id)
    for text in exposure_warnings(address, ports, server.core.state.settings):
        LOG.warning("%s", text)
    try:
        async with contextlib.AsyncExitStack() as opened:
            ready = f"ready bootstrap.servers={bootstrap_servers(nodes)}"
            for name, address, route in ports.routes(server):
                with name_option_in_errors(f"--{name}"):
                    listener = await HttpListener.start(address, route, server.log_rate_limited)
                opened.callback(listener.close)
                ready += f" {name}={Address(host=address.host, port=listener.port)}"
            for topic in topics:
                _create_missing(server, topic)
            gc.freeze()  # All objects of the start-up stay alive; the collector need not scan them.
            print_line(ready, flush=True)
            await stopped.wait()
    finally:
        await server.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Addresses of the ports besides the nodes' listeners; None: no such port."""

    control: Address | None
    metrics: Address | None

    def routes(self, server: BrokerServer) -> Iterator[tuple[str, Address, Route]]:
        if self.control is not None:
            yield "control", self.control, Control(server, self.control.host)
        if self.metrics is not None:
            yield "metrics", self.metrics, Metrics(server, self.metrics.host)


def exposure_warnings(address: Address, ports: Ports, settings: Mapping[str, Any]) -> Iterator[str]:
    """A warning for each address without TLS or login that other machines can reach."""
    protocol = settings["security.protocol"]
    has_tls = protocol in TLS_PROTOCOLS
    has_login = protocol in SASL_PROTOCOLS or (has_tls and settings["ssl.client.auth"] == "required")
    risk = "passwords and records are sent in clear text" if has_login else "every client can read, write and delete all data"
    found = [
        warning(
            f"--listen {address} (security.protocol={protocol})",
            address.host,
            has_tls=has_tls,
            has_login=has_login,
            risk=f"{risk}; use --listener-security SASL_SSL, or a loopback address (docs/reference/security.md)",
        )
    ]
    for name, port, risk in (
        ("control", ports.control, "every client can stop nodes and add faults"),
        ("metrics", ports.metrics, "every client can read topic names and counts"),
    ):
        if port is not None:
            risk = f"{risk}; use a loopback address, or a firewall"
            found.append(warning(f"--{name} {port}", port.host, has_tls=False, has_login=False, risk=risk))
    yield from (text for text in found if text is not None)


@contextlib.contextmanager
def name_option_in_errors(option: str) -> Iterator[None]:
    """Adds the option of the address, and advice, to an OSError."""
    try:
        yield
    except OSError as error:
        advice = "; port 0 selects a free one" if error.errno == errno.EADDRINUSE else ""
        raise OSError(error.errno, f"{error.strerror} ({option}{advice})") from error


def control_address(text: str, *, from_anywhere: bool) -> Address:
    """Parse --control. Raises ConfigException for an address that other machines can reach, unless `from_anywhere`."""
    address = listening_address("--control", text)
    if not from_anywhere and not is_loopback(address.host):
        raise ConfigException(
            f"--control {text}: other machines can reach it and stop nodes, since it has no password. "
            "Give a loopback address such as 127.0.0.1, or add --control-from-anywhere"
        )
    return address


def _create_missing(server: BrokerServer, topic: TopicArgument) -> None:
    """Create a topic if it does not exist. An existing topic is not changed; differences are logged."""
    try:
        server.create_topic(topic)
    except RequestRefused as refused:
        if refused.code is not codes.TOPIC_ALREADY_EXISTS:
            raise ConfigException(f"--topic {topic.name}: {refused.message}") from None
        server.log_differences(topic)


def _allow_many_connections() -> None:
    """Raise the limit of file descriptors to the hard limit: the usual soft limit of 1024 is meant for programs that use select(2)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def parse_address(option: str, text: str) -> Address:
    """Parse `HOST:PORT`, `[V6]:PORT`, `:PORT` or `*:PORT`. Raises ConfigException."""
    shown = repr(text) if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]!r}..., {len(text)} characters"
    host, separator, port = text.rpartition(":")
    if not separator or not (port.isascii() and port.isdecimal() and len(port) < 6) or int(port) > PORT_MAX:
        raise ConfigException(f"{option} {shown}: expected HOST:PORT with a port from 0 to {PORT_MAX}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if host not in ("", "*") and not is_host(host):
        raise ConfigException(
            f"{option} {shown}: not a valid host name: a HOST has letters, digits, '-', '_' and dots, at most {NAME_LENGTH_MAX}, "
            f"with 1 to {LABEL_LENGTH_MAX} between dots; or it is an address, as in 127.0.0.1:9092 or [::1]:9092"
        )
    return Address(host=host, port=int(port))


def listening_address(option: str, text: str) -> Address:
    """Like `parse_address`; `:PORT` and `*:PORT` stand for every address of this machine."""
    address = parse_address(option, text)
    return Address(host=EVERY_ADDRESS, port=address.port) if address.host in ("", "*") else address


def parse_addresses(listen_at: str, advertise: str | None) -> tuple[Address, Address | None]:
    """(address to listen on, advertised address or None). Raises ConfigException for an address that no client can connect to."""
    address = listening_address("--listen", listen_at)
    if advertise is None:
        if is_every_address(address.host):
            raise ConfigException(
                f"--listen {listen_at} stands for every address of this machine: name one for clients with --advertise HOST:PORT"
            )
        return address, None
    advertised = parse_address("--advertise", advertise)
    if is_every_address(advertised.host):
        raise ConfigException(f"--advertise {advertise}: clients cannot connect to it: give the HOST:PORT that they connect to")
    return address, advertised


def parse_topics(texts: list[str]) -> list[TopicArgument]:
    """Parse the `--topic` values. Raises ConfigException for an invalid value and for a repeated topic."""
    topics: dict[str, TopicArgument] = {}
    for text in texts:
        topic = parse_text(text)
        if topic.name in topics:
            raise ConfigException(f"--topic {topic.name} is given twice")
        if topic.name in INTERNAL:
            raise ConfigException(
                f"--topic {topic.name}: the name belongs to an internal topic of the broker, which clients cannot write to"
            )
        topics[topic.name] = topic
    return list(topics.values())


def warn_of_readable_secrets(users: str | None, config_file: str | None, settings: Mapping[str, str], data_dir: str | None) -> None:
    if users is not None:
        warn_if_readable(LOG, "--users", users)
    if config_file is not None and any("password" in name or "jaas" in name for name in settings):
        warn_if_readable(LOG, "--config-file", config_file)
    if "ssl.keystore.location" in settings:
        warn_if_readable(LOG, "ssl.keystore.location", settings["ssl.keystore.location"])
    if data_dir is not None and is_accessible_to_others(data_dir):  # Created by an earlier version.
        warn_if_readable(LOG, "the journal with the users' credentials", f"{data_dir}/{JOURNALS}/cluster.journal")


def load_users(path: str) -> dict[str, str]:
    """Read names and passwords from a file. Raises ConfigException for a file without users and for an invalid user."""
    users = properties.load(path, "--users", what="user", is_strict=True)
    if not users:
        raise ConfigException(f"--users {path}: it contains no users: expected lines of name=password")
    check_users(f"--users {path}", users)
    return users


def parse_config(texts: list[str], path: str | None = None, listener_security: str | None = None) -> dict[str, str]:
    """Merge the `--config` values and `--listener-security` with the options of a file, which they override.

    Raises ConfigException for malformed texts, unknown names, illegal values and contradictions.
    """
    command_line = [SourcedOption(name, value, "--config") for name, value in parse_pairs("--config", texts, "option=value").items()]
    file = [] if path is None else properties.read(path, "--config-file", is_strict=True)
    given = merge_options(_with_security(command_line, listener_security), file)
    validate_options(options.BROKER_OPTIONS, given, _parse_broker_options)
    return {name: value for name, value, *_ in given}


def _parse_broker_options(settings: Mapping[str, str]) -> Settings:
    parsed = options.parse(settings)
    refuse_idle(parsed)
    return parsed


def _with_security(command_line: list[SourcedOption], protocol: str | None) -> list[SourcedOption]:
    """Add `--listener-security`. Raises ConfigException for an invalid protocol, and if `--config` gives security.protocol as well."""
    if protocol is None:
        return command_line
    name = "security.protocol"
    if any(known.replace("_", ".") == name for known, *_ in command_line):
        raise ConfigException(f"--listener-security and --config {name} are the same option: give one of them")
    choices = options.BROKER_OPTIONS_BY_NAME[name].choices
    if protocol not in choices:
        raise ConfigException(f"--listener-security {protocol!r}: it must be one of {', '.join(choices)}")
    return [*command_line, SourcedOption(name, protocol, "--listener-security")]


def bootstrap_servers(nodes: list[Node]) -> str:
    """The `bootstrap.servers` for clients."""
    return ",".join(str(Address(host=node.host, port=node.port)) for node in nodes)
