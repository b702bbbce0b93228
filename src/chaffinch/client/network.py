"""Sockets of a client: one selector, one connection per address, driven by the one thread that calls `poll`.

The shell of `connections.py`: it moves bytes and knows nothing of Kafka. Received bytes go directly into the buffers that the protocol
lends. Requests are written as lists of buffers in one system call, without being joined.
"""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from chaffinch.client.addresses import Address
from chaffinch.client.backoff import Rng
from chaffinch.client.busy_poll import BusyPoll
from chaffinch.client.connections import BrokerConnection, ConnectionEvent, Disconnected, RequestFailed
from chaffinch.client.effects import SendRequest
from chaffinch.client.options import ConnectionSettings
from chaffinch.errors import AuthenticationException, SslAuthenticationException
from chaffinch.protocol.schema import Message
from chaffinch.runtime import sockets
from chaffinch.runtime.clock import Clock, SystemClock
from chaffinch.runtime.sockets import EventFd, InlineSocket, SocketFailed, Waker

if TYPE_CHECKING:
    import select
    import ssl

    from chaffinch.client.authentication import Credentials, Login
    from chaffinch.runtime.tls import ClientTls, TlsSettings

# Number of reads of one connection before the other connections are served.
READS_PER_TURN_MAX: Final = 16
# Options allow waits of 292 million years, system calls not much more than 24 days. For a longer wait `poll` is called repeatedly.
WAIT_MS_MAX: Final = 3_600_000


@dataclass(slots=True)
class _Transport:
    """A connection and its socket. `alternatives`: other socket addresses of the host name, to try if this one fails.

    `advance` is the next step when the socket is ready: finish connecting, continue the TLS handshake, or move bytes.
    """

    connection: BrokerConnection
    opened: socket.socket
    setup_deadline_ms: int
    advance: Callable[[_Transport, int], None]
    alternatives: list[tuple[int, Any]] = field(default_factory=list)
    is_open: bool = False
    active_ms: int = 0
    interest: int = 0
    send: Callable[[Any, Sequence[memoryview]], int] = sockets.send_some
    receive: Callable[[Any, memoryview], int | None] = sockets.receive_some
    tls: ssl.SSLSocket | None = None
    """`opened`, if it uses TLS."""


Resolve: TypeAlias = Callable[[str, int], list[tuple[int, Any]]]


class Network:
    """Connections by address, made at first use. All methods except `wakeup` and `lend` are called by one thread."""

    def __init__(
        self, settings: ConnectionSettings, *, clock: Clock | None = None, rng: Rng | None = None, resolve: Resolve = sockets.resolve
    ) -> None:
        """`resolve`: returns the socket addresses of a host name and port; raises SocketFailed."""
        self._settings = settings
        self._resolve = resolve
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._setup_failures: Counter[Address] = Counter()
        self._tls = _tls_of(settings.security.tls)
        self._make_login = _login_of(settings.security.credentials)
        self._transports: dict[Address, _Transport] = {}
        self._waker = Waker()
        self._selector = self._new_selector()
        self._busy_poll = BusyPoll()
        self._epoll: select.epoll | None = None
        self._event_fd: EventFd | None = None
        """Both are created before the first connection is lent."""
        self.on_awake: Callable[[], None] | None = None
        """Called by `poll` after its wait, before it uses any connection: the owner takes back lent connections."""
        self._events: list[ConnectionEvent] = []

    def send(
        self,
        address: Address,
        message: Message,
        token: Any,
        *,
        timeout_ms: int | None = None,
        version_max: int | None = None,
        expects_response: bool = True,
    ) -> None:
        """Send a request. `poll` returns exactly one event with its `token`."""
        steady_ms = self._clock.steady_ms()
        self._drop_if_idle(address, steady_ms)
        try:
            transport = self._transports.get(address) or self._connect(address, steady_ms)
        except SocketFailed as failure:
            self._events.append(RequestFailed(address=address, token=token, reason=str(failure), was_sent=False))
            self._events.append(Disconnected(address=address, reason=str(failure)))
            return
        self._events += transport.connection.send(
            message, token, steady_ms, timeout_ms=timeout_ms, version_max=version_max, expects_response=expects_response
        )
        transport.active_ms = steady_ms
        if transport.is_open:
            self._guarded(transport, self._write)

    def carry_out(self, request: SendRequest) -> None:
        """Execute a core's `SendRequest`."""
        self.send(
            request.address,
            request.message,
            request.token,
            timeout_ms=request.timeout_ms,
            version_max=request.version_max,
            expects_response=request.expects_response,
        )

    def poll(self, timeout_ms: int, *, is_awaited: bool = False) -> list[ConnectionEvent]:
        """Move bytes, and wait for events up to `timeout_ms`, at most an hour. Returns the events.

        `is_awaited`: a caller waits for a response that is due, so the thread polls briefly before it sleeps.
        """
        check_at_ms = self.next_check_ms()
        wait_ms = 0 if self._events else min(timeout_ms, WAIT_MS_MAX)
        if check_at_ms is not None and wait_ms:
            wait_ms = min(wait_ms, max(0, check_at_ms - self._clock.steady_ms()))
        ready = self._busy_poll.poll(self._ready_now) if is_awaited and wait_ms != 0 else []
        ready = ready or self._selector.select(wait_ms / 1000)
        if self.on_awake is not None:
            self.on_awake()
        for key, mask in ready:
            transport: _Transport | None = key.data
            if transport is None:
                self._waker.drain()
                continue
            self._guarded(transport, transport.advance, mask)
        # Requests sent because of the events above have later deadlines.
        if check_at_ms is not None and self._clock.steady_ms() >= check_at_ms:
            self._check_deadlines()
        events, self._events = self._events, []
        return events

    def wakeup(self) -> None:
        """Make `poll` return soon. Called from any thread."""
        self._waker.wake()

    def fileno(self) -> int:
        """A file descriptor that is readable when `poll` has something to do; it changes with `reset_connections`."""
        return int(self._selector.fileno())  # type: ignore[attr-defined]  # Selectors with epoll or kqueue have one.

    @property
    def has_events(self) -> bool:
        """Whether the next `poll` returns at once with events."""
        return bool(self._events)

    def has_connection(self, address: Address) -> bool:
        """Whether a request to this address uses an existing connection, perhaps one that is being opened."""
        self._drop_if_idle(address, self._clock.steady_ms())
        return address in self._transports

    def in_flight_count(self, address: Address) -> int:
        """Requests to this address without an outcome."""
        transport = self._transports.get(address)
        return 0 if transport is None else transport.connection.in_flight_count

    def is_connected(self, address: Address) -> bool:
        """Whether a connection to this address is ready for requests."""
        transport = self._transports.get(address)
        return transport is not None and transport.connection.is_negotiated

    def lend(self, address: Address) -> tuple[BrokerConnection, InlineSocket] | None:
        """Lend the idle connection to an address to another thread while this one sleeps in `poll`. Called by the other thread.

        None if there is no idle connection, or it cannot be lent: with TLS, with a login that expires, or on a system without epoll. The
        socket is a new object for each call, because the thread that used the previous one may still be waking up.
        """
        transport = self._transports.get(address)
        if self._epoll is None or self._event_fd is None or transport is None or not transport.connection.is_idle:
            return None
        return transport.connection, InlineSocket(transport.opened, self._epoll, self._event_fd)

    def prepare_to_lend(self) -> None:
        """Create the resources of `lend`, if the system supports it and file descriptors are available."""
        if self._epoll is None and self.can_lend:
            with contextlib.suppress(OSError):
                self._event_fd = EventFd()
                self._epoll = sockets.epoll_of(self._selector)

    @property
    def can_lend(self) -> bool:
        """Whether connections can be lent."""
        return self._tls is None and InlineSocket.IS_SUPPORTED

    def note_traffic(self, addresses: Iterable[Address]) -> None:
        """Lent connections had traffic: they do not count as idle."""
        steady_ms = self._clock.steady_ms()
        for address in addresses:
            self._transports[address].active_ms = steady_ms

    def take_back(self, address: Address, events: Iterable[ConnectionEvent], *, is_lost: bool) -> None:
        """Take back a lent connection that has adopted a request. `events`: the request's events so far.

        `is_lost`: the connection must be closed.
        """
        transport = self._transports[address]
        transport.active_ms = self._clock.steady_ms()
        self._events += events
        if is_lost:
            self._lose(transport, "the thread that used the connection was interrupted")
        else:
            self._guarded(transport, self._write)

    def disconnect(self, address: Address, reason: str) -> None:
        """Close the connection to an address, if there is one. The next `poll` returns its requests as failed."""
        transport = self._transports.get(address)
        if transport is not None:
            self._lose(transport, reason)

    def reset_connections(self) -> None:
        """Close all connections and drop their requests, in whatever state Ctrl-C within `send` or `poll` has left them."""
        self._close_connections()
        self._events = []
        self._selector = self._new_selector()

    def close(self) -> None:
        """Close all connections; continues an earlier call that was interrupted. Requests in flight are dropped without an event."""
        self._close_connections()
        self._waker.close()

    def _new_selector(self) -> selectors.BaseSelector:
        selector = selectors.DefaultSelector()
        selector.register(self._waker.fileno(), selectors.EVENT_READ, None)
        return selector

    def _close_connections(self) -> None:
        for transport in self._transports.values():
            sockets.close_quietly(transport.opened)
        self._transports.clear()
        self._selector.close()
        for lent in (self._epoll, self._event_fd):
            if lent is not None:
                lent.close()
        self._epoll = self._event_fd = None

    def _ready_now(self) -> list[tuple[selectors.SelectorKey, int]]:
        return self._selector.select(0)

    def next_check_ms(self) -> int | None:
        """The earliest deadline of a connection: of its set-up, of a response, or of the idle limit."""
        found = None
        for transport in self._transports.values():
            deadline_ms = transport.connection.deadline_ms
            for at_ms in (
                self._idle_deadline_ms(transport) if deadline_ms is None else deadline_ms,
                None if transport.is_open else transport.setup_deadline_ms,
            ):
                if at_ms is not None and (found is None or at_ms < found):
                    found = at_ms
        return found

    def _idle_deadline_ms(self, transport: _Transport) -> int | None:
        """When the connection exceeds the idle limit; None while requests are in flight, or without a limit."""
        if self._settings.idle_ms_max < 0 or not transport.is_open or transport.connection.in_flight_count:
            return None
        return transport.active_ms + self._settings.idle_ms_max

    def _drop_if_idle(self, address: Address, steady_ms: int) -> None:
        """Close an idle connection, before the broker closes it just when a request is sent. No event: no request depends on it."""
        transport = self._transports.get(address)
        if transport is not None and (deadline_ms := self._idle_deadline_ms(transport)) is not None and deadline_ms <= steady_ms:
            self._forget(transport)

    def _connect(self, address: Address, steady_ms: int) -> _Transport:
        settings = self._settings
        connection = BrokerConnection(
            address, client_id=settings.client_id, request_timeout_ms=settings.request_timeout_ms, make_login=self._make_login
        )
        found, failures = self._resolve(address.host, address.port), self._setup_failures[address]
        # Start with another socket address each time: a silent one uses up the time for those after it.
        first = failures % max(1, len(found))
        opened, alternatives = self._open_first(found[first:] + found[:first])
        setup_ms = settings.setup_backoff.wait_ms(failures + 1, self._rng)
        transport = _Transport(connection, opened, steady_ms + setup_ms, self._finish_connecting, alternatives)
        self._transports[address] = transport
        self._register(transport)
        return transport

    def _open_first(self, candidates: list[tuple[int, Any]]) -> tuple[socket.socket, list[tuple[int, Any]]]:
        """A socket that connects to the first candidate without an immediate error, and the candidates after it."""
        failure = SocketFailed("unknown host name: it has no address")
        buffers = self._settings.send_buffer_bytes, self._settings.receive_buffer_bytes
        for index, (family, address) in enumerate(candidates):
            try:
                return sockets.open_connecting(family, address, *buffers), candidates[index + 1 :]
            except SocketFailed as refused:
                failure = refused
        raise failure

    def _register(self, transport: _Transport) -> None:
        transport.interest = selectors.EVENT_WRITE
        self._selector.register(transport.opened, selectors.EVENT_WRITE, transport)

    def _set_interest(self, transport: _Transport, events: int) -> None:
        if transport.interest != events:
            transport.interest = events
            self._selector.modify(transport.opened, events, transport)

    def _guarded(self, transport: _Transport, step: Callable[..., None], *arguments: Any) -> None:
        """Run one step of a connection. A failure becomes an event instead of an exception."""
        try:
            step(transport, *arguments)
        except SocketFailed as failure:
            error = self._refusal(transport, failure)
            self._lose(transport, str(failure) if error is None else error.message, error)
        else:
            connection = transport.connection
            if connection.refusal is not None:
                self._lose(transport, connection.refusal.message, connection.refusal)
            elif connection.violation is not None:
                self._lose(transport, connection.violation)

    def _refusal(self, transport: _Transport, failure: SocketFailed) -> AuthenticationException | None:
        # With TLS 1.3 the broker checks the client's certificate after the client has completed the handshake.
        if failure.is_refusal and not transport.connection.is_negotiated:
            address, given = transport.connection.address, self._settings.given_addresses
            is_advertised = bool(given) and address.first_lane not in given
            hint = "; brokers advertise this address, it is not in bootstrap.servers" if is_advertised else ""
            return SslAuthenticationException(f"{address}: {failure}{hint}")
        return None

    def _finish_connecting(self, transport: _Transport, _mask: int) -> None:
        try:
            sockets.connect_outcome(transport.opened)
        except SocketFailed:
            if not transport.alternatives:
                raise
            self._selector.unregister(transport.opened)
            sockets.close_quietly(transport.opened)
            transport.opened, transport.alternatives = self._open_first(transport.alternatives)
            self._register(transport)
            return
        if self._tls is None:
            self._opened(transport)
        else:
            self._selector.unregister(transport.opened)
            transport.opened = transport.tls = self._tls.wrap(transport.opened, transport.connection.address.host)
            transport.send, transport.receive = self._tls.send_some, self._tls.receive_some
            transport.advance = self._shake_hands
            self._register(transport)

    def _shake_hands(self, transport: _Transport, _mask: int) -> None:
        assert self._tls is not None
        assert transport.tls is not None
        interest = self._tls.continue_handshake(transport.tls)
        if interest:
            self._set_interest(transport, interest)
        else:
            self._opened(transport)

    def _opened(self, transport: _Transport) -> None:
        steady_ms = self._clock.steady_ms()
        transport.is_open = True
        transport.advance = self._advance
        transport.active_ms = steady_ms
        self._setup_failures.pop(transport.connection.address, None)
        transport.connection.opened(steady_ms)
        self._write(transport)

    def _advance(self, transport: _Transport, mask: int) -> None:
        transport.active_ms = self._clock.steady_ms()
        if mask & selectors.EVENT_READ:
            self._read(transport)
        if transport.connection.needs_write:  # Responses just read may have queued requests.
            self._write(transport)

    def _read(self, transport: _Transport) -> None:
        reads = 0
        # Bytes that TLS has decrypted already do not make the socket readable again.
        while reads < READS_PER_TURN_MAX or (transport.tls is not None and transport.tls.pending()):
            reads += 1
            buffer = transport.connection.get_buffer()
            count = transport.receive(transport.opened, buffer)
            if count is None:
                return
            self._events += transport.connection.received(count, transport.active_ms)
            if transport.connection.is_unusable or (count < len(buffer) and transport.tls is None):
                return

    def _write(self, transport: _Transport) -> None:
        connection, interest = transport.connection, selectors.EVENT_READ
        while connection.needs_write:
            count = transport.send(transport.opened, connection.buffers())
            if not count:
                interest |= selectors.EVENT_WRITE
                break
            self._events += connection.written(count)
        self._set_interest(transport, interest)

    def _check_deadlines(self) -> None:
        """Close connections that exceed a timeout or the idle limit."""
        steady_ms = self._clock.steady_ms()
        for address, transport in list(self._transports.items()):
            if not transport.is_open and transport.setup_deadline_ms <= steady_ms:
                self._lose(transport, "no connection within socket.connection.setup.timeout.ms")
            elif transport.connection.is_stuck(steady_ms):
                self._lose(transport, "no response within the request timeout")
            else:
                self._drop_if_idle(address, steady_ms)

    def _lose(self, transport: _Transport, reason: str, error: AuthenticationException | None = None) -> None:
        address = transport.connection.address
        if self._transports.get(address) is not transport:
            return
        if not transport.is_open:
            self._setup_failures[address] += 1
        self._forget(transport)
        self._events += transport.connection.lost(reason, steady_ms=self._clock.steady_ms(), error=error)

    def _forget(self, transport: _Transport) -> None:
        del self._transports[transport.connection.address]
        with contextlib.suppress(KeyError, ValueError):  # Never registered, or the socket is closed.
            self._selector.unregister(transport.opened)
        sockets.close_quietly(transport.opened)


def _tls_of(settings: TlsSettings | None) -> ClientTls | None:
    """Raises ConfigException for files that cannot be read."""
    if settings is None:
        return None
    from chaffinch.runtime.tls import ClientTls  # OpenSSL is loaded only where it is used.

    return ClientTls(settings)


def _login_of(credentials: Credentials | None) -> Callable[[], Login] | None:
    if credentials is None:
        return None
    from chaffinch.client.authentication import Login

    return partial(Login, credentials, random.SystemRandom())
