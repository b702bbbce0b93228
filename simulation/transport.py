"""Connections of a simulated client: the counterpart of `client/network.py`, over the same `BrokerConnection`, with links in place of
sockets.

Moves bytes between the sans-IO connection and a simulated link; it knows nothing of the Kafka protocol. The owner receives the events of
`client/connections.py`, never inside one of its own calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from chaffinch.client.addresses import Address
from chaffinch.client.connections import BrokerConnection, ConnectionEvent
from chaffinch.protocol.schema import Message
from simulation.network import Link, Network, joined
from simulation.wake_timer import WakeTimer
from simulation.world import World

Notify = Callable[[Sequence[ConnectionEvent]], None]
"""Receives the events of one moment, in order."""


class Connection:
    """One connection and its link, which is made later or never."""

    def __init__(self, transport: Transport, address: Address) -> None:
        self.core = transport.connection(address, client_id=transport.actor, request_timeout_ms=transport.request_timeout_ms)
        self.link: Link | None = None
        self.is_lost = False
        self.timer = WakeTimer(transport.world, f"{transport.actor} to {address}", self._deadline)
        self.unread = bytearray()
        """Bytes that arrived while the owner's reads were suspended or a caller was waiting."""
        self.reads_suspended = False
        """Arriving bytes do not wake the owner."""
        self.caller: Callable[[], None] | None = None
        """Callback of a caller that waits for a response itself; bytes then bypass the owner."""
        self._transport = transport

    def arrived(self, data: bytes) -> None:
        if self.is_lost:
            return
        if self.caller is not None or self.reads_suspended:
            self.unread += data
            if self.caller is not None:
                self.caller()
            return
        self._transport.on_wake()
        self.take_in(data)

    def take_in(self, data: bytes) -> None:
        """Pass bytes to the owner's connection."""
        self._transport.emit(self.core.take(data, self._transport.world.steady_ms))
        assert self.core.violation is None, f"{self._transport.actor}: the simulated broker violated the protocol: {self.core.violation}"
        self._transport.flush(self)

    def finished(self, reason: str) -> None:
        self.closed(reason)

    def closed(self, reason: str) -> None:
        self._transport.on_wake()
        self._transport.lose(self, reason)

    def _deadline(self) -> None:
        self._transport.deadline(self)


class Transport:
    """All connections of one client. After `close` no more events are reported."""

    def __init__(
        self,
        world: World,
        network: Network,
        actor: str,
        notify: Notify,
        *,
        request_timeout_ms: int,
        connect_timeout_ms: int,
        connection: type[BrokerConnection] = BrokerConnection,
        on_wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_wake` is called before bytes are processed."""
        self.on_wake = on_wake
        self.connection = connection
        self.world = world
        self.actor = actor
        self.request_timeout_ms = request_timeout_ms
        self._network = network
        self._notify = notify
        self._connect_timeout_ms = connect_timeout_ms
        self._connections: dict[Address, Connection] = {}
        self._pending_events: list[ConnectionEvent] = []
        self.is_closed = False

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
        """Send a request. Its outcome is reported once, with its token."""
        connection = self._connections.get(address) or self._connect(address)
        steady_ms = self.world.steady_ms
        self.emit(
            connection.core.send(
                message, token, steady_ms, timeout_ms=timeout_ms, version_max=version_max, expects_response=expects_response
            )
        )
        self.flush(connection)

    def lend(self, address: Address) -> Connection | None:
        """Like `Network.lend`."""
        connection = self._connections.get(address)
        return connection if connection is not None and connection.core.is_idle else None

    def take_back(self, address: Address, events: Sequence[ConnectionEvent], *, is_lost: bool) -> None:
        """Like `Network.take_back`."""
        connection = self._connections[address]
        self.emit(events)
        if is_lost:
            self.lose(connection, "the thread that used the connection was interrupted")
        else:
            self.flush(connection)

    def drain(self) -> None:
        """Process the bytes that arrived while reads were suspended."""
        for connection in list(self._connections.values()):
            if connection.unread:
                data, connection.unread = bytes(connection.unread), bytearray()
                connection.take_in(data)

    def disconnect(self, address: Address, reason: str) -> None:
        connection = self._connections.get(address)
        if connection is not None:
            self.lose(connection, reason)

    def close(self) -> None:
        """The client process is gone, with all its state."""
        self.is_closed = True
        self.on_wake = lambda: None  # A connection that is established from now on wakes nothing.
        for connection in list(self._connections.values()):
            self.lose(connection, "the client has ended")

    def emit(self, events: Sequence[ConnectionEvent]) -> None:
        """Report events to the owner after the current action."""
        if events and not self._pending_events:
            self.world.after(0, self._notify_all)
        self._pending_events += events

    def _notify_all(self) -> None:
        events, self._pending_events = self._pending_events, []
        if not self.is_closed:
            self._notify(events)

    def _connect(self, address: Address) -> Connection:
        connection = Connection(self, address)
        self._connections[address] = connection
        self._network.connect(self.actor, address.first_lane, lambda link: self._connected(connection, link))
        connection.timer.set(self.world.steady_ms + self._connect_timeout_ms)
        return connection

    def _connected(self, connection: Connection, link: Link | None) -> None:
        self.on_wake()
        if link is None:
            self.lose(connection, "connection refused")
        elif connection.is_lost:
            link.cut("the client gave up")
        else:
            connection.link = link
            link.to_client.receiver = connection
            # The broker's end is set when this action is over, so write in the next one.
            self.world.after(0, lambda: self._opened(connection))

    def _opened(self, connection: Connection) -> None:
        if not connection.is_lost:
            connection.core.opened(self.world.steady_ms)
            self.flush(connection)

    def flush(self, connection: Connection) -> None:
        """Write pending bytes and update the request timeout."""
        if connection.is_lost:
            return
        if connection.link is not None:
            while connection.core.needs_write:
                data = joined(connection.core.buffers())
                self.emit(connection.core.written(len(data)))
                connection.link.to_broker.send(data)
            connection.timer.set(connection.core.deadline_ms)

    def deadline(self, connection: Connection) -> None:
        """The connection was not established in time, or its first request in flight was not answered in time."""
        self.on_wake()
        if connection.link is None:
            self.lose(connection, "no connection in time")
        elif connection.core.is_stuck(self.world.steady_ms):
            self.world.count("request time-outs")
            self.lose(connection, "no response within the request timeout")

    def lose(self, connection: Connection, reason: str) -> None:
        """Drop the connection: its requests fail."""
        if connection.is_lost:
            return
        connection.is_lost = True
        connection.timer.set(None)
        if self._connections.get(connection.core.address) is connection:
            del self._connections[connection.core.address]
        if connection.link is not None:
            connection.link.close_by_client(reason)
        self.emit(connection.core.lost(reason, steady_ms=self.world.steady_ms))
