"""A connection that is lent: used past the one who polls, and taken back in whatever state it is."""

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
    """With a connection at rest."""
    made = Network(ConnectionSettings(client_id="me", request_timeout_ms=60_000, setup_timeout_ms=5_000))
    made.prepare_to_lend()
    made.send(address(server), MESSAGE, "first")
    until(made, 1)
    yield made
    made.close()


def lent_by(network: Network, server: ScriptedServer) -> InlineConnection:
    found = network.lend(address(server))
    assert found is not None
    connection, socket = found
    return InlineConnection(connection, socket, cast(Any, None), connection.version_for(MESSAGE, None))


def begin(lent: InlineConnection) -> InlineRequest:
    """A request that is not written yet."""
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
    """As InlineSender does in `close`."""
    network.take_back(
        request.address, inline_request.continue_on_connection(request, network._clock.steady_ms()), is_lost=inline_request.is_interrupted
    )


def request(server: ScriptedServer) -> SendRequest:
    return SendRequest(address=address(server), message=MESSAGE, token="lent", timeout_ms=2**40)


def told(events: list[Any]) -> list[tuple[type, Any]]:
    kinds = (ResponseReceived, RequestFailed, Disconnected)
    return [(type(event), getattr(event, "token", None)) for event in events if isinstance(event, kinds)]


def test_with_tls_nothing_is_lent() -> None:
    """Bytes may have come that the socket does not show."""
    tls = Security(tls=TlsSettings())
    network = Network(ConnectionSettings(client_id="me", request_timeout_ms=60_000, setup_timeout_ms=5_000, security=tls))
    network.prepare_to_lend()
    assert (network.can_lend, network._epoll, network._event_fd) == (False, None, None)
    network.close()


def test_what_is_not_at_rest_is_not_lent(server: ScriptedServer) -> None:
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


def test_an_exchange_past_the_one_who_polls(network: Network, server: ScriptedServer) -> None:
    """Which goes on behind it as if nothing had been."""
    lent = lent_by(network, server)
    lent.socket.suspend_reads()
    inline_request = begin(lent)
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
    assert told(until(network, 1)) == [(ResponseReceived, "next")]


def api() -> Any:
    from chaffinch.protocol.apis import api_of

    return api_of(MESSAGE)


@pytest.mark.parametrize("written", [0, 1, 7, None])
@pytest.mark.parametrize("is_read", [False, True])
def test_what_is_taken_back_is_answered_as_any_other(network: Network, server: ScriptedServer, written: int | None, is_read: bool) -> None:
    """`written`: so many bytes of it, None: all; `is_read`: a part of the answer is read already."""
    lent = lent_by(network, server)
    inline_request = begin(lent)
    inline_request.written = lent.socket.send(inline_request.frame[:written])
    if is_read and written is None:
        assert lent.wait(60_000)
        inline_request.received = lent.socket.receive(RESPONSE_BYTES_MAX)[:9]
        rest = server_bytes(server, inline_request, lent.version)
        inline_request.received += rest
    take_back(network, request(server), inline_request)
    assert told(until(network, 1)) == [(ResponseReceived, "lent")]
    network.send(address(server), MESSAGE, "next")
    assert told(until(network, 1)) == [(ResponseReceived, "next")]


def server_bytes(server: ScriptedServer, inline_request: InlineRequest, version: int) -> bytes:
    """What an answer has behind its first nine bytes."""
    from chaffinch.protocol.headers import finish_frame, response_head

    head = response_head(api().key, inline_request.correlation_id, is_flexible=version >= api().flexible_since)
    return b"".join(finish_frame(metadata(TOPICS, {1: server.port}).encode_after(head, version)))[9:]


@pytest.mark.parametrize("is_reading", [False, True], ids=["writing", "reading"])
def test_who_was_interrupted_costs_the_connection_and_may_have_sent(network: Network, server: ScriptedServer, is_reading: bool) -> None:
    inline_request = begin(lent_by(network, server))
    inline_request.written, inline_request.is_reading = len(inline_request.frame) if is_reading else None, is_reading
    take_back(network, request(server), inline_request)
    failed, disconnected = [event for event in network.poll(0) if isinstance(event, (RequestFailed, Disconnected))]
    assert isinstance(failed, RequestFailed)
    assert (failed.token, failed.was_sent) == ("lent", True)
    assert isinstance(disconnected, Disconnected)
    assert "interrupted" in disconnected.reason


def test_the_time_of_a_request_runs_since_it_was_sent(network: Network, server: ScriptedServer) -> None:
    server.script = lambda server, message: STAY_SILENT
    lent = lent_by(network, server)
    inline_request = begin(lent)
    inline_request.written, inline_request.created_ms = 0, network._clock.steady_ms() - 60_000
    take_back(network, SendRequest(address=address(server), message=MESSAGE, token="late", timeout_ms=60_000), inline_request)
    assert lent.connection.deadline_ms == inline_request.created_ms + 60_000
    (failed,) = [event for event in until(network, 1) if isinstance(event, RequestFailed)]
    assert (failed.token, failed.is_timeout) == ("late", True)


def test_eventfd_wakes_waiting_thread(network: Network, server: ScriptedServer) -> None:
    lent = lent_by(network, server)
    threading.Thread(target=lent.socket.event_fd.notify).start()
    assert lent.wait(60_000)
    lent.socket.event_fd.consume()
    lent.socket.event_fd.consume()  # Again it is nothing.
    assert not lent.wait(0)
    with pytest.raises(BlockingIOError):
        lent.socket.receive(RESPONSE_BYTES_MAX)


def test_who_polls_takes_back_before_it_touches_anything(network: Network, server: ScriptedServer) -> None:
    seen: list[int] = []
    network.on_awake = lambda: seen.append(network.in_flight_count(address(server)))
    network.send(address(server), MESSAGE, "next")
    network.poll(60_000)
    assert seen == [1]
