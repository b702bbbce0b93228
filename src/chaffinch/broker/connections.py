"""One client's connection on the broker's side: bytes from the transport to requests, answers back, and how much may pile up.

Reading pauses while answers pile up unread or too many requests wait, so a client that does not read, or sends faster than it is
answered, holds what one connection may hold and no more. What waits are the bytes that came: each request is read when it is to be done, so
what is wrong with one is found in its order, when those before it are answered. A client that sends no more is answered to the end, and
closed then. Knows nothing of Kafka but frames; decisions are `connection_manager.ConnectionManager`'s.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Final, Protocol, cast

from chaffinch.broker.file_sender import FileSender
from chaffinch.broker.listeners import shown
from chaffinch.broker.throttle import ThrottledRequests, ThrottledResponses
from chaffinch.protocol.primitives import Buffer
from chaffinch.protocol.schema import Message
from chaffinch.protocol.server_connection import ReceivedRequest, ServerConnection, decoded_bytes_max
from chaffinch.protocol.violations import ProtocolViolation
from chaffinch.records.file_slice import FileSlice, Part, loaded

REQUESTS_WAITING_MAX: Final = 256
"""Requests read and not answered: beyond it nothing more is read. More than any client has in flight by default."""

UNSENT_BYTES_MAX: Final = 1 << 18
"""Answers collected in one turn of the loop before they are given to the transport all the same, so that it can say "enough"."""

BYTES_WAITING_MAX: Final = 1 << 20
"""The same in bytes. Only counts while something waits for its answer: a client that is answered at once may send what it likes."""

REQUEST_BYTES: Final = 400
"""What a request takes in memory beside its bytes, about: it counts among them, for there may be many small ones without an answer."""

TURN_BYTES_MAX: Final = 1 << 19
"""What is read of one connection in one turn of the loop: then its answers leave, and it is the others' turn. uvloop would read on while
buffers fill. About half of what a busy producer has on its way: with all of it read in one turn, the broker would wait while the client
hears of it and sends more, and the client while that is worked on."""

TURN_SECONDS_MAX: Final = 0.01
"""What is done for one connection in one turn of the loop: its next requests wait until the others had theirs. A client that reads as fast
as it is answered would else be answered until nothing is left of what it asked for. One request is always done, however long it takes."""

_TRANSPORT: Final = "transport"
_THROTTLE: Final = "pace"
_FILES: Final = "files"


class Owner(Protocol):
    """What a connection needs of its server."""

    def connected(self, peer: Peer) -> bool: ...
    def received(self, peer: Peer, request: ReceivedRequest) -> bool: ...
    def violated(self, peer: Peer, violation: ProtocolViolation) -> None: ...
    def failed(self, peer: Peer, error: Exception) -> None: ...
    def send_failed(self, peer: Peer, error: Exception) -> None: ...
    def disconnected(self, peer: Peer) -> None: ...
    def end_turn_later(self, peer: Peer) -> None: ...
    def turn_ended(self) -> None: ...
    def output_pending(self, peer: Peer) -> None: ...


class QueuedRequestBytes:
    """What has come of all connections whose first request waits for its answer, and what that one takes besides, as it is read; and how
    much that may be.

    Beyond it none of them is read any further until it is answered: what it sends would only wait, too. The others are read.
    """

    __slots__ = ("bytes_max", "bytes_queued")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_queued = 0
        self.bytes_max = bytes_max


class Peer(asyncio.BufferedProtocol):
    """A connected client. `node_id`: the declared node on whose listener it came.

    `is_known`: no login is asked for, or it is done. `unread_bytes_max`: answers that the client has not read, beyond which nothing more is
    done for it; one fetch answer may exceed it.
    """

    def __init__(
        self, owner: Owner, frames: ServerConnection, connection_id: int, node_id: int, unread_bytes_max: int, queued: QueuedRequestBytes
    ) -> None:
        self.connection_id = connection_id
        self.node_id = node_id
        self.frames = frames
        self.address = "?"
        self.host = ""  # As Kafka shows it to those who describe groups.
        self.is_known = True
        self.bytes_received = 0
        self.bytes_answered = 0
        self.requests_received = 0
        self._open_requests = frames.open_requests
        self._owner = owner
        self._unread_bytes_max = unread_bytes_max
        self._transport: asyncio.Transport | None = None
        self._file_sender: FileSender | None = None  # As long as there is a transport.
        self._sends = True
        self._backlog: deque[memoryview | ProtocolViolation] = deque()  # Frames, and last of all why there can be no more of them.
        self._bytes_waiting = 0
        self._queued = queued
        self._queued_bytes = 0  # Of it, counted there.
        self._unsent: list[Part] = []  # No stretch stays in it: `respond` sends what has one.
        self._has_stretches = False
        self._unsent_bytes = 0
        self._turn_bytes = 0  # Read in this turn of the loop.
        self._has_turn = False  # It was said that there is something to do at its end.
        self._turn_ends_s = 0.0
        self._turn_is_used_up = False  # It took as long as a turn may.
        self._waiting: ReceivedRequest | None = None  # Behind it nothing is begun.
        self._waiting_memory_bytes = 0  # In memory, beside its bytes.
        self._congested: set[str] = set()  # What has more answers than it should: the transport, or the pace.
        self._is_paused = False
        self._takes_requests = True
        self._is_finished = False
        self._slow_answers: ThrottledResponses | None = None
        self._slow_requests: ThrottledRequests | None = None
        self.get_buffer = frames.get_buffer  # type: ignore[method-assign, assignment]  # The transport's own call, without one of ours between.

    # What the transport calls ---------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's transports are not asyncio's classes.
        peer_name = transport.get_extra_info("peername")
        self.address = shown(peer_name)
        self.host = f"/{peer_name[0]}" if isinstance(peer_name, tuple) else str(peer_name)
        self._file_sender = FileSender(transport, partial(self._drained, _FILES), self._send_failed)
        transport.set_write_buffer_limits(high=self._unread_bytes_max)
        if not self._owner.connected(self):
            transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.frames.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.bytes_received += nbytes
        self._turn_bytes += nbytes
        had_turn = self._has_turn
        if not had_turn:
            self._enter_turn()
        if self._takes_requests:
            self._take(nbytes)
        elif self._turn_bytes > TURN_BYTES_MAX:  # Nothing of it is kept, but it shows that the client is there.
            self._consider_reading()
        if had_turn:
            return
        if self.frames.may_have_more:
            self._owner.end_turn_later(self)
        else:  # The answers leave now, and what nobody waits for comes after them.
            self.end_turn()
            self._owner.turn_ended()

    def _take(self, nbytes: int) -> None:
        """Have done what these bytes ask for."""
        if self._slow_requests is not None:
            self._slow_requests.read(nbytes)
        frames: Sequence[memoryview | ProtocolViolation]
        try:
            frames = self.frames.buffer_updated(nbytes)
        except ProtocolViolation as violation:
            self._takes_requests = False
            frames = [*violation.frames, violation.with_traceback(None)]  # It may wait for long, and that one holds the buffer.
        self._bytes_waiting += nbytes + REQUEST_BYTES * len(frames)
        if frames:
            self._feed(frames)
        elif self._slow_requests is not None or self.open_count or self._turn_bytes > TURN_BYTES_MAX:
            self._consider_reading()

    def eof_received(self) -> bool:
        """The client sends nothing more. What came before is done and answered all the same, as in Apache Kafka, which reads one request
        after the other and so sees the end last. Whether the client is gone altogether, only an answer can tell.

        TLS ends both directions at once: there only what can be done now is done.
        """
        assert self._transport is not None
        if self._is_finished:
            return True
        self._is_finished = True
        if self._transport.get_extra_info("sslcontext") is None:
            if not self._has_turn:
                self._begin_turn()
            return True
        self._turn_ends_s = math.inf
        self._feed(())
        self.flush()
        return False

    def pause_writing(self) -> None:
        self._congested.add(_TRANSPORT)
        self._consider_reading()

    def resume_writing(self) -> None:
        self._drained(_TRANSPORT)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._transport = self._file_sender = None
        self.frames.close()
        self._set_queued_bytes(0)
        self._owner.disconnected(self)

    # What the server calls ------------------------------------------------------------------------------------------------------------

    @property
    def open_count(self) -> int:
        """How many requests came and are not answered, or done: one without an answer may be waited for, too."""
        return (len(self._open_requests) or int(self._waiting is not None)) + len(self._backlog)

    @property
    def unsent_bytes(self) -> int:
        """Answers that the system has not taken yet, because the client does not read as fast."""
        if self._transport is None:
            return 0
        slow = self._slow_answers.bytes_waiting if self._slow_answers is not None else 0
        file_sender = self._file_sender.bytes_left if self._file_sender is not None else 0
        return self._unsent_bytes + slow + file_sender + self._transport.get_write_buffer_size()

    @property
    def is_reading(self) -> bool:
        """Whether what the client sends is taken at all at the moment."""
        return not (self._is_paused or self._is_finished)

    @property
    def is_finished(self) -> bool:
        """Whether the client sends nothing more, and may be gone."""
        return self._is_finished

    def respond(self, request: ReceivedRequest, message: Message) -> None:
        """Send an answer, unless the connection is closed. Raises StorageError when its records cannot be read; some of it is sent then."""
        if not self._sends:
            return
        if not self._has_turn:
            self._begin_turn()
        if request is self._waiting:
            self._waiting = None
        for part in self.frames.response_parts(request, message):
            self._unsent.append(part)
            self._unsent_bytes += len(part)
            self._has_stretches = self._has_stretches or isinstance(part, FileSlice)
        if self._unsent_bytes > UNSENT_BYTES_MAX or self._has_stretches:
            self.flush()
        elif self._is_paused or self._queued_bytes:
            self._consider_reading()

    def _enter_turn(self) -> None:
        self._has_turn = True
        self._turn_ends_s = perf_counter() + TURN_SECONDS_MAX

    def _begin_turn(self) -> None:
        self._enter_turn()
        self._owner.end_turn_later(self)

    def end_turn(self) -> None:
        """This turn of the loop is over, or has nothing more for this connection."""
        if self._backlog and not self._turn_is_used_up:
            self._turn_ends_s = perf_counter() + TURN_SECONDS_MAX  # It was asked for before others had theirs.
            self._feed(())
        self._has_turn = False
        self._turn_bytes = 0
        self.frames.end_turn()
        self.flush()
        if self._turn_is_used_up:
            self._turn_is_used_up = False
            if not self._has_turn:  # What left has made room at once.
                self._begin_turn()
        elif self._is_finished:
            self._close_if_done()

    def _close_if_done(self) -> None:
        """The client sends nothing more: is all answered, and has all left, or lies with the transport?"""
        slow = self._slow_answers
        if not (self.open_count or _FILES in self._congested or (slow is not None and slow.bytes_waiting)):
            self.close()

    def flush(self) -> None:
        """Give the transport what was answered in this turn of the loop: one system call for many small answers."""
        parts, self._unsent = self._unsent, []
        has_stretches, self._has_stretches = self._has_stretches, False
        self.bytes_answered += self._unsent_bytes
        self._unsent_bytes = 0
        transport, file_sender = self._transport, self._file_sender
        if parts and transport is not None and file_sender is not None and self._sends:
            if self._slow_answers is not None:
                self._slow_answers.add(loaded(parts))
                if self._slow_answers.bytes_waiting > self._unread_bytes_max:
                    self._congested.add(_THROTTLE)
                    self._consider_reading()
            elif has_stretches or _FILES in self._congested:
                self._send_files(file_sender, parts)
            else:
                transport.writelines(cast("list[Buffer]", parts))
            if self._slow_answers is not None or transport.get_write_buffer_size() or file_sender.bytes_left:
                self._owner.output_pending(self)
        if self._is_paused or self._queued_bytes:
            self._consider_reading()

    def _send_files(self, file_sender: FileSender, parts: list[Part]) -> None:
        file_sender.send(parts)
        if file_sender.bytes_left:
            self._congested.add(_FILES)
            self._consider_reading()

    def _send_failed(self, error: Exception) -> None:
        self._owner.send_failed(self, error)

    def skip(self, request: ReceivedRequest) -> None:
        """The request has no answer, and is done."""
        if request is self._waiting:
            self._waiting = None
            if not self._has_turn:
                self._begin_turn()  # At its end what came behind it is begun.
        if self._is_paused or self._queued_bytes:
            self._consider_reading()

    def slow_down(self, bytes_per_second: int, *, answers: bool, requests: bool) -> None:
        """From now on answers leave, or requests are read, at this pace."""
        self.flush()
        if self._transport is None or not self._sends:
            return
        later = asyncio.get_running_loop().call_later
        if answers and self._slow_answers is None:
            self._slow_answers = ThrottledResponses(bytes_per_second, self._transport.writelines, partial(self._drained, _THROTTLE), later)
        if requests and self._slow_requests is None:
            self._slow_requests = ThrottledRequests(bytes_per_second, self._consider_reading, later)

    def stop_taking_requests(self) -> None:
        """The connection is about to be closed: what comes now, or waits, is not done."""
        self._takes_requests = False
        self._backlog.clear()

    def close(self) -> None:
        """Send what was answered, then close; what a slowed connection has not sent is dropped, and what is still read from files: all of
        it would go to memory, for a client that may never come for it."""
        self.stop_taking_requests()
        self.flush()
        is_cut = _FILES in self._congested
        self._end()
        if self._transport is not None:
            (self._transport.abort if is_cut else self._transport.close)()

    def abort(self) -> None:
        """Close at once; what was not sent is dropped."""
        self._end()
        if self._transport is not None:
            self._transport.abort()

    # Inside ---------------------------------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Nothing is done or sent for this connection any more."""
        self.stop_taking_requests()
        self._sends = False
        self._waiting = None
        self._unsent.clear()
        self._unsent_bytes = 0
        for slow in (self._slow_answers, self._slow_requests):
            if slow is not None:
                slow.close()
        self._slow_answers = self._slow_requests = None
        if self._file_sender is not None:
            self._file_sender.drop()

    def _feed(self, frames: Sequence[memoryview | ProtocolViolation]) -> None:
        """Hand requests to the server, in order, while none waits for something, the client reads its answers, and it is its turn."""
        backlog = self._backlog
        backlog.extend(frames)
        self.requests_received += len(frames)
        try:
            while (
                backlog and not (self._congested or self._turn_is_used_up) and self._waiting is None
            ):  # Empty once no more requests are taken.
                frame = backlog.popleft()
                if isinstance(frame, ProtocolViolation):
                    self._owner.violated(self, frame)
                    break
                request = self.frames.request(frame)
                if not self._owner.received(self, request):
                    self._waiting = request
                    self._waiting_memory_bytes = decoded_bytes_max(request, len(frame))
                if backlog and perf_counter() > self._turn_ends_s:
                    self._turn_is_used_up = True
        except ProtocolViolation as violation:
            self._owner.violated(self, violation)
        except Exception as error:  # A request that the broker cannot digest costs its connection, never the broker.
            self._owner.failed(self, error)
            return
        self._consider_reading()

    def _drained(self, what: str) -> None:
        """One of those that held too much has room again."""
        was_congested = what in self._congested  # Else this may come from within `_feed`, whose answers left at once.
        if not self._has_turn and (was_congested or self._is_finished):
            self._begin_turn()  # Who is finished may have been waited for with closing the connection.
        if was_congested:
            self._congested.discard(what)
            self._feed(())

    def _consider_reading(self) -> None:
        waiting = self.open_count
        if waiting == 0:
            self._bytes_waiting = 0
        queued = self._bytes_waiting if self._waiting is None else self._bytes_waiting + self._waiting_memory_bytes
        if self._queued_bytes != queued:
            self._set_queued_bytes(queued)
        must_pause = (
            self._turn_bytes > TURN_BYTES_MAX
            or bool(self._congested)
            or self._turn_is_used_up
            or (
                waiting > 0
                and (
                    waiting > REQUESTS_WAITING_MAX
                    or self._bytes_waiting > BYTES_WAITING_MAX
                    or self._queued.bytes_queued > self._queued.bytes_max
                )
            )
            or (self._slow_requests is not None and self._slow_requests.must_pause)
        )
        if must_pause == self._is_paused or self._is_finished:
            return
        if self._transport is not None and not self._transport.is_closing():
            self._is_paused = must_pause
            if must_pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _set_queued_bytes(self, count: int) -> None:
        self._queued.bytes_queued += count - self._queued_bytes
        self._queued_bytes = count
