"""Lent connections: used without the polling thread, and taken back in any state."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from chaffinch.client.connections import Disconnected, RequestFailed, ResponseReceived
from chaffinch.client.effects import SendRequest
from chaffinch.client.network import Network
from chaffinch.client.options import ConnectionSettings
from chaffinch.client.security import Security
from chaffinch.producer.core.batches.batch import BatchFutures
from chaffinch.producer.inline_send import RESPONSE_BYTES_MAX, InlineConnection, InlineRequest
from chaffinch.protocol.client_connection import ClientConnection
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.runtime.tls import TlsSettings
from tests.client.scripted_server import STAY_SILENT, ScriptedServer, metadata
from tests.client.test_network import address, until

TOPICS = {"orders": 3}
MESSAGE = MetadataRequest(topics=[])


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(topics=TOPICS) as running:
        yield running


@pytest.fixture
def network(server: ScriptedServer) -> Iterator[Network]:
    """A Network with an idle connection."""
    made = Network(ConnectionSettings(client_id="me", request_timeout_ms=60_000, setup_timeout_ms=5_000))
    made.prepare_to_lend()
    made.send(address(server), MESSAGE, "first")
    until(made, 1)
    yield made
    made.close()


def lend(network: Network, server: ScriptedServer) -> InlineConnection:
    found = network.lend(address(server))
    assert found is not None
    connection, socket = found
    return InlineConnection(connection, socket, cast(Any, None), connection.version_for(MESSAGE, None))


def unwritten_request(lent: InlineConnection) -> InlineRequest:
    """A request that was not written yet."""
    number = lent.connection.take_correlation_id()
    encoder = ClientConnection(lent.connection.client_id)
    while encoder.take_correlation_id() < number - 1:
        pass
    taken, parts = encoder.encode_request(MESSAGE, lent.version)
    assert taken == number
    inline_request = InlineRequest(
        cast(Any, None), BatchFutures(), bytearray(), base_sequence=0, timestamp_ms=0, size=0, position=0, created_ms=0
    )
    inline_request.lent, inline_request.correlation_id, inline_request.frame = lent, number, b"".join(parts)
    return inline_request


def take_back(network: Network, request: SendRequest, inline_request: InlineRequest) -> None:
    """Take the request back, as `InlineSender.close` does."""
    network.take_back(
        request.address, inline_request.continue_on_connection(request, network._clock.steady_ms()), is_lost=inline_request.is_interrupted
    )


def request(server: ScriptedServer) -> SendRequest:
    return SendRequest(address=address(server), message=MESSAGE, token="lent", timeout_ms=2**40)


def outcomes(events: list[Any]) -> list[tuple[type, Any]]:
    kinds = (ResponseReceived, RequestFailed, Disconnected)
    return [(type(event), getattr(event, "token", None)) for event in events if isinstance(event, kinds)]


def test_tls_connection_is_not_lent() -> None:
    """TLS may have buffered bytes, so the socket does not become readable."""
    tls = Security(tls=TlsSettings())
    network = Network(ConnectionSettings(client_id="me", request_timeout_ms=60_000, setup_timeout_ms=5_000, security=tls))
    network.prepare_to_lend()
    assert (network.can_lend, network._epoll, network._event_fd) == (False, None, None)
    network.close()


def test_busy_connection_is_not_lent(server: ScriptedServer) -> None:
    network = Network(ConnectionSettings(client_id="me", request_timeout_ms=60_000, setup_timeout_ms=5_000))
    network.prepare_to_lend()
    assert network.lend(address(server)) is None
    network.send(address(server), MESSAGE, "first")
    assert network.lend(address(server)) is None
    until(network, 1)
    assert network.lend(address(server)) is not None
    network.send(address(server), MESSAGE, "second")
    assert network.lend(address(server)) is None
    network.close()


def test_inline_exchange_leaves_the_connection_usable(network: Network, server: ScriptedServer) -> None:
    """The polling thread then uses the connection normally."""
    lent = lend(network, server)
    lent.socket.suspend_reads()
    inline_request = unwritten_request(lent)
    assert lent.socket.send(inline_request.frame) == len(inline_request.frame)
    assert lent.wait(60_000)
    assert network.poll(0) == []
    expected = metadata(TOPICS, {1: server.port})
    reader = ClientConnection("me")
    reader.adopt_request(api(), lent.version, inline_request.correlation_id)
    (response,) = reader.receive(lent.socket.receive(RESPONSE_BYTES_MAX))
    assert response.message == expected
    lent.socket.resume_reads()
    network.send(address(server), MESSAGE, "next")
    assert outcomes(until(network, 1)) == [(ResponseReceived, "next")]


def api() -> Any:
    from chaffinch.protocol.apis import api_of

    return api_of(MESSAGE)


@pytest.mark.parametrize("written", [0, 1, 7, None])
@pytest.mark.parametrize("is_read", [False, True])
def test_request_taken_back_gets_its_response(network: Network, server: ScriptedServer, written: int | None, is_read: bool) -> None:
    """`written`: number of bytes written, None: all; `is_read`: part of the response was read already."""
    lent = lend(network, server)
    inline_request = unwritten_request(lent)
    inline_request.written = lent.socket.send(inline_request.frame[:written])
    if is_read and written is None:
        assert lent.wait(60_000)
        inline_request.received = lent.socket.receive(RESPONSE_BYTES_MAX)[:9]
        rest = rest_of_response(server, inline_request, lent.version)
        inline_request.received += rest
    take_back(network, request(server), inline_request)
    assert outcomes(until(network, 1)) == [(ResponseReceived, "lent")]
    network.send(address(server), MESSAGE, "next")
    assert outcomes(until(network, 1)) == [(ResponseReceived, "next")]


def rest_of_response(server: ScriptedServer, inline_request: InlineRequest, version: int) -> bytes:
    """The response after its first 9 bytes."""
    from chaffinch.protocol.headers import finish_frame, response_head

    head = response_head(api().key, inline_request.correlation_id, is_flexible=version >= api().flexible_since)
    return b"".join(finish_frame(metadata(TOPICS, {1: server.port}).encode_after(head, version)))[9:]


@pytest.mark.parametrize("is_reading", [False, True], ids=["writing", "reading"])
def test_interrupted_request_closes_the_connection_as_possibly_sent(network: Network, server: ScriptedServer, is_reading: bool) -> None:
    inline_request = unwritten_request(lend(network, server))
    inline_request.written, inline_request.is_reading = len(inline_request.frame) if is_reading else None, is_reading
    take_back(network, request(server), inline_request)
    failed, disconnected = [event for event in network.poll(0) if isinstance(event, (RequestFailed, Disconnected))]
    assert isinstance(failed, RequestFailed)
    assert (failed.token, failed.was_sent) == ("lent", True)
    assert isinstance(disconnected, Disconnected)
    assert "interrupted" in disconnected.reason


def test_request_timeout_counts_from_the_inline_send(network: Network, server: ScriptedServer) -> None:
    server.script = lambda server, message: STAY_SILENT
    lent = lend(network, server)
    inline_request = unwritten_request(lent)
    inline_request.written, inline_request.created_ms = 0, network._clock.steady_ms() - 60_000
    take_back(network, SendRequest(address=address(server), message=MESSAGE, token="late", timeout_ms=60_000), inline_request)
    assert lent.connection.deadline_ms == inline_request.created_ms + 60_000
    (failed,) = [event for event in until(network, 1) if isinstance(event, RequestFailed)]
    assert (failed.token, failed.is_timeout) == ("late", True)


def test_eventfd_wakes_waiting_thread(network: Network, server: ScriptedServer) -> None:
    lent = lend(network, server)
    threading.Thread(target=lent.socket.event_fd.notify).start()
    assert lent.wait(60_000)
    lent.socket.event_fd.consume()
    lent.socket.event_fd.consume()  # The second call has no effect.
    assert not lent.wait(0)
    with pytest.raises(BlockingIOError):
        lent.socket.receive(RESPONSE_BYTES_MAX)


def test_on_awake_is_called_before_poll_handles_events(network: Network, server: ScriptedServer) -> None:
    seen: list[int] = []
    network.on_awake = lambda: seen.append(network.in_flight_count(address(server)))
    network.send(address(server), MESSAGE, "next")
    network.poll(60_000)
    assert seen == [1]
