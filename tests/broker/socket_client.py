"""A client of a few lines over a real socket: blocking, one connection, whatever bytes a test wants to send."""

from __future__ import annotations

import socket
from collections import deque
from types import TracebackType
from typing import Any, Self

from chaffinch.protocol.client_connection import ClientConnection

TIMEOUT_SECONDS = 60.0


class SocketClient:
    """`address` is HOST:PORT; of several, the first. A connection that the broker closes raises ConnectionError."""

    def __init__(self, address: str, *, greet: bool = True, receive_buffer: int | None = None) -> None:
        host, _, port = address.split(",")[0].rpartition(":")
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(TIMEOUT_SECONDS)
        self.socket.connect((host, int(port)))
        self.connection = ClientConnection("socket client", "test", "1")
        self._received: deque[Any] = deque()
        if greet:
            self.ask(self.connection.api_versions_request())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.socket.close()

    def send(self, message: Any, version: int | None = None) -> None:
        self.socket.sendall(b"".join(self.connection.encode_request(message, version)[1]))

    def receive(self) -> Any:
        while not self._received:
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionResetError("the broker closed the connection")
            self._received += [response.message for response in self.connection.receive(data)]
        return self._received.popleft()

    def ask(self, message: Any, version: int | None = None) -> Any:
        self.send(message, version)
        return self.receive()

    def is_closed_by_peer(self) -> bool:
        """Wait until the broker closes; what it still sends is dropped."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        return True
