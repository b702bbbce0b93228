"""The sockets of a client on an asyncio event loop: the loop watches the selector's file descriptor, so no thread is needed.

The selector is an epoll (Linux) or kqueue (macOS), whose descriptor is readable when one of its sockets is ready. A host name is looked up
by the loop's executor before a connection is opened, because the system's call may block for seconds.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from chaffinch.client.addresses import Address
from chaffinch.client.connections import ConnectionEvent
from chaffinch.client.effects import SendRequest
from chaffinch.client.network import WAIT_MS_MAX, Network
from chaffinch.client.options import ConnectionSettings
from chaffinch.errors import IllegalStateException
from chaffinch.runtime import sockets
from chaffinch.runtime.clock import Clock
from chaffinch.runtime.sockets import SocketFailed

Advance: TypeAlias = Callable[[list[ConnectionEvent]], "int | None"]
"""One round of a core with these events; returns its next deadline in steady ms."""


class LoopNetwork:
    """Runs a core's rounds on the running event loop: when a socket is ready, a deadline is reached, or `wake` was called.

    All methods except `call_from_finalizer` belong to the loop's thread. An exception of a round closes the network and goes to `failed`.
    """

    def __init__(
        self, settings: ConnectionSettings, clock: Clock, kind: str, advance: Advance, failed: Callable[[BaseException], None]
    ) -> None:
        """`kind`: the client in errors, such as `producer`."""
        self.loop = asyncio.get_running_loop()
        self.network = Network(settings, clock=clock, resolve=self._resolved)
        self.is_closed = False
        self._kind = kind
        self._pid = os.getpid()
        self._clock = clock
        self._advance = advance
        self._failed = failed
        self._is_running = False
        self._round: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._lookups: dict[Address, list[SendRequest]] = {}
        """Requests that wait for the address of a host name, by broker."""
        self._found: dict[Address, list[tuple[int, Any]] | SocketFailed] = {}
        """Results of lookups, until the requests that waited for them are sent."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.loop.add_reader(self.network.fileno(), self.run)

    @property
    def is_in_other_process(self) -> bool:
        """Whether this is a forked child, which must not touch the loop: parent and child share its epoll."""
        return os.getpid() != self._pid

    def check_loop(self, what: str) -> None:
        """Raise IllegalStateException unless the caller runs on the loop. `what`: name of the public method."""
        # `_get_running_loop` is None without a loop; the public function raises, which is slower to check.
        if asyncio._get_running_loop() is not self.loop or self.is_in_other_process:
            where = "to the process that made it: make one in each process"
            raise IllegalStateException(
                f"{what}(): the {self._kind} belongs {where if self.is_in_other_process else 'to the event loop that started it'}"
            )

    def wake(self) -> None:
        """Run a round soon, in this turn of the loop or the next."""
        if self._round is None and not self.is_closed:
            self._round = self.loop.call_soon(self.run)

    def run(self) -> None:
        """Run a round now, unless this is a callback within a round: then soon."""
        if self._is_running:
            self.wake()
            return
        if self._round is not None:
            self._round.cancel()
            self._round = None
        if self.is_closed:
            return
        self._is_running = True
        try:
            self._send_found()
            deadline_ms = self._advance(self.network.poll(0))
        except BaseException as error:  # A defect of Chaffinch: callers must get an error rather than wait.
            self.close()
            self._failed(error)
            if not isinstance(error, Exception):
                raise
        else:
            if not self.is_closed:
                self._arm(deadline_ms)
        finally:
            self._is_running = False

    def send(self, request: SendRequest) -> None:
        """Send a core's request, after a lookup of the host name if there is no connection yet."""
        address = request.address
        if self.is_closed:
            return
        if address in self._lookups:
            self._lookups[address].append(request)
        elif self.network.has_connection(address) or _is_number(address):
            self.network.carry_out(request)
        else:
            self._lookups[address] = [request]
            task = self.loop.create_task(self._look_up(address))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def call_from_finalizer(self, call: Callable[[], object]) -> None:
        """Call a function on the loop. Callable during garbage collection on any thread.

        If the loop has been closed, the sockets are closed and `call` is not called.
        """
        if self.is_in_other_process:
            return
        if self.loop.is_closed():
            self.is_closed = True
            self.network.close()
        else:
            self.loop.call_soon_threadsafe(call)

    def close(self) -> None:
        """Close all connections; requests in flight are dropped. A second call has no effect."""
        if self.is_closed:
            return
        self.is_closed = True
        self.loop.remove_reader(self.network.fileno())
        for handle in (self._round, self._timer, *self._tasks):
            if handle is not None:
                handle.cancel()
        self.network.close()

    async def _look_up(self, address: Address) -> None:
        try:
            self._found[address] = await self.loop.run_in_executor(None, partial(sockets.resolve, address.host, address.port))
        except SocketFailed as failure:
            self._found[address] = failure
        except RuntimeError as error:  # The executor of the loop was shut down.
            self._found[address] = SocketFailed(f"the name could not be looked up: {error}")
        self.wake()

    def _send_found(self) -> None:
        """Send the requests whose host names have been looked up."""
        for address in list(self._found):
            for request in self._lookups.pop(address):
                self.network.carry_out(request)
            del self._found[address]

    def _resolved(self, host: str, port: int) -> list[tuple[int, Any]]:
        for address, found in self._found.items():
            if (address.host, address.port) == (host, port):
                if isinstance(found, SocketFailed):
                    raise found
                return found
        return sockets.resolve(host, port, is_number=True)

    def _arm(self, deadline_ms: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.network.has_events:
            self.wake()
            return
        due = [at_ms for at_ms in (deadline_ms, self.network.next_check_ms()) if at_ms is not None]
        if due:
            wait_ms = min(max(0, min(due) - self._clock.steady_ms()), WAIT_MS_MAX)
            self._timer = self.loop.call_later(wait_ms / 1000, self.run)


def _is_number(address: Address) -> bool:
    try:
        return bool(sockets.resolve(address.host, address.port, is_number=True))
    except SocketFailed:
        return False
