"""A connection of the broker on a fake transport, with a server that answers when a test lets it.

Its turns last by a clock that the fixture `clock` lets stand: with the real one a slow machine ends them before their time.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from chaffinch.broker.connections import Peer, QueuedRequestBytes
from chaffinch.protocol.client_connection import ClientConnection
from chaffinch.protocol.frames import BufferPool, FrameBudget
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from chaffinch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from chaffinch.protocol.server_connection import ReceivedRequest, ServerConnection
from chaffinch.protocol.violations import ProtocolViolation


class FakeTransport:
    def __init__(self) -> None:
        self.is_paused = False
        self.is_closed = False
        self.written = 0

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 5000) if name == "peername" else None

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

    def close(self) -> None:
        self.is_closed = True


class Clock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_s = 5.0


class Loop:
    """Whose turn it is to end, as the server keeps it."""

    def __init__(self) -> None:
        self.busy: list[Peer] = []

    def turn(self) -> None:
        peers, self.busy = self.busy, []
        for peer in peers:
            peer.end_turn()


class FakeConnection:
    """A connection to a server that answers when a test lets it."""

    def __init__(self, held: QueuedRequestBytes, clock: Clock | None = None, loop: Loop | None = None) -> None:
        self.loop = loop or Loop()
        self.violations: list[ProtocolViolation] = []
        self.clock = clock or Clock()
        self.transport = FakeTransport()
        self.waiting: list[ReceivedRequest] = []
        self.answers_at_once = False
        self.answers_at_the_end = False
        self.answers_never = False
        self.lets_wait = False
        self.seconds_for_each = 0.0
        self.requests_done = 0
        self.turns_begun = 0
        self.written_at_turn_ends: list[int] = []
        self.budget = FrameBudget(1 << 30)
        self.peer = Peer(cast(Any, self), ServerConnection(budget=self.budget, pool=BufferPool(0)), 1, 0, 1 << 20, held)
        self.peer.connection_made(cast(asyncio.Transport, self.transport))
        self._client = ClientConnection("test", "test", "1")

    def connected(self, peer: Peer) -> bool:
        return True

    def received(self, peer: Peer, request: ReceivedRequest) -> bool:
        self.waiting.append(request)
        if self.answers_at_once or self.answers_at_the_end:
            self.answer()
        if self.answers_never:
            self.complete_silently()
        return not self.lets_wait

    def violated(self, peer: Peer, violation: ProtocolViolation) -> None:
        self.violations.append(violation)
        peer.stop_taking_requests()

    def end_turn_later(self, peer: Peer) -> None:
        self.turns_begun += 1
        self.loop.busy.append(peer)

    def turn_ended(self) -> None:
        self.written_at_turn_ends.append(self.transport.written)

    def disconnected(self, peer: Peer) -> None: ...

    def output_pending(self, peer: Peer) -> None: ...

    def failed(self, peer: Peer, error: Exception) -> None:
        raise error

    def send(self, size: int) -> None:
        """Feed a request of about `size` bytes; fails when reading is paused."""
        assert not self.transport.is_paused
        self.feed(self.request(size))

    def request(self, size: int) -> bytes:
        request = MetadataRequest(topics=[MetadataRequestTopic(name="t" * size)])
        return b"".join(self._client.encode_request(request, 4)[1])

    def feed(self, data: bytes) -> None:
        while data:
            buffer = self.peer.get_buffer(-1)
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            self.peer.buffer_updated(count)
            data = data[count:]

    def pour(self, data: bytes) -> bytes:
        """As `feed`, while it is read: all of this was there at once, so that each read fills its buffer. What was not read."""
        view = memoryview(data)
        while not self.transport.is_paused:
            size = len(self.peer.get_buffer(-1))
            self.feed(bytes(view[:size]))
            view = view[size:]
            assert view, "read without end"
        return bytes(view)

    def answer(self) -> None:
        self.peer.respond(self.waiting.pop(0), MetadataResponse())
        self.requests_done += 1
        self.clock.now_s += self.seconds_for_each
        if not self.answers_at_the_end:
            self.peer.flush()

    def complete_silently(self) -> None:
        request = self.waiting.pop()
        self.peer.frames.skip_response(request)
        self.peer.skip(request)


def produce_request(size: int) -> bytes:
    """A complete Produce frame with `size` bytes of records and acks 0."""
    topic = TopicProduceData(name="t", partitions=[PartitionProduceData(index=0, records=bytes(size))])
    return b"".join(ClientConnection("test", "test", "1").encode_request(ProduceRequest(acks=0, topics=[topic]), 7)[1])
