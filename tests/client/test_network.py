"""The sockets of a client, over real ones: every request has exactly one outcome, whatever the other side does."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Any

import pytest

from chaffinch.client.addresses import Address
from chaffinch.client.connections import Connected, Disconnected, RequestFailed, RequestWritten, ResponseReceived
from chaffinch.client.network import Network
from chaffinch.client.options import ConnectionSettings
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from chaffinch.runtime import sockets
from chaffinch.runtime.clock import ManualClock
from tests.client.scripted_server import HANG_UP, STAY_SILENT, ScriptedServer


def until(network: Network, count: int, kinds: tuple[type, ...] = (ResponseReceived, RequestFailed, RequestWritten)) -> list[Any]:
    """Poll until `count` events of these kinds have come; returns all events."""
    events: list[Any] = []
    give_up = time.monotonic() + 250
    while sum(isinstance(event, kinds) for event in events) < count:
        assert time.monotonic() < give_up, events
        events += network.poll(1000)
    return events


def address(server: ScriptedServer) -> Address:
    return Address("127.0.0.1", server.port)


def produce(size: int, acks: int = -1) -> ProduceRequest:
    partition = PartitionProduceData(index=0, records=bytes(size))
    return ProduceRequest(acks=acks, timeout_ms=1, topics=[TopicProduceData(name="orders", partitions=[partition])])


@pytest.fixture
def network() -> Any:
    made = Network(ConnectionSettings(client_id="me", request_timeout_ms=100, setup_timeout_ms=5_000))
    yield made
    made.close()
    made.close()


def test_connected_precedes_responses_in_order(network: Network) -> None:
    with ScriptedServer() as server:
        for token in range(5):
            network.send(address(server), MetadataRequest(topics=[]), token, timeout_ms=10_000)
        events = until(network, 5)
        assert [type(event) for event in events] == [Connected] + [ResponseReceived] * 5
        assert [event.token for event in events[1:]] == list(range(5))
        assert network.is_connected(address(server))
        assert network.in_flight_count(address(server)) == 0


def test_requests_larger_than_any_buffer(network: Network) -> None:
    sizes = [30_000_000, 10, 5_000_000]

    def script(server: ScriptedServer, message: Any) -> Any:
        return ProduceResponse() if isinstance(message, ProduceRequest) else None

    with ScriptedServer(script) as server:
        for size in sizes:
            network.send(address(server), produce(size), size, timeout_ms=200_000)
        assert [event.token for event in until(network, 3) if isinstance(event, ResponseReceived)] == sizes
        assert [len(request.topics[0].partitions[0].records) for request in server.requests(ProduceRequest)] == sizes


def test_a_request_without_an_answer(network: Network) -> None:
    with ScriptedServer(lambda server, message: STAY_SILENT if isinstance(message, ProduceRequest) else None) as server:
        network.send(address(server), produce(10, acks=0), "t", expects_response=False, timeout_ms=10_000)
        assert isinstance(until(network, 1)[-1], RequestWritten)


def test_stuck_connection_fails_all_its_requests(network: Network) -> None:
    with ScriptedServer(lambda server, message: STAY_SILENT if isinstance(message, MetadataRequest) else None) as server:
        network.send(address(server), MetadataRequest(topics=[]), "late")
        network.send(address(server), MetadataRequest(topics=[]), "behind it", timeout_ms=60_000)
        events = until(network, 2)
    failed = [event for event in events if isinstance(event, RequestFailed)]
    assert [(event.token, event.was_sent, event.is_timeout) for event in failed] == [("late", True, True), ("behind it", True, False)]
    assert isinstance(events[-1], Disconnected)


def test_lost_connection_fails_its_requests(network: Network) -> None:
    with ScriptedServer(lambda server, message: HANG_UP if isinstance(message, MetadataRequest) else None) as server:
        network.send(address(server), MetadataRequest(topics=[]), "t", timeout_ms=10_000)
        (failed,) = [event for event in until(network, 1) if isinstance(event, RequestFailed)]
        assert (failed.was_sent, failed.is_timeout) == (True, False)
        network.send(address(server), produce(1), "again", timeout_ms=10_000)
        server.script = lambda server, message: ProduceResponse() if isinstance(message, ProduceRequest) else None
        assert isinstance(until(network, 1)[-1], ResponseReceived), "the next request makes a new connection"


def test_refused_port_and_unknown_host(network: Network) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed = Address("127.0.0.1", listener.getsockname()[1])
    for where, reason in ((closed, "refused"), (Address("nobody.invalid", 1), "name not known")):
        network.send(where, MetadataRequest(topics=[]), "t", timeout_ms=10_000)
        failed, lost = until(network, 1)
        assert isinstance(failed, RequestFailed)
        assert isinstance(lost, Disconnected)
        assert reason in failed.reason
        assert not failed.was_sent


def test_invalid_bytes_close_the_connection(network: Network) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(100)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                peer.recv(100)

        thread = threading.Thread(target=answer)
        thread.start()
        network.send(Address("127.0.0.1", listener.getsockname()[1]), MetadataRequest(topics=[]), "t", timeout_ms=10_000)
        (failed, _) = until(network, 1)
        thread.join(60)
    assert "not in the Kafka protocol" in failed.reason


def test_next_address_of_a_host_is_tried_after_a_refusal(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer() as server, socket.create_server(("127.0.0.1", 0)) as listener:
        closed = listener.getsockname()
        listener.close()
        places = [(socket.AF_INET, closed), (socket.AF_INET, ("127.0.0.1", server.port))]
        monkeypatch.setattr(network, "_resolve", lambda host, port: places)
        network.send(Address("both", 1), MetadataRequest(topics=[]), "t", timeout_ms=10_000)
        assert isinstance(until(network, 1)[-1], ResponseReceived)


def test_next_address_of_a_host_is_tried_after_a_silent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    network = Network(ConnectionSettings(), clock=clock)
    silent, peer = socket.socketpair()
    silent.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            silent.send(bytes(1 << 16))
    silent_place, opened = ("192.0.2.1", 1), sockets.open_connecting

    def open_connecting(family: int, place: Any, *sizes: int) -> socket.socket:
        return silent if place == silent_place else opened(family, place, *sizes)

    with peer, ScriptedServer() as server, contextlib.closing(network):
        places = [(socket.AF_INET, silent_place), (socket.AF_INET, ("127.0.0.1", server.port))]
        monkeypatch.setattr(network, "_resolve", lambda host, port: places)
        monkeypatch.setattr("chaffinch.runtime.sockets.open_connecting", open_connecting)
        network.send(Address("both", 1), MetadataRequest(topics=[]), "first", timeout_ms=60_000)
        clock.advance(20_000)
        assert "no connection within" in until(network, 1)[0].reason
        network.send(Address("both", 1), MetadataRequest(topics=[]), "second", timeout_ms=60_000)
        assert isinstance(until(network, 1)[-1], ResponseReceived)


def test_disconnect_fails_requests_in_flight(network: Network) -> None:
    with ScriptedServer(lambda server, message: STAY_SILENT if isinstance(message, MetadataRequest) else None) as server:
        network.send(address(server), MetadataRequest(topics=[]), "t", timeout_ms=10_000)
        until(network, 1, (Connected,))
        network.disconnect(address(server), "enough")
        failed, lost = network.poll(0)
        assert isinstance(failed, RequestFailed)
        assert isinstance(lost, Disconnected)
        assert (failed.reason, lost.reason) == ("enough", "enough")
        network.disconnect(address(server), "again")
        assert network.poll(0) == []


def test_wakeup_ends_a_wait(network: Network) -> None:
    threading.Timer(0.01, network.wakeup).start()
    assert network.poll(60_000) == []


def test_very_long_timeout_is_accepted(network: Network) -> None:
    network.wakeup()
    assert network.poll(2**63 - 1) == []


def test_awaited_response_is_received_without_sleeping(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float | None] = []
    select = network._selector.select

    def noted(timeout: float | None = None) -> Any:
        waits.append(timeout)
        # All responses are there before a second poll.
        return select(20)

    monkeypatch.setattr(network._selector, "select", noted)
    with ScriptedServer() as server:
        network.send(address(server), MetadataRequest(topics=[]), "token")
        while not any(isinstance(event, ResponseReceived) for event in network.poll(1000, is_awaited=True)):
            pass
    assert waits
    assert not any(waits)
