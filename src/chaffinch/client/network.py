"""The sockets of a client: one selector, one connection per address, driven by the one thread that calls `poll`.

The shell around `connections.py`: it moves bytes, and knows nothing of Kafka. Received bytes go straight into the buffers that the
protocol can_lend; requests leave as lists of buffers in one system call, without being joined.
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
from typing import TYPE_CHECKING, Any, Final

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

# How often one connection may read before the others get their turn.
READS_PER_TURN_MAX: Final = 16
# Options may ask for waits of 292 million years, and no system's call takes much more than 24 days. Who waits longer asks again.
WAIT_MS_MAX: Final = 3_600_000


@dataclass(slots=True)
class _Transport:
    """A connection and its socket. `alternatives`: further socket addresses of the name, to try if this one fails.

    `advance` is what to do when the socket is ready: finish connecting, shake hands, move bytes.
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
    """The socket again, if it speaks TLS."""


class Network:
    """Connections by address, made when first used. Everything but `wakeup` and `lend` belongs to one thread."""

    def __init__(self, settings: ConnectionSettings, *, clock: Clock | None = None, rng: Rng | None = None) -> None:
        self._settings = settings
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
        """Both are made before the first connection is lent."""
        self.on_awake: Callable[[], None] | None = None
        """Called by `poll` when it has slept, before it touches any connection: who has lent one takes it back then."""
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
        """Hand over a request. `token` comes back with its outcome from `poll`, exactly once, whatever happens."""
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
        """`send`, as a core asked for it."""
        self.send(
            request.address,
            request.message,
            request.token,
            timeout_ms=request.timeout_ms,
            version_max=request.version_max,
            expects_response=request.expects_response,
        )

    def poll(self, timeout_ms: int, *, is_awaited: bool = False) -> list[ConnectionEvent]:
        """Move bytes and wait up to `timeout_ms`, at most an hour, until something has happened; what did.

        `is_awaited`: somebody waits for an answer that is on its way; the thread does not fall asleep at once."""
        check_at_ms = self._next_check_ms()
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
        # What the events above brought has deadlines of its own, later than those.
        if check_at_ms is not None and self._clock.steady_ms() >= check_at_ms:
            self._check_deadlines()
        events, self._events = self._events, []
        return events

    def wakeup(self) -> None:
        """Let `poll` return soon; from any thread."""
        self._waker.wake()

    def in_flight_count(self, address: Address) -> int:
        """Requests handed over to this address and not done yet."""
        transport = self._transports.get(address)
        return 0 if transport is None else transport.connection.in_flight_count

    def is_connected(self, address: Address) -> bool:
        """Whether a connection to this address is open and its versions are negotiated."""
        transport = self._transports.get(address)
        return transport is not None and transport.connection.is_negotiated

    def lend(self, address: Address) -> tuple[BrokerConnection, InlineSocket] | None:
        """The idle connection to an address, for exchanges of other threads while this one sleeps in `poll`; called by those threads.

        None if there is no idle one, or it cannot be lent: with TLS, with a login that ends, or on a system without epoll. The socket is a
        new object each time, because the thread that used the last one may still be waking up."""
        transport = self._transports.get(address)
        if self._epoll is None or self._event_fd is None or transport is None or not transport.connection.is_idle:
            return None
        return transport.connection, InlineSocket(transport.opened, self._epoll, self._event_fd)

    def prepare_to_lend(self) -> None:
        """Make what `lend` needs, if that is possible and file descriptors are left."""
        if self._epoll is None and self.can_lend:
            with contextlib.suppress(OSError):
                self._event_fd = EventFd()
                self._epoll = sockets.epoll_of(self._selector)

    @property
    def can_lend(self) -> bool:
        """Whether connections may be lent at all."""
        return self._tls is None and InlineSocket.IS_SUPPORTED

    def note_traffic(self, addresses: Iterable[Address]) -> None:
        """Connections that were lent are not idle: requests went over them, and answers came."""
        steady_ms = self._clock.steady_ms()
        for address in addresses:
            self._transports[address].active_ms = steady_ms

    def take_back(self, address: Address, events: Iterable[ConnectionEvent], *, is_lost: bool) -> None:
        """Use a connection again that was lent, and has adopted a request meanwhile. `events`: those of that request so far. `is_lost`: it
        has to be closed."""
        transport = self._transports[address]
        transport.active_ms = self._clock.steady_ms()
        self._events += events
        if is_lost:
            self._lose(transport, "who used the connection was interrupted")
        else:
            self._guarded(transport, self._write)

    def disconnect(self, address: Address, reason: str) -> None:
        """Close the connection to an address, if there is one; its requests fail in the next `poll`."""
        transport = self._transports.get(address)
        if transport is not None:
            self._lose(transport, reason)

    def reset_connections(self) -> None:
        """Close every connection, in whatever state `send` or `poll` has left it when Ctrl-C came; what was under way is forgotten."""
        self._close_connections()
        self._events = []
        self._selector = self._new_selector()

    def close(self) -> None:
        """Close everything, or what an interrupted call of this has left. Requests still in flight are forgotten: who closes has settled
        them before."""
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

    def _next_check_ms(self) -> int | None:
        """When the first connection has to be looked at: its set-up or an answer takes too long, or nobody has used it."""
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
        """When the connection has had no traffic for too long; None while there is some, or no limit."""
        if self._settings.idle_ms_max < 0 or not transport.is_open or transport.connection.in_flight_count:
            return None
        return transport.active_ms + self._settings.idle_ms_max

    def _drop_if_idle(self, address: Address, steady_ms: int) -> None:
        """Close without a word, nobody waits for it: before the broker does, who would just then be sent something."""
        transport = self._transports.get(address)
        if transport is not None and (deadline_ms := self._idle_deadline_ms(transport)) is not None and deadline_ms <= steady_ms:
            self._forget(transport)

    def _connect(self, address: Address, steady_ms: int) -> _Transport:
        settings = self._settings
        connection = BrokerConnection(
            address, client_id=settings.client_id, request_timeout_ms=settings.request_timeout_ms, make_login=self._make_login
        )
        found, failures = sockets.resolve(address.host, address.port), self._setup_failures[address]
        # Not the same one first again: it may have said nothing at all, and used up the time for those behind it.
        first = failures % max(1, len(found))
        opened, alternatives = self._open_first(found[first:] + found[:first])
        setup_ms = settings.setup_backoff.wait_ms(failures + 1, self._rng)
        transport = _Transport(connection, opened, steady_ms + setup_ms, self._finish_connecting, alternatives)
        self._transports[address] = transport
        self._register(transport)
        return transport

    def _open_first(self, candidates: list[tuple[int, Any]]) -> tuple[socket.socket, list[tuple[int, Any]]]:
        """A socket connecting to the first candidate that does not refuse at once, and the candidates after it."""
        failure = SocketFailed("name not known: it has no address")
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
        """Run one step of a connection; its failure is an event, not an exception."""
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
        # With TLS 1.3 a broker looks at our certificate when for us the handshake is done already.
        if failure.is_refusal and not transport.connection.is_negotiated:
            address, given = transport.connection.address, self._settings.given_addresses
            is_advertised = bool(given) and address.first_lane not in given
            hint = "; this address was told by the broker (advertised), not given in bootstrap.servers" if is_advertised else ""
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
        if transport.connection.needs_write:  # What was read may have led to it.
            self._write(transport)

    def _read(self, transport: _Transport) -> None:
        reads = 0
        # What TLS has unpacked already makes no socket readable again.
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
        """Give up what takes too long, and close what nobody uses."""
        steady_ms = self._clock.steady_ms()
        for address, transport in list(self._transports.items()):
            if not transport.is_open and transport.setup_deadline_ms <= steady_ms:
                self._lose(transport, "no connection within socket.connection.setup.timeout.ms")
            elif transport.connection.is_stuck(steady_ms):
                self._lose(transport, "no answer within the request time-out")
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
        with contextlib.suppress(KeyError, ValueError):  # Never registered, or its number is gone with the socket.
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
