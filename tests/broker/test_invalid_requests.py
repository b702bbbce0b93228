"""Clients that send what makes no sense: it costs their connection and one line, and what came before is done."""

from __future__ import annotations

import itertools
import logging
import random
import socket
import struct
from collections.abc import Iterator

import pytest

from chaffinch import EmbeddedBroker
from chaffinch.broker.connections import TURN_SECONDS_MAX
from chaffinch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from chaffinch.protocol.messages.metadata import MetadataRequest
from tests.broker.batches import batch_of
from tests.broker.broker_probes import wait_for_connections, wait_until
from tests.broker.core_client import produce_request
from tests.broker.socket_client import SocketClient


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics=["orders"], config={"socket.request.max.bytes": 1 << 20, "queued.max.request.bytes": 3 << 20}) as broker:
        yield broker


def header(api: int, version: int, size: int = 8) -> bytes:
    return struct.pack(">ihhi", size, api, version, 1)


INVALID = {
    "random": random.Random(1).randbytes(500),
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "negative size": struct.pack(">i", -5) + b"abc",
    "too large": struct.pack(">i", (1 << 20) + 1),
    "empty frame": struct.pack(">i", 0),
    "unknown API": header(999, 0, 10) + b"\xff\xff",
    "unknown version": header(3, 99, 10) + b"\xff\xff",
    "Produce v0": header(0, 0, 10) + b"\xff\xff",
    "truncated body": header(3, 1, 12) + b"\xff\xff\x00\x00",
    "lying array": header(3, 1, 14) + b"\xff\xff" + struct.pack(">i", 2**31 - 1),
}


@pytest.mark.parametrize("data", INVALID.values(), ids=INVALID)
def test_invalid_request_closes_its_connection_with_one_line(broker: EmbeddedBroker, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    broker._call(lambda core: core.state.refusals.end())  # What the test before counted.
    with SocketClient(broker.bootstrap_servers) as bystander, caplog.at_level(logging.INFO, "chaffinch.broker"):
        with SocketClient(broker.bootstrap_servers, greet=False) as client:
            client.socket.sendall(data)
            assert client.is_closed_by_peer()
            port = client.socket.getsockname()[1]
        assert bystander.ask(MetadataRequest(topics=None)).error_code == 0
    (line,) = [record.getMessage() for record in caplog.records if str(port) in record.getMessage()]
    assert "closed" in line
    assert "Traceback" not in line


def test_request_before_an_invalid_one_is_answered(broker: EmbeddedBroker) -> None:
    with SocketClient(broker.bootstrap_servers) as client:
        good = b"".join(client.connection.encode_request(MetadataRequest(topics=None))[1])
        client.socket.sendall(good + INVALID["unknown API"])
        assert client.receive().error_code == 0
        assert client.is_closed_by_peer()


@pytest.mark.parametrize("policy", ["os", "always"])
def test_requests_before_an_invalid_one_are_processed_over_several_turns(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr("chaffinch.broker.connections.perf_counter", lambda: next(ticks) * 0.4 * TURN_SECONDS_MAX)
    with EmbeddedBroker(topics=["orders"], config={"flush.policy": policy}) as broker, SocketClient(broker.bootstrap_servers) as client:
        request = b"".join(client.connection.encode_request(produce_request("orders", batch_of(b"a"), acks=0))[1])
        client.socket.sendall(50 * request + INVALID["unknown API"] + request)
        assert client.is_closed_by_peer()
        assert broker.counters("orders")["MessagesInPerSec"] == 50


def test_invalid_request_waits_for_earlier_responses() -> None:
    with (
        EmbeddedBroker(topics=["orders"]) as broker,
        SocketClient(broker.bootstrap_servers) as client,
        SocketClient(broker.bootstrap_servers) as writer,
    ):
        requested = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
        client.send(FetchRequest(max_wait_ms=600_000, min_bytes=1, topics=[FetchTopic(topic="orders", partitions=requested)]))
        good = b"".join(client.connection.encode_request(MetadataRequest(topics=None))[1])
        client.socket.sendall(good + INVALID["truncated body"] + good)
        wait_until(broker, lambda: any(peer.open_count == 4 for peer in broker._running.peers))
        writer.ask(produce_request("orders", batch_of(b"a")))
        assert client.receive().responses[0].partitions[0].records
        assert client.receive().topics[0].name == "orders"
        assert client.is_closed_by_peer()


@pytest.mark.parametrize("invalid", [INVALID["unknown API"], INVALID["negative size"]])
def test_client_gone_before_its_invalid_request_leaves_nothing(invalid: bytes) -> None:
    with EmbeddedBroker(topics=["orders"]) as broker:
        with SocketClient(broker.bootstrap_servers) as client:
            requested = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
            client.send(FetchRequest(max_wait_ms=600_000, min_bytes=1, topics=[FetchTopic(topic="orders", partitions=requested)]))
            client.socket.sendall(invalid)
            wait_until(broker, lambda: any(peer.open_count == 2 for peer in broker._running.peers))
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # Closing is a reset.
        wait_for_connections(broker, 0)
        assert broker._thread.call(lambda: broker._running._connection_manager._queued.bytes_queued) == 0


def test_request_before_an_invalid_one_is_synced_and_answered() -> None:
    with EmbeddedBroker(topics=["orders"], config={"flush.policy": "always"}) as broker, SocketClient(broker.bootstrap_servers) as client:
        good = b"".join(client.connection.encode_request(produce_request("orders", batch_of(b"a")))[1])
        client.socket.sendall(good + INVALID["unknown API"])
        assert client.receive().responses[0].partition_responses[0].error_code == 0
        assert client.is_closed_by_peer()


def test_invalid_connections_are_rate_limited_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "chaffinch.broker"), EmbeddedBroker() as broker:
        for _ in range(9):
            with SocketClient(broker.bootstrap_servers, greet=False) as client:
                client.socket.sendall(INVALID["empty frame"])
                assert client.is_closed_by_peer()
    lines = [message for record in caplog.records if "closed: " in (message := record.getMessage())]
    assert len(lines) <= 3
    assert sum(int(line.split(" more ")[0].split()[-1]) if " more since" in line else 1 for line in lines) == 9
