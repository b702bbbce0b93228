"""What a peer can do to the broker's port: too much, too many, too slowly. It costs that connection and one line."""

from __future__ import annotations

import contextlib
import logging
import select
import struct
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaffinch import EmbeddedBroker
from chaffinch.broker.connection_manager import COMPILED_LOOPS_LOADED, load_kernels
from chaffinch.broker.server import BrokerServer
from chaffinch.protocol.client_connection import ClientConnection
from chaffinch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.records import kernels
from tests.broker.batches import batch_of
from tests.broker.broker_probes import is_alive, is_alive_eventually, wait_for_connections
from tests.broker.core_client import produce_request
from tests.broker.socket_client import TIMEOUT_SECONDS, SocketClient


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics=["orders"], config={"socket.request.max.bytes": 1 << 20, "queued.max.request.bytes": 3 << 20}) as broker:
        yield broker


def test_connection_lost_in_the_middle_of_a_frame_releases_its_memory(broker: EmbeddedBroker) -> None:
    for _ in range(20):
        with SocketClient(broker.bootstrap_servers, greet=False) as client:
            client.socket.sendall(struct.pack(">i", 900_000) + b"x" * 1000)
    assert is_alive(broker)
    assert broker._thread.call(lambda: broker._running._connection_manager._budget.bytes_reserved) <= 900_000 * 3


def test_memory_of_unfinished_frames_is_limited() -> None:
    """Thirty unfinished 99 MB requests stop an Apache Kafka with a 1 GiB heap; here the fourth of these is refused."""
    with EmbeddedBroker(config={"queued.max.request.bytes": 3 << 20}) as broker, contextlib.ExitStack() as opened:
        clients = [opened.enter_context(SocketClient(broker.bootstrap_servers, greet=False)) for _ in range(4)]
        for client in clients:
            with contextlib.suppress(ConnectionError):  # The last one may be refused before it has said everything.
                client.socket.sendall(struct.pack(">i", 1 << 20) + b"x" * 1_000_000)
        closed, _, _ = select.select([client.socket for client in clients], [], [], TIMEOUT_SECONDS)
        assert len(closed) == 1
        assert is_alive(broker)


def test_connections_beyond_the_limit_are_closed_at_once() -> None:
    with EmbeddedBroker(config={"max.connections": 2}) as broker:
        address = broker.bootstrap_servers
        with SocketClient(address), SocketClient(address), SocketClient(address, greet=False) as third:
            assert third.is_closed_by_peer()
        assert is_alive_eventually(broker)


@pytest.mark.parametrize("bytes_per_second", [None, 1 << 30], ids=["at full speed", "slowed down, and hardly"])
def test_client_that_does_not_read_is_served_up_to_a_limit(bytes_per_second: int | None) -> None:
    """Answers pile up to a limit, requests stay in the socket; when the client reads, it gets everything, in order."""
    config = {"connections.max.unread.bytes": 1 << 18}
    with (
        EmbeddedBroker(topics=["orders"], config=config) as broker,
        SocketClient(broker.bootstrap_servers, receive_buffer=1 << 16) as client,
    ):
        if bytes_per_second is not None:
            broker.faults.add(action="slow_down", bytes_per_second=bytes_per_second)
        client.ask(produce_request("orders", batch_of(b"x" * 500_000)))
        requested = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
        request = FetchRequest(max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic="orders", partitions=requested)])
        for _ in range(200):
            client.send(request)
        served = broker.counters("orders")["TotalFetchRequestsPerSec"]
        assert is_alive(broker)
        assert served < 100
        for _ in range(200):
            assert len(client.receive().responses[0].partitions[0].records) > 500_000


def test_many_requests_in_one_write_are_answered(broker: EmbeddedBroker) -> None:
    with SocketClient(broker.bootstrap_servers) as client:
        client.socket.sendall(b"".join(b"".join(client.connection.encode_request(MetadataRequest(topics=[]))[1]) for _ in range(2000)))
        for _ in range(2000):
            client.receive()


def test_waiting_fetch_delays_the_requests_behind_it(broker: EmbeddedBroker) -> None:
    with SocketClient(broker.bootstrap_servers) as client:
        requested = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
        client.send(FetchRequest(max_wait_ms=200, min_bytes=1 << 20, topics=[FetchTopic(topic="orders", partitions=requested)]))
        for _ in range(1000):
            client.send(MetadataRequest(topics=[]))
        assert type(client.receive()).__name__ == "FetchResponse"
        for _ in range(1000):
            assert type(client.receive()).__name__ == "MetadataResponse"


def test_fetch_delayed_by_a_slow_reader_is_answered() -> None:
    """The server looks for what the core waits for also after requests that came with no read."""
    is_answered = threading.Event()
    transport = SimpleNamespace(
        get_extra_info=lambda _name: ("127.0.0.1", 5000),
        set_write_buffer_limits=lambda high: None,
        get_write_buffer_size=lambda: 0,
        is_closing=lambda: False,
        pause_reading=lambda: None,
        resume_reading=lambda: None,
        writelines=lambda _parts: is_answered.set(),
        abort=lambda: None,
        close=lambda: None,
    )
    requested = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
    fetch = FetchRequest(max_wait_ms=20, min_bytes=1 << 20, topics=[FetchTopic(topic="orders", partitions=requested)])
    data = b"".join(ClientConnection("client").encode_request(fetch, 12)[1])

    def held_back(server: BrokerServer) -> None:
        peer = server._connection_manager.new_peer(0)
        peer.connection_made(cast(Any, transport))
        peer.pause_writing()
        peer.get_buffer(-1)[: len(data)] = data
        peer.buffer_updated(len(data))
        server._time._loop.call_soon(peer.resume_writing)

    with EmbeddedBroker(topics=["orders"]) as broker:
        broker._thread.call(lambda: held_back(broker._running))
        assert is_answered.wait(60)


def test_large_request_behind_a_waiting_fetch_stays_in_the_socket(broker: EmbeddedBroker) -> None:
    """What waits holds memory: a frame is read no further while an answer before it is waited for."""
    with SocketClient(broker.bootstrap_servers) as client:
        requested = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
        client.send(FetchRequest(max_wait_ms=300, min_bytes=1 << 20, topics=[FetchTopic(topic="orders", partitions=requested)]))
        for _ in range(20):
            client.send(produce_request("missing", batch_of(b"x" * 900_000)))
        assert type(client.receive()).__name__ == "FetchResponse"
        for _ in range(20):
            assert client.receive().responses[0].partition_responses[0].error_code == 3


def send_many(client: SocketClient) -> None:
    for _ in range(100):
        client.send(produce_request("orders", batch_of(b"x" * 900_000)))


def test_bytes_behind_a_waiting_fetch_are_limited() -> None:
    """Nearly everything stays with the client: the broker reads on when the fetch is answered."""
    with EmbeddedBroker(topics=["orders"]) as broker, SocketClient(broker.bootstrap_servers) as client:
        requested = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
        client.send(FetchRequest(max_wait_ms=600_000, min_bytes=1 << 20, topics=[FetchTopic(topic="orders", partitions=requested)]))
        client.socket.settimeout(1)
        with pytest.raises(TimeoutError):
            send_many(client)
        assert is_alive(broker)


def test_idle_connections_are_closed() -> None:
    with EmbeddedBroker(config={"connections.max.idle.ms": 50}) as broker, SocketClient(broker.bootstrap_servers) as client:
        assert client.is_closed_by_peer()


def test_incomplete_request_closes_its_connection() -> None:
    with EmbeddedBroker(config={"connections.max.unfinished.ms": 50}) as broker:
        with SocketClient(broker.bootstrap_servers) as client:
            client.socket.sendall(struct.pack(">i", 100) + b"x")
            assert client.is_closed_by_peer()
        assert is_alive(broker)


def fill_with_unread_answers(client: SocketClient, count: int = 60, size: int = 500_000) -> None:
    """Request `count` answers of `size` bytes and read none of them."""
    client.ask(produce_request("orders", batch_of(b"x" * size)))
    requested = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
    with contextlib.suppress(ConnectionError):  # It may be disconnected before it has asked for all.
        for _ in range(count):
            client.send(FetchRequest(max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic="orders", partitions=requested)]))


def test_client_that_reads_nothing_is_disconnected() -> None:
    config = {"connections.max.unread.ms": 100}
    with (
        EmbeddedBroker(topics=["orders"], config=config) as broker,
        SocketClient(broker.bootstrap_servers, receive_buffer=1 << 16) as client,
    ):
        fill_with_unread_answers(client)
        wait_for_connections(broker, 0)
        watch = broker._running._connection_manager._watch
        assert not watch._seen
        assert not watch._unread
        assert is_alive(broker)


def test_memory_of_unread_responses_is_limited(caplog: pytest.LogCaptureFixture) -> None:
    with (
        EmbeddedBroker(topics=["orders"], config={"queued.max.response.bytes": 6 << 20, "message.max.bytes": 8 << 20}) as broker,
        SocketClient(broker.bootstrap_servers, receive_buffer=1 << 16) as first,
        SocketClient(broker.bootstrap_servers, receive_buffer=1 << 16) as second,
    ):
        for client in (first, second):
            fill_with_unread_answers(client, size=4_000_000)
        wait_for_connections(broker, 1)
        assert is_alive(broker)
    assert any("too many unread responses" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("policy", ["os", "always"])
def test_requests_behind_a_close_are_not_processed(policy: str) -> None:
    """acks=0 that is refused closes the connection; what was pipelined behind it must not be carried out."""
    with EmbeddedBroker(topics=["orders"], config={"flush.policy": policy}) as broker, SocketClient(broker.bootstrap_servers) as client:
        refused = produce_request("missing", batch_of(b"a"), acks=0)
        behind = produce_request("orders", batch_of(b"b"))
        client.socket.sendall(b"".join(b"".join(client.connection.encode_request(message)[1]) for message in (refused, behind)))
        assert client.is_closed_by_peer()
        assert broker.counters()["MessagesInPerSec"] == 0


def test_closed_connection_with_unread_responses_ends() -> None:
    """A closed connection still has answers to send; its client has its time for reading them, and no more."""
    config = {"connections.max.unread.ms": 100}
    with (
        EmbeddedBroker(topics=["orders"], config=config) as broker,
        SocketClient(broker.bootstrap_servers, receive_buffer=1 << 16) as client,
    ):
        fill_with_unread_answers(client, 20)

        def close_all() -> None:
            for peer in broker._running.peers:
                peer.close()

        broker._thread.call(close_all)
        wait_for_connections(broker, 0)


@pytest.mark.parametrize(
    ("is_there", "says"),
    [
        (True, ("INFO", COMPILED_LOOPS_LOADED)),
        (False, ("WARNING", "compiled loops cannot be loaded, records are checked by much slower ones: no numba")),
    ],
)
def test_availability_of_compiled_loops_is_logged(
    is_there: bool, says: tuple[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernels, "load", lambda: is_there)
    monkeypatch.setattr(kernels, "missing_reason", lambda: "no numba")
    with caplog.at_level(logging.INFO, "chaffinch.broker"):
        load_kernels()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [says]
