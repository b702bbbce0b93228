"""How much the system keeps of a connection that is not read yet, on either way."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from chaffinch.broker import listeners
from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.broker.listeners import Address, listening_socket
from tests.broker.broker_probes import wait_until
from tests.broker.socket_client import SocketClient


def receive_buffer_bytes() -> int:
    with listening_socket(Address(host="127.0.0.1", port=0)) as listener:
        listener.setblocking(True)
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            return accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)


LARGEST = int(Path("/proc/sys/net/core/wmem_max").read_text()) if sys.platform.startswith("linux") else sys.maxsize
LINUX_ONLY = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux reports twice the size that was set")


@pytest.mark.parametrize(("requested", "is_granted"), [pytest.param(100_000, True, marks=LINUX_ONLY), (1 << 30, False)])
def test_receive_buffer_is_requested_or_left_to_the_system(monkeypatch: pytest.MonkeyPatch, requested: int, is_granted: bool) -> None:
    with monkeypatch.context() as unasked:
        unasked.setattr(listeners, "_may_have", lambda size: False)
        chosen = receive_buffer_bytes()
    monkeypatch.setattr(listeners, "RECEIVE_BUFFER_BYTES", requested)
    assert receive_buffer_bytes() == (2 * requested if is_granted else chosen)


@pytest.mark.parametrize(
    ("config", "granted"),
    [({}, 2 * min(300_000, LARGEST)), ({"socket.send.buffer.bytes": 50_000}, 100_000), ({"socket.send.buffer.bytes": -1}, None)],
)
@pytest.mark.parametrize("is_started_again", [False, True])
@LINUX_ONLY
def test_send_buffer_option_applies(config: dict[str, int], granted: int | None, is_started_again: bool) -> None:
    with EmbeddedBroker(config=config, brokers=2) as broker:
        if is_started_again:
            broker.stop_node(0)
            broker.start_node(0)
        with SocketClient(broker.bootstrap_servers.split(",")[0]):
            wait_until(broker, lambda: bool(broker._running.peers))
            (peer,) = broker._running.peers
            assert peer._transport is not None
            found = peer._transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    if granted is None:
        with listening_socket(Address(host="127.0.0.1", port=0)) as listener:
            listener.setblocking(True)
            with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
                granted = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    assert found == granted
