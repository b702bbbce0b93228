"""A client's connections in the simulated world: what `client/network.py` is to sockets, over the same `BrokerConnection`.

Moves bytes between the sans-IO half of a connection and a simulated link, and knows nothing of Kafka. What happened is told to the owner in
the words of `client/connections.py`, never inside the owner's own call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chaffinch.client.addresses import Address
from chaffinch.client.connections import BrokerConnection, ConnectionEvent
from chaffinch.protocol.schema import Message
from chaffinch.simulation.network import Link, Network, joined
from chaffinch.simulation.world import Timer, World

Tell = Callable[[ConnectionEvent], None]


class _Connection:
    """One connection and its link, which comes later, or never."""

    def __init__(self, transport: Transport, address: Address) -> None:
        self.core = transport.connection(address, client_id=transport.who, request_timeout_ms=transport.request_timeout_ms)
        self.link: Link | None = None
        self.is_lost = False
        self.timer: Timer | None = None
        self._transport = transport

    def arrived(self, data: bytes) -> None:
        if self.is_lost:
            return
        world = self._transport.world
        view = memoryview(data)
        while view and not self.is_lost:
            buffer = self.core.get_buffer()
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            view = view[count:]
            for event in self.core.received(count, world.now_ms):
                self._transport.happened(event)
            if self.core.violation is not None:
                self._transport.lose(self, self.core.violation)
        self._transport.flush(self)

    def closed(self, reason: str) -> None:
        self._transport.lose(self, reason)


class Transport:
    """All connections of one client. `tell` hears what happened, in order. Once closed, nothing is told any more."""

    def __init__(
        self,
        world: World,
        network: Network,
        who: str,
        tell: Tell,
        *,
        request_timeout_ms: int,
        connect_timeout_ms: int,
        connection: type[BrokerConnection] = BrokerConnection,
    ) -> None:
        self.connection = connection
        self.world = world
        self.who = who
        self.request_timeout_ms = request_timeout_ms
        self._network = network
        self._tell = tell
        self._connect_timeout_ms = connect_timeout_ms
        self._connections: dict[Address, _Connection] = {}
        self._is_closed = False

    def send(
        self,
        address: Address,
        message: Message,
        token: Any,
        *,
        timeout_ms: int | None = None,
        version_max: int | None = None,
        expects_answer: bool = True,
    ) -> None:
        """Hand over a request. Its outcome is told once, with its token."""
        connection = self._connections.get(address) or self._connect(address)
        for event in connection.core.send(
            message, token, self.world.now_ms, timeout_ms=timeout_ms, version_max=version_max, expects_answer=expects_answer
        ):
            self.happened(event)
        self.flush(connection)

    def disconnect(self, address: Address, reason: str) -> None:
        connection = self._connections.get(address)
        if connection is not None:
            self.lose(connection, reason)

    def close(self) -> None:
        """The client is gone, with everything it knew."""
        self._is_closed = True
        for connection in list(self._connections.values()):
            self.lose(connection, "the client has ended")

    def happened(self, event: ConnectionEvent) -> None:
        """Tell the owner, after what is being done now."""
        self.world.after(0, lambda: None if self._is_closed else self._tell(event))

    def _connect(self, address: Address) -> _Connection:
        connection = _Connection(self, address)
        self._connections[address] = connection
        self._network.connect(self.who, address._replace(lane=0), lambda link: self._connected(connection, link))
        connection.timer = self.world.after(
            self._connect_timeout_ms, lambda: self.lose(connection, "no connection in time") if connection.link is None else None
        )
        return connection

    def _connected(self, connection: _Connection, link: Link | None) -> None:
        if link is None:
            self.lose(connection, "connection refused")
        elif connection.is_lost:
            link.cut("the client gave up")
        else:
            connection.link = link
            link.to_client.receiver = connection
            # The broker's end is set when this action is over: write in the next.
            self.world.after(0, lambda: self._opened(connection))

    def _opened(self, connection: _Connection) -> None:
        if not connection.is_lost:
            connection.core.opened(self.world.now_ms)
            self.flush(connection)

    def flush(self, connection: _Connection) -> None:
        """Write what wants to be written, and see to the time-outs."""
        if connection.is_lost:
            return
        if connection.link is not None:
            while connection.core.wants_write:
                data = joined(connection.core.buffers())
                for event in connection.core.written(len(data)):
                    self.happened(event)
                connection.link.to_broker.send(data)
            self._watch(connection)

    def _watch(self, connection: _Connection) -> None:
        """One timer per connection, at its first deadline; it looks again when it was early."""
        if connection.timer is not None:
            connection.timer.cancel()
        deadline_ms = connection.core.deadline_ms
        connection.timer = None if deadline_ms is None else self.world.at(deadline_ms, lambda: self._deadline(connection))

    def _deadline(self, connection: _Connection) -> None:
        if connection.core.is_stuck(self.world.now_ms):
            self.world.count("request time-outs")
            self.lose(connection, "no answer within the request time-out")

    def lose(self, connection: _Connection, reason: str) -> None:
        """The connection is of no use any more: its requests fail."""
        if connection.is_lost:
            return
        connection.is_lost = True
        if connection.timer is not None:
            connection.timer.cancel()
        if self._connections.get(connection.core.address) is connection:
            del self._connections[connection.core.address]
        if connection.link is not None:
            connection.link.close_by_client(reason)
        for event in connection.core.lost(reason, now_ms=self.world.now_ms):
            self.happened(event)
