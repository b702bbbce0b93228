"""Clients that say that they send nothing more, and read on: all that they asked for is answered, then the connection ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Literal

import pytest

from chaffinch.broker.connections import TURN_SECONDS_MAX, QueuedRequestBytes
from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from chaffinch.protocol.messages.metadata import MetadataRequest
from tests.broker.batches import batch_of
from tests.broker.broker_probes import wait_for_connections, wait_until
from tests.broker.core_client import produce_request
from tests.broker.fake_connection import Clock, FakeConnection
from tests.broker.socket_client import SocketClient
from tests.broker.test_responses_in_turns import INCOMPRESSIBLE

FETCH_VERSION = 12
MANY = 2_000
"""More than are done in one turn, and than wait at once."""


def fetch(*, wait_ms: int = 60_000, offset: int = 0) -> FetchRequest:
    requested = [FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=50_000_000)]
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=1, topics=[FetchTopic(topic="orders", partitions=requested)])


@pytest.fixture(params=["os", "always"])
def broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics=["orders"], config={"flush.policy": request.param}) as broker:
        yield broker


def waits(broker: EmbeddedBroker) -> bool:
    return bool(broker._running.core._waits)


def finish(client: SocketClient) -> None:
    client.socket.shutdown(socket.SHUT_WR)


def names(client: SocketClient) -> list[str]:
    """All that is still answered."""
    found = []
    try:
        while True:
            found.append(type(client.receive()).__name__)
    except ConnectionResetError:
        return found


def test_pipelined_requests_are_answered_after_a_half_close(broker: EmbeddedBroker) -> None:
    with SocketClient(broker.bootstrap_servers) as client:
        for _ in range(MANY):
            client.send(MetadataRequest(topics=[]), 4)
        finish(client)
        assert names(client) == ["MetadataResponse"] * MANY


def test_requests_behind_a_waiting_one_are_processed_after_a_half_close(broker: EmbeddedBroker) -> None:
    with SocketClient(broker.bootstrap_servers) as client, SocketClient(broker.bootstrap_servers) as writer:
        client.send(fetch(), FETCH_VERSION)
        client.send(produce_request("orders", batch_of(b"behind")))
        client.send(produce_request("orders", batch_of(b"silent"), acks=0))
        client.socket.sendall(bytes(3))  # Of a request that never comes.
        finish(client)
        wait_until(broker, lambda: waits(broker))
        wait_until(broker, lambda: any(peer.is_finished for peer in broker._running.peers))
        writer.ask(produce_request("orders", batch_of(b"wakes")))
        assert names(client) == ["FetchResponse", "ProduceResponse"]
        wait_for_connections(broker, 1)
        assert broker.read("orders").column("value").to_pylist() == [b"wakes", b"behind", b"silent"]


def test_acks_0_request_is_processed_after_a_half_close(broker: EmbeddedBroker) -> None:
    with SocketClient(broker.bootstrap_servers) as client:
        client.send(produce_request("orders", batch_of(b"silent"), acks=0))
        finish(client)
        assert names(client) == []
        assert broker.read("orders").num_rows == 1


def test_large_responses_are_sent_completely_after_a_half_close(broker: EmbeddedBroker) -> None:
    with SocketClient(broker.bootstrap_servers) as writer, SocketClient(broker.bootstrap_servers, receive_buffer=1 << 14) as client:
        for _ in range(20):
            writer.ask(produce_request("orders", batch_of(INCOMPRESSIBLE)))
        client.send(fetch(), FETCH_VERSION)
        client.send(MetadataRequest(topics=[]), 4)
        finish(client)
        wait_until(broker, lambda: any(peer.unsent_bytes for peer in broker._running.peers))
        assert len(client.receive().responses[0].partitions[0].records) > 20 * len(INCOMPRESSIBLE)
        assert names(client) == ["MetadataResponse"]


@pytest.mark.parametrize("direction", ["answers", "requests"])
def test_throttled_responses_are_sent_after_a_half_close(broker: EmbeddedBroker, direction: Literal["answers", "requests"]) -> None:
    with SocketClient(broker.bootstrap_servers) as client:
        broker.faults.add(api="Metadata", action="slow_down", bytes_per_second=2_000, direction=direction)
        for _ in range(3):
            client.send(MetadataRequest(topics=[]), 4)
        finish(client)
        assert names(client) == ["MetadataResponse"] * 3


@pytest.mark.parametrize("responses_leave", ["answers_at_once", "answers_at_the_end"])
def test_throttled_responses_sent_at_once_take_turns(responses_leave: str, clock: Clock) -> None:
    """Of requests behind one that waits: each answer drains the pace, and what drains it must neither begin the next within the last nor
    make two turns of one, as it would at the end of a turn."""
    connection = FakeConnection(QueuedRequestBytes(1 << 30), clock)

    async def slow_down() -> None:
        connection.peer.slow_down(10**9, answers=True, requests=False)

    asyncio.run(slow_down())
    connection.lets_wait = True
    connection.feed(connection.request(1) * 201)
    assert connection.peer.eof_received()
    connection.loop.turn()
    connection.lets_wait, connection.seconds_for_each = False, 0.4 * TURN_SECONDS_MAX
    setattr(connection, responses_leave, True)
    connection.answer()
    for turn in range(67):
        assert (connection.requests_done, connection.transport.is_closed) == (1 + 3 * turn, False)
        connection.loop.turn()
        assert len(connection.loop.busy) <= 1
    assert connection.requests_done == 201
    connection.loop.turn()
    assert connection.transport.is_closed


def test_disconnected_client_is_forgotten_with_its_first_response(broker: EmbeddedBroker) -> None:
    with ExitStack() as stack:
        writer = stack.enter_context(SocketClient(broker.bootstrap_servers))
        with SocketClient(broker.bootstrap_servers) as client:
            client.send(fetch(), FETCH_VERSION)
            client.send(fetch(offset=1), FETCH_VERSION)
            wait_until(broker, lambda: waits(broker))
        writer.ask(produce_request("orders", batch_of(b"wakes")))
        writer.ask(produce_request("orders", batch_of(b"wakes")))
        wait_for_connections(broker, 1)
        assert not waits(broker)


def test_unanswered_half_closed_connection_ends_at_the_idle_limit() -> None:
    with EmbeddedBroker(topics=["orders"], config={"connections.max.idle.ms": 100}) as broker:
        with SocketClient(broker.bootstrap_servers) as client:
            client.send(fetch(wait_ms=2**31 - 1), FETCH_VERSION)
            wait_until(broker, lambda: waits(broker))
        wait_for_connections(broker, 0)
        wait_until(broker, lambda: not waits(broker))
