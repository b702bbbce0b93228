"""Listening sockets: one per declared node, under the addresses that clients are told. A node that is stopped keeps its port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from chaffinch.broker.core.declared_replicas import Node

LISTEN_BACKLOG: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to listen, or what to tell clients; port 0 asks the system for a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def listen(address: Address, count: int) -> list[socket.socket]:
    """One listening socket per declared node: the first at `address`, the others at the ports after it, or any free ones for port 0.

    Raises OSError, with the address in its text; nothing stays open then.
    """
    listeners: list[socket.socket] = []
    try:
        for node_id in range(count):
            port = address.port + node_id if address.port else 0
            listeners.append(listening_socket(Address(host=address.host, port=port)))
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def listening_socket(address: Address) -> socket.socket:
    """Raises OSError, with the address in its text."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            _bind(listener, target)
            listener.listen(LISTEN_BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror or error}") from error
    return listener


def _bind(listener: socket.socket, target: Any) -> None:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted connections inherit it: a client that is gone without a word is noticed in the end, as by Apache Kafka.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setblocking(False)
    listener.bind(target)


def nodes_of(listeners: Sequence[socket.socket], host: str, advertised: Address | None = None) -> list[Node]:
    """The declared nodes under the addresses that clients are told: those of the listeners, or `advertised` and the ports after it."""
    nodes = []
    for node_id, listener in enumerate(listeners):
        port = listener.getsockname()[1]
        if advertised is None:
            nodes.append(Node(id=node_id, host=host, port=port))
        else:
            nodes.append(Node(id=node_id, host=advertised.host, port=advertised.port + node_id if advertised.port else port))
    return nodes


class Listener:
    """One node's listening socket. While it is stopped, connecting is refused and the port is kept: it is bound, and nobody listens."""

    def __init__(self, listening: socket.socket) -> None:
        self._socket = listening
        self._target = listening.getsockname()
        self._server: asyncio.Server | None = None

    async def start(self, new_connection: Callable[[], asyncio.BaseProtocol]) -> None:
        """Accept. Raises OSError, with the address in its text."""
        loop = asyncio.get_running_loop()
        try:
            # The loop's server closes what it is given.
            self._server = await loop.create_server(new_connection, sock=self._socket.dup(), backlog=LISTEN_BACKLOG)
        except OSError as error:
            raise OSError(error.errno, f"cannot listen on port {self._target[1]} again: {error.strerror or error}") from error

    def stop(self) -> None:
        """Accept no more; connections that are there stay. Raises OSError when the port is taken in this very moment."""
        self._release()
        self._socket = socket.socket(self._socket.family, self._socket.type, self._socket.proto)
        _bind(self._socket, self._target)

    def close(self) -> None:
        """For good: the port is free."""
        if self._socket.fileno() >= 0:
            self._release()

    def _release(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self._socket.close()
