"""A connection at rest, lent to threads other than the one that polls: one request and its answer, past all that serves many.

The thread that polls sleeps meanwhile, and leaves the connection alone; whoever borrows it and that thread agree by a lock of theirs, with
which everything here is called but `wait`. The moment that thread wakes up it takes the connection back (`Network.take_back`).
"""

from __future__ import annotations

import select
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chaffinch.client.busy_poll import BusyPoll
from chaffinch.client.connections import BrokerConnection, ConnectionEvent
from chaffinch.client.effects import SendRequest
from chaffinch.runtime.sockets import Bell, Ears

if TYPE_CHECKING:
    import socket

# A plain answer about one partition has about a hundred bytes. Of a longer one the rest is read by who polls.
ANSWER_BYTES_MAX: Final = 512


@dataclass(slots=True, eq=False)
class Borrowed:
    """One use of a lent connection: a request that was written to it."""

    lent: LentConnection
    frame: bytes
    correlation_id: int
    version: int
    sent_ms: int
    written: int | None = None
    """How many bytes of the frame have gone; None: nobody knows."""
    received: bytes = b""
    """What has come, and is not plain."""
    is_tried: bool = False
    """Somebody has looked for the answer: it is who polls who reads on."""
    is_reading: bool = False
    """Bytes may have been read that are nowhere."""
    is_awaited: bool = False
    """A thread waits for the answer itself."""

    @property
    def is_unclear(self) -> bool:
        """Nobody knows how much was written, or read: the connection is of no use any more."""
        return self.written is None or self.is_reading

    def go_on(self, request: SendRequest, now_ms: int) -> list[ConnectionEvent]:
        """From now on it is a request of the connection's own, as if that had sent `request`; what has come of it so far."""
        connection = self.lent.connection
        connection.adopt(
            request.message,
            request.token,
            frame=self.frame,
            written=len(self.frame) if self.written is None else self.written,
            correlation_id=self.correlation_id,
            version=self.version,
            deadline_ms=self.sent_ms + request.timeout_ms,
        )
        return [] if self.is_unclear else connection.take(self.received, now_ms)


class LentConnection:
    """Does nothing but system calls; OSError is the system's."""

    __slots__ = ("_busy_poll", "_ears", "_fileno", "_look", "_receive", "bell", "connection", "send")

    def __init__(self, connection: BrokerConnection, opened: socket.socket, ears: Ears, bell: Bell) -> None:
        self.connection = connection
        self.bell = bell
        """For who waits: there is nothing to wait for any more."""
        self.send: Final[Callable[[bytes], int]] = opened.send
        """Write what fits now; how many bytes that were."""
        self._receive = opened.recv
        self._fileno = opened.fileno()
        self._ears = ears
        looker = select.poll()
        looker.register(self._fileno, select.POLLIN)
        looker.register(bell.fileno(), select.POLLIN)
        self._look = looker.poll
        self._busy_poll = BusyPoll()

    def wait(self, timeout_ms: int) -> bool:
        """Wait for bytes, for the end of the connection, or for the bell; whether there is anything. One thread at a
        time, without any lock."""
        return bool(self._busy_poll.look(self._look_now) or self._look(timeout_ms))

    def _look_now(self) -> list[tuple[int, int]]:
        return self._look(0)

    def receive(self) -> bytes:
        """What has come, a part of it perhaps; without bytes the broker has closed the connection."""
        return self._receive(ANSWER_BYTES_MAX)

    def take_the_ear(self) -> None:
        """The thread that polls does not wake up for what comes, until it `gives it back`."""
        self._ears.close_for(self._fileno)

    def give_the_ear_back(self) -> None:
        """It wakes up again, at once for what has come."""
        self._ears.open_for(self._fileno)
