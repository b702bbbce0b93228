"""The fault `slow_down`: a connection whose answers leave, or whose requests are read, at a pace."""

from __future__ import annotations

from typing import Literal

import pytest

from chaffinch import EmbeddedBroker
from chaffinch.protocol.messages.metadata import MetadataRequest
from tests.broker.batches import batch_of
from tests.broker.broker_probes import is_alive, wait_for_connections, wait_until, wait_until_hit
from tests.broker.core_client import produce_request
from tests.broker.socket_client import SocketClient


def test_throttled_responses_are_complete() -> None:
    with EmbeddedBroker(topics=["orders"]) as broker, SocketClient(broker.bootstrap_servers) as client:
        broker.faults.add(api="Metadata", action="slow_down", bytes_per_second=2000)
        assert client.ask(MetadataRequest(topics=None)).topics[0].name == "orders"
        for _ in range(3):
            client.send(MetadataRequest(topics=None))
        assert [client.receive().topics[0].name for _ in range(3)] == ["orders"] * 3
        assert is_alive(broker), "others are as fast as ever"


@pytest.mark.parametrize("direction", ["answers", "requests", "both"])
def test_one_byte_a_second_leaves_bytes_unsent(direction: Literal["answers", "requests", "both"]) -> None:
    with EmbeddedBroker(topics=["orders"]) as broker, SocketClient(broker.bootstrap_servers) as client:
        broker.faults.add(api="Metadata", action="slow_down", bytes_per_second=1, direction=direction)
        client.send(MetadataRequest(topics=None))
        wait_until_hit(broker)
        (peer,) = broker._thread.call(lambda: list(broker._running.peers))
        assert (broker._thread.call(lambda: peer.unsent_bytes) > 0) == (direction != "requests")
        client.send(MetadataRequest(topics=None))
        wait_until(broker, lambda: peer.is_reading == (direction == "answers"))


def test_throttled_requests_are_answered() -> None:
    with EmbeddedBroker(topics=["orders"]) as broker, SocketClient(broker.bootstrap_servers) as client:
        broker.faults.add(api="Metadata", action="slow_down", bytes_per_second=1000, direction="requests")
        client.ask(MetadataRequest(topics=None))
        for _ in range(3):
            assert client.ask(produce_request("orders", batch_of(b"a"))).responses[0].partition_responses[0].error_code == 0


@pytest.mark.parametrize(("direction", "pace"), [("answers", 1), ("requests", 1000), ("both", 1000)])
def test_throttled_connection_that_is_lost_leaves_nothing(direction: Literal["answers", "requests", "both"], pace: int) -> None:
    with EmbeddedBroker(topics=["orders"]) as broker:
        with SocketClient(broker.bootstrap_servers) as client:
            broker.faults.add(api="Metadata", action="slow_down", bytes_per_second=pace, direction=direction)
            for _ in range(3):
                client.send(MetadataRequest(topics=None))
            wait_until_hit(broker)
            (peer,) = broker._thread.call(lambda: list(broker._running.peers))
        wait_for_connections(broker, 0)
        assert (peer._slow_answers, peer._slow_requests, peer.unsent_bytes) == (None, None, 0)
        assert not broker._call(lambda core: core._unanswered)
        assert is_alive(broker)
