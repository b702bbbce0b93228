"""The options that all clients share, each with its effect on the sockets."""

from __future__ import annotations

import contextlib
import pickle
import random
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from chaffinch.admin.options import ADMIN_TABLE
from chaffinch.client.addresses import Address
from chaffinch.client.connections import Disconnected, RequestFailed, ResponseReceived
from chaffinch.client.network import Network
from chaffinch.client.options import ConnectionSettings, reconnect_backoff, retry_backoff
from chaffinch.consumer.core.consumer_core import ConsumerCore
from chaffinch.consumer.core.options import CONSUMER_OPTIONS
from chaffinch.errors import ConfigException
from chaffinch.producer.core.options import PRODUCER_OPTIONS
from chaffinch.producer.core.producer_core import ProducerCore
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.runtime import sockets
from chaffinch.runtime.clock import ManualClock
from tests.client.scripted_server import ScriptedServer


class EvenRng:
    """Waits without jitter."""

    def random(self) -> float:
        return 0.5


@contextlib.contextmanager
def network_of(clock: ManualClock, **options: Any) -> Iterator[Network]:
    settings = ADMIN_TABLE.parse({"bootstrap.servers": "x:1", **options})
    network = Network(ConnectionSettings.of(settings), clock=clock, rng=EvenRng())
    yield network
    network.close()


def ask(network: Network, server: ScriptedServer) -> None:
    network.send(Address("127.0.0.1", server.port), MetadataRequest(topics=[]), "t", timeout_ms=10_000)
    while not any(isinstance(event, ResponseReceived) for event in network.poll(10_000)):
        pass


@pytest.mark.parametrize("table", [ADMIN_TABLE, PRODUCER_OPTIONS], ids=["admin", "producer"])
def test_every_table_has_the_connection_options(table: Any) -> None:
    settings = table.parse({"bootstrap.servers": "x:1", "client.id": "me", "socket.connection.setup.timeout.ms": "7"})
    found = ConnectionSettings.of(settings)
    assert (found.client_id, found.setup_timeout_ms) == ("me", 7)
    assert pickle.loads(pickle.dumps(found)) == found
    assert len({found, ConnectionSettings.of(settings)}) == 1


@pytest.mark.parametrize("kind", ["reconnect", "retry"])
@pytest.mark.parametrize("suffix", ["backoff.ms", "backoff.max.ms"])
def test_backoff_of_0_is_documented(kind: str, suffix: str) -> None:
    """As in Apache Kafka; who wants it should know what it costs."""
    settings = CONSUMER_OPTIONS.parse({"bootstrap.servers": "b:1", f"{kind}.{suffix}": 0})
    backoff = {"reconnect": reconnect_backoff, "retry": retry_backoff}[kind](settings)
    assert [backoff.wait_ms(failures, random.Random(7)) for failures in (1, 2, 40)] == [0, 0, 0]
    (option,) = [option for option in CONSUMER_OPTIONS.options if option.name == f"{kind}.{suffix}"]
    assert "; 0: " in option.documentation


def test_secrets_are_never_printed() -> None:
    secrets = {"sasl.password": "hidden-1", "ssl.key.password": "hidden-2", "ssl.keystore.key": "hidden-3"}
    shown = {"sasl.username": "alice", "ssl.keystore.certificate.chain": "chain", "ssl.truststore.location": "/ca.pem"}
    options = {"bootstrap.servers": "x:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", **secrets, **shown}
    settings = ADMIN_TABLE.parse(options)
    found = ConnectionSettings.of(settings)
    assert found.security.credentials is not None
    assert (found.security.credentials.password, found.security.tls.key if found.security.tls else "") == ("hidden-1", "hidden-3")
    for text in (repr(settings), repr(found)):
        assert "hidden" not in text
        assert all(value in text for value in shown.values())


@pytest.mark.parametrize("table", [ADMIN_TABLE, PRODUCER_OPTIONS, CONSUMER_OPTIONS], ids=["admin", "producer", "consumer"])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"sasl.username": "alice", "sasl.password": "hidden"},
            "options sasl.username, sasl.password cannot be used with security.protocol=PLAINTEXT: "
            "set it to SASL_PLAINTEXT or SASL_SSL, or leave them out",
        ),
        ({"sasl.mechanism": "PLAIN", "security.protocol": "SSL"}, "option sasl.mechanism cannot be used with security.protocol=SSL: "),
        (
            {"ssl.ca.location": "/ca.pem"},
            "option ssl.ca.location cannot be used with security.protocol=PLAINTEXT: set it to SSL or SASL_SSL",
        ),
        ({"ssl.endpoint.identification.algorithm": "", "security.protocol": "SASL_PLAINTEXT"}, "with security.protocol=SASL_PLAINTEXT: "),
    ],
)
def test_security_options_unused_by_the_protocol_are_rejected(table: Any, options: dict[str, str], says: str) -> None:
    settings = table.parse({"bootstrap.servers": "x:1", **options})
    with pytest.raises(ConfigException) as caught:
        ConnectionSettings.of(settings)
    assert says in str(caught.value)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("idle_ms", [100, -1])
@pytest.mark.parametrize("is_polled", [True, False], ids=["polled", "used again"])
def test_idle_connection_is_closed_and_reopened(idle_ms: int, is_polled: bool) -> None:
    clock = ManualClock()
    with ScriptedServer() as server, network_of(clock, **{"connections.max.idle.ms": idle_ms}) as network:
        ask(network, server)
        clock.advance(99)
        assert network.poll(0) == []
        assert network.is_connected(Address("127.0.0.1", server.port))
        clock.advance(1)
        if is_polled:
            assert network.poll(0) == [], "no request waits, so there is no event"
            assert network.is_connected(Address("127.0.0.1", server.port)) is (idle_ms == -1)
        before = server.connection_count
        ask(network, server)
        assert server.connection_count - before == (0 if idle_ms == -1 else 1)


def test_traffic_keeps_a_connection_open() -> None:
    clock = ManualClock()
    with ScriptedServer() as server, network_of(clock, **{"connections.max.idle.ms": 100}) as network:
        for _ in range(5):
            ask(network, server)
            clock.advance(60)
        assert server.connection_count == 1


def test_setup_timeout_doubles_up_to_its_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    def never_connects(*_: Any) -> socket.socket:
        opened, other = socket.socketpair()
        others.append(other)
        opened.setblocking(False)
        while sockets.send_some(opened, [memoryview(bytes(1 << 16))]):
            pass
        return opened

    clock, where = ManualClock(), Address("127.0.0.1", 1)
    others: list[socket.socket] = []
    monkeypatch.setattr(sockets, "open_connecting", never_connects)
    options = {"socket.connection.setup.timeout.ms": 100, "socket.connection.setup.timeout.max.ms": 300}
    with network_of(clock, **options) as network:
        for setup_ms in (100, 200, 300, 300):
            network.send(where, MetadataRequest(topics=[]), "t", timeout_ms=10_000)
            clock.advance(setup_ms - 1)
            assert network.poll(0) == []
            clock.advance(1)
            failed, lost = network.poll(0)
            assert isinstance(failed, RequestFailed)
            assert isinstance(lost, Disconnected)
            assert "socket.connection.setup.timeout.ms" in lost.reason
    for other in others:
        other.close()


@pytest.mark.parametrize(("option", "number"), [("send.buffer.bytes", socket.SO_SNDBUF), ("receive.buffer.bytes", socket.SO_RCVBUF)])
def test_socket_buffer_sizes(option: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[socket.socket] = []
    open_connecting = sockets.open_connecting

    def noting(*arguments: Any) -> socket.socket:
        opened.append(open_connecting(*arguments))
        return opened[-1]

    monkeypatch.setattr(sockets, "open_connecting", noting)
    with ScriptedServer() as server, network_of(ManualClock(), **{option: 20_000}) as network:
        ask(network, server)
        assert opened[0].getsockopt(socket.SOL_SOCKET, number) == 40_000, "Linux counts what it needs itself, the same again"


@pytest.mark.parametrize("parse", [table.parse for table in (PRODUCER_OPTIONS, CONSUMER_OPTIONS, ADMIN_TABLE)])
@pytest.mark.parametrize("name", ["request.timeout.ms", "send.buffer.bytes", "receive.buffer.bytes"])
def test_32_bit_options_reject_larger_values(parse: Any, name: str) -> None:
    """Beyond them no socket takes a buffer's size, and no request a time."""
    assert parse({"bootstrap.servers": "a:1", name: 2**31 - 1})[name] == 2**31 - 1
    with pytest.raises(ConfigException, match=f"option {name} cannot be {2**31}: it must be at least -?1 and at most {2**31 - 1}"):
        parse({"bootstrap.servers": "a:1", name: 2**31})


@pytest.mark.parametrize(
    ("parse", "name"),
    [
        (PRODUCER_OPTIONS.parse, "transaction.timeout.ms"),
        (CONSUMER_OPTIONS.parse, "max.poll.records"),
        (ADMIN_TABLE.parse, "default.api.timeout.ms"),
    ],
)
def test_32_bit_options_of_each_client(parse: Any, name: str) -> None:
    with pytest.raises(ConfigException, match=f"option {name} cannot be {2**31}"):
        parse({"bootstrap.servers": "a:1", name: 2**31})


def _producer(settings: Any) -> Any:
    return ProducerCore(settings, EvenRng())


def _consumer(settings: Any) -> Any:
    return ConsumerCore(settings, EvenRng())


@pytest.mark.parametrize(("table", "core_of"), [(PRODUCER_OPTIONS, _producer), (CONSUMER_OPTIONS, _consumer)], ids=["producer", "consumer"])
def test_backoff_doubles_from_initial_to_maximum(table: Any, core_of: Any) -> None:
    connecting = {"reconnect.backoff.ms": 30, "reconnect.backoff.max.ms": 100}
    asking = {"retry.backoff.ms": 20, "retry.backoff.max.ms": 70}
    context = core_of(table.parse({"bootstrap.servers": "x:1", **connecting, **asking})).context
    address, waits = Address("x", 1), []
    for _ in range(4):
        context.attempts.failed(address, "refused", 0)
        waits.append(context.attempts.retry_at_ms(address, 0))
    assert waits == [30, 60, 100, 100]
    assert [context.wait_ms(failures) for failures in (1, 2, 3, 4)] == [20, 40, 70, 70]
