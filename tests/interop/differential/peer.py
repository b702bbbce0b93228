"""One side of the comparison: a broker that is asked, and everything that it answered."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

from chaffinch.protocol.client_connection import ClientConnection
from chaffinch.protocol.schema import Message

ANSWER_SECONDS_MAX = 15.0
NOT_READY = frozenset({6, 14, 15, 16, 51})
"""Coordinators that load, are not there yet, or are still ending a transaction: the same is asked again, as clients do."""

READY_TRIES, READY_PAUSE_SECONDS = 100, 0.2


class Closed:
    """What stands in the place of an answer when the connection was closed instead."""

    def __repr__(self) -> str:
        return "connection closed"


class Peer:
    """A broker under its address. `answers`: label of a case -> what came, in the order in which it was asked."""

    def __init__(self, name: str, bootstrap_servers: str) -> None:
        self.name = name
        self.answers: dict[str, Any] = {}
        host, _, port = bootstrap_servers.rpartition(":")
        self._address = host, int(port)
        self._socket: socket.socket | None = None
        self._connection = ClientConnection("differential")

    def ask(self, label: str, message: Message, version: int) -> Any:
        """The answer to a case, kept under its label; `Closed` when the broker closed the connection."""
        assert label not in self.answers, f"two cases are called {label!r}"
        answer = self.answers[label] = self.quietly(message, version)
        return answer

    def quietly(self, message: Message, version: int, tries: int = READY_TRIES) -> Any:
        """Ask without keeping the answer: for what prepares a case. `tries`: how often while the broker says that it is not ready."""
        for _ in range(tries):
            answer = self._reconnecting(message, version)
            if NOT_READY.isdisjoint(codes_in(answer)):
                break
            self.settle()
        return answer

    def settle(self, seconds: float = READY_PAUSE_SECONDS) -> None:
        """Give the broker a moment to take note of what it has promised."""
        threading.Event().wait(seconds)

    def _reconnecting(self, message: Message, version: int) -> Any:
        for is_last in (False, True):
            try:
                return self._ask(message, version)
            except ConnectionError:
                self._close()
                # A connection that was closed in the meantime, not because of this request, gets a second try.
                if is_last:
                    return Closed()
        raise AssertionError("not reached")

    def _ask(self, message: Message, version: int) -> Any:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=ANSWER_SECONDS_MAX)
            self._connection = ClientConnection("differential")
        self._socket.sendall(b"".join(self._connection.encode_request(message, version)[1]))
        while True:
            count = self._socket.recv_into(self._connection.get_buffer())
            if not count:
                raise ConnectionError("closed")
            responses = self._connection.buffer_updated(count)
            if responses:
                return responses[0].message

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def codes_in(message: Any) -> Iterator[int]:
    """Every error code in an answer."""
    if isinstance(message, list):
        for part in message:
            yield from codes_in(part)
    elif isinstance(message, Message):
        for field in type(message).FIELDS:
            value = getattr(message, field.name)
            if field.name.endswith("error_code") and isinstance(value, int):
                yield value
            elif isinstance(value, list | Message):
                yield from codes_in(value)
