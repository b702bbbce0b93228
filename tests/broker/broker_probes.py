"""Looks at a running broker: from outside, and in a turn of its loop, until something holds."""

from __future__ import annotations

from collections.abc import Callable

from chaffinch import EmbeddedBroker
from chaffinch.protocol.messages.metadata import MetadataRequest
from tests.broker.socket_client import SocketClient


def is_alive(broker: EmbeddedBroker) -> bool:
    with SocketClient(broker.bootstrap_servers) as client:
        return bool(client.ask(MetadataRequest(topics=None)).error_code == 0)


def is_alive_eventually(broker: EmbeddedBroker) -> bool:
    """The broker learns of a closed connection a moment after the client has closed it."""
    for _ in range(100):
        try:
            return is_alive(broker)
        except ConnectionError:
            continue
    return False


def wait_for_connections(broker: EmbeddedBroker, count: int) -> None:
    """Until so few are left."""
    wait_until(broker, lambda: len(broker._running.peers) <= count)


def wait_until(broker: EmbeddedBroker, holds: Callable[[], bool]) -> None:
    """Each question is a turn of the broker's loop."""
    for _ in range(200_000):
        if broker._thread.call(holds):
            return
    raise AssertionError("it never came")


def wait_until_hit(broker: EmbeddedBroker) -> None:
    wait_until(broker, lambda: not broker._running.core.faults)
