"""Broker-side client connection: splits received bytes into requests, sends responses, and limits what may pile up.

Reading pauses while unread responses or waiting requests pile up. A client that does not read, or sends faster than it is served, therefore
holds no more memory than one connection may hold. Waiting requests are kept as received bytes and parsed only when their turn comes, so an
error in one is reported in order, after the responses to the requests before it.

After a client has closed its sending side, its requests are still answered, then the connection is closed. This module knows only frames of
the Kafka protocol; decisions are made by `connection_manager.ConnectionManager`.
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
"""Reading stops beyond this many unanswered requests. More than any client has in flight by default."""

UNSENT_BYTES_MAX: Final = 1 << 18
"""Bytes of responses collected in one event loop turn before they are passed to the transport, so that the transport can apply
backpressure."""

BYTES_WAITING_MAX: Final = 1 << 20
"""The same limit in bytes. It applies only while a request waits for its response: a client that is answered immediately may send any
amount."""

REQUEST_BYTES: Final = 400
"""Approximate memory overhead of one request in addition to its bytes. It is counted because many small requests may wait."""

TURN_BYTES_MAX: Final = 1 << 19
"""Bytes read from one connection in one event loop turn; then its responses are sent and other connections get their turn. uvloop would
keep reading while its buffers fill. About half of what a busy producer has in flight: if all of it were read in one turn, broker and
client would alternately wait for each other."""

TURN_SECONDS_MAX: Final = 0.01
"""Processing time of one connection in one event loop turn; its next requests wait until the other connections had their turn. Otherwise a
client that reads as fast as it is served would be served until it has no more requests. One request is always processed, however long it
takes."""

_TRANSPORT: Final = "transport"
_THROTTLE: Final = "pace"
_FILES: Final = "files"


class Owner(Protocol):
    """Callbacks of a connection to its server."""

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
    """Bytes held by all connections whose first request waits for its response, and their limit.

    The bytes include what the first request takes in parsed form. Beyond the limit these connections are not read until they are answered,
    since further requests would only wait too. All other connections are read.
    """

    __slots__ = ("bytes_max", "bytes_queued")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_queued = 0
        self.bytes_max = bytes_max


class Peer(asyncio.BufferedProtocol):
    """A connected client. `node_id`: the declared node whose listener accepted it.

    `is_known`: the client has logged in, or no login is required. `unread_bytes_max`: no further requests are processed while the client
    has more unread response bytes than this; a single fetch response may exceed it.
    """

    def __init__(
        self, owner: Owner, frames: ServerConnection, connection_id: int, node_id: int, unread_bytes_max: int, queued: QueuedRequestBytes
    ) -> None:
        self.connection_id = connection_id
        self.node_id = node_id
        self.frames = frames
        self.address = "?"
        self.host = ""  # As Kafka shows it in group descriptions.
        self.is_known = True
        self.bytes_received = 0
        self.bytes_answered = 0
        self.requests_received = 0
        self._open_requests = frames.open_requests
        self._owner = owner
        self._unread_bytes_max = unread_bytes_max
        self._transport: asyncio.Transport | None = None
        self._file_sender: FileSender | None = None  # Set while the transport is open.
        self._sends = True
        self._backlog: deque[memoryview | ProtocolViolation] = deque()  # Frames; the last item may be the violation that ended parsing.
        self._bytes_waiting = 0
        self._queued = queued
        self._queued_bytes = 0  # This connection's share of `_queued`.
        self._unsent: list[Part] = []  # Never contains file slices: `respond` sends them immediately.
        self._has_stretches = False
        self._unsent_bytes = 0
        self._turn_bytes = 0  # Bytes read in this event loop turn.
        self._has_turn = False  # `end_turn` is scheduled.
        self._turn_ends_s = 0.0
        self._turn_is_used_up = False  # The time limit of a turn is exceeded.
        self._waiting: ReceivedRequest | None = None  # No later request is started before this one is done.
        self._waiting_memory_bytes = 0  # Memory of the parsed request, in addition to its bytes.
        self._congested: set[str] = set()  # Sources of backpressure: transport, throttle or files.
        self._is_paused = False
        self._takes_requests = True
        self._is_finished = False
        self._slow_answers: ThrottledResponses | None = None
        self._slow_requests: ThrottledRequests | None = None
        # The transport calls the frames directly, without a method in between.
        self.get_buffer = frames.get_buffer  # type: ignore[method-assign, assignment]

    # Called by the transport ----------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses of asyncio.Transport.
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
        elif self._turn_bytes > TURN_BYTES_MAX:  # The bytes are discarded, but they show that the client is alive.
            self._consider_reading()
        if had_turn:
            return
        if self.frames.may_have_more:
            self._owner.end_turn_later(self)
        else:  # Send the responses first; background work comes afterwards.
            self.end_turn()
            self._owner.turn_ended()

    def _take(self, nbytes: int) -> None:
        """Process the requests in the received bytes."""
        if self._slow_requests is not None:
            self._slow_requests.read(nbytes)
        frames: Sequence[memoryview | ProtocolViolation]
        try:
            frames = self.frames.buffer_updated(nbytes)
        except ProtocolViolation as violation:
            self._takes_requests = False
            # It may be queued for a long time, and the traceback would keep the buffer alive.
            frames = [*violation.frames, violation.with_traceback(None)]
        self._bytes_waiting += nbytes + REQUEST_BYTES * len(frames)
        if frames:
            self._feed(frames)
        elif self._slow_requests is not None or self.open_count or self._turn_bytes > TURN_BYTES_MAX:
            self._consider_reading()

    def eof_received(self) -> bool:
        """Half-close: the client sends nothing more. Requests received before are still processed and answered, as in Apache Kafka, which
        reads requests one after the other and therefore notices the end last. Whether the client is gone altogether shows only
        when a response is sent.

        TLS closes both directions at once, so only requests that can be processed immediately are processed.
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

    # Called by the server -------------------------------------------------------------------------------------------------------------

    @property
    def open_count(self) -> int:
        """Number of requests that were received and are not yet answered or completed. Requests without a response count while they
        wait.
        """
        return (len(self._open_requests) or int(self._waiting is not None)) + len(self._backlog)

    @property
    def unsent_bytes(self) -> int:
        """Bytes of responses that the operating system has not accepted yet because the client reads too slowly."""
        if self._transport is None:
            return 0
        slow = self._slow_answers.bytes_waiting if self._slow_answers is not None else 0
        file_sender = self._file_sender.bytes_left if self._file_sender is not None else 0
        return self._unsent_bytes + slow + file_sender + self._transport.get_write_buffer_size()

    @property
    def is_reading(self) -> bool:
        """Whether data from the client is being read at the moment."""
        return not (self._is_paused or self._is_finished)

    @property
    def is_finished(self) -> bool:
        """Whether the client has closed its sending side; it may be gone."""
        return self._is_finished

    def respond(self, request: ReceivedRequest, message: Message) -> None:
        """Send a response, unless the connection is closed.

        Raises StorageError if its records cannot be read; part of the response may already be sent.
        """
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
        """End the event loop turn of this connection: send its responses, and process queued requests if there is time."""
        if self._backlog and not self._turn_is_used_up:
            self._turn_ends_s = perf_counter() + TURN_SECONDS_MAX  # It was scheduled before the other connections had their turn.
            self._feed(())
        self._has_turn = False
        self._turn_bytes = 0
        self.frames.end_turn()
        self.flush()
        if self._turn_is_used_up:
            self._turn_is_used_up = False
            if not self._has_turn:  # Sending has not freed capacity already.
                self._begin_turn()
        elif self._is_finished:
            self._close_if_done()

    def _close_if_done(self) -> None:
        """After a half-close: close the connection if every request is answered and every response is sent or in the transport."""
        slow = self._slow_answers
        if not (self.open_count or _FILES in self._congested or (slow is not None and slow.bytes_waiting)):
            self.close()

    def flush(self) -> None:
        """Pass the responses of this turn to the transport: one system call for many small responses."""
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
        """Complete a request that has no response."""
        if request is self._waiting:
            self._waiting = None
            if not self._has_turn:
                self._begin_turn()  # The end of the turn starts the requests behind it.
        if self._is_paused or self._queued_bytes:
            self._consider_reading()

    def slow_down(self, bytes_per_second: int, *, answers: bool, requests: bool) -> None:
        """Throttle responses, requests or both to this rate."""
        self.flush()
        if self._transport is None or not self._sends:
            return
        later = asyncio.get_running_loop().call_later
        if answers and self._slow_answers is None:
            self._slow_answers = ThrottledResponses(bytes_per_second, self._transport.writelines, partial(self._drained, _THROTTLE), later)
        if requests and self._slow_requests is None:
            self._slow_requests = ThrottledRequests(bytes_per_second, self._consider_reading, later)

    def stop_taking_requests(self) -> None:
        """Discard queued and future requests: the connection is about to be closed."""
        self._takes_requests = False
        self._backlog.clear()

    def close(self) -> None:
        """Send completed responses, then close. Responses held back by throttling or still being read from files are dropped: buffering
        them could fill the memory for a client that never reads them.
        """
        self.stop_taking_requests()
        self.flush()
        is_cut = _FILES in self._congested
        self._end()
        if self._transport is not None:
            (self._transport.abort if is_cut else self._transport.close)()

    def abort(self) -> None:
        """Close immediately; unsent responses are dropped."""
        self._end()
        if self._transport is not None:
            self._transport.abort()

    # Internal -------------------------------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Stop all processing and sending for this connection."""
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
        """Pass requests to the server in order, as long as none waits, the client reads its responses, and the turn has time left."""
        backlog = self._backlog
        backlog.extend(frames)
        self.requests_received += len(frames)
        try:
            while (
                backlog and not (self._congested or self._turn_is_used_up) and self._waiting is None
            ):  # Empty once requests are no longer accepted.
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
        except Exception as error:  # A request that makes the broker fail closes its connection, never the broker.
            self._owner.failed(self, error)
            return
        self._consider_reading()

    def _drained(self, what: str) -> None:
        """One source of backpressure has capacity again."""
        was_congested = what in self._congested  # Otherwise `_feed` may be the caller, whose responses were sent immediately.
        if not self._has_turn and (was_congested or self._is_finished):
            self._begin_turn()  # Closing a half-closed connection may have waited for this.
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
