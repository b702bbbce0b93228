"""How much may wait behind requests whose answers wait, over all connections: on pretend transports, without sockets."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from chaffinch.broker.connections import Peer, RequestsHeld
from chaffinch.protocol.client_connection import ClientConnection
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from chaffinch.protocol.server_connection import ReceivedRequest, ServerConnection

LIMIT = 1000


class PretendTransport:
    def __init__(self) -> None:
        self.is_paused = False
        self.written = 0

    def get_extra_info(self, name: str) -> Any:
        return "127.0.0.1", 5000

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        assert not self.is_paused
        self.is_paused = True

    def resume_reading(self) -> None:
        assert self.is_paused
        self.is_paused = False

    def writelines(self, parts: list[bytes]) -> None:
        self.written += sum(map(len, parts))


class Line:
    """A connection to a server that answers when it is told to."""

    def __init__(self, held: RequestsHeld) -> None:
        self.transport = PretendTransport()
        self.waiting: list[ReceivedRequest] = []
        self.answers_at_once = False
        self.peer = Peer(cast(Any, self), ServerConnection(), 1, 0, 1 << 20, held)
        self.peer.connection_made(cast(asyncio.Transport, self.transport))
        self._client = ClientConnection("test", "test", "1")

    def connected(self, peer: Peer) -> bool:
        return True

    def received(self, peer: Peer, request: ReceivedRequest) -> None:
        self.waiting.append(request)
        if self.answers_at_once:
            self.answer()

    def flush_later(self, peer: Peer) -> None: ...

    def disconnected(self, peer: Peer) -> None: ...

    def send(self, size: int) -> None:
        """A request of about so many bytes, unless the connection is read no further."""
        assert not self.transport.is_paused
        request = MetadataRequest(topics=[MetadataRequestTopic(name="t" * size)])
        data = b"".join(self._client.encode_request(request, 4)[1])
        self.peer.get_buffer(-1)[: len(data)] = data
        self.peer.buffer_updated(len(data))

    def answer(self) -> None:
        self.peer.respond(self.waiting.pop(0), MetadataResponse())
        self.peer.flush()


def test_who_waits_is_read_no_further_when_too_much_waits_in_all() -> None:
    held = RequestsHeld(LIMIT)
    first, second = Line(held), Line(held)
    first.send(600)
    second.send(100)
    assert [line.transport.is_paused for line in (first, second)] == [False, False]
    second.send(400)
    assert second.transport.is_paused
    assert not first.transport.is_paused, "it has not sent more"
    first.send(1)
    assert first.transport.is_paused
    first.answer()
    first.answer()
    assert not first.transport.is_paused, "answered"
    assert second.transport.is_paused, "until its own answers, before which nothing that it sends could be done"
    second.answer()
    assert not second.transport.is_paused


def test_who_is_answered_at_once_is_always_read() -> None:
    held = RequestsHeld(LIMIT)
    greedy, quick = Line(held), Line(held)
    greedy.send(2 * LIMIT)
    quick.answers_at_once = True
    for _ in range(5):
        quick.send(2 * LIMIT)
    assert not quick.transport.is_paused
    assert greedy.transport.is_paused


def test_what_is_answered_or_gone_is_held_no_more() -> None:
    held = RequestsHeld(LIMIT)
    answered, silent, gone = Line(held), Line(held), Line(held)
    for line in (answered, silent, gone):
        line.send(100)
    assert 300 < held.bytes_held < 600
    gone.peer.connection_lost(None)
    answered.answer()
    assert 100 < held.bytes_held < 200
    request = silent.waiting.pop()
    silent.peer.frames.skip_response(request)
    silent.peer.skip(request)
    assert held.bytes_held == 0
