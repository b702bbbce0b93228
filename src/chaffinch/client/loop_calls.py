"""Waits of coroutines for a client's core on the same event loop: calls that the core completes, and changes of the core."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from chaffinch.client.arguments import TIMEOUT_MAX_S


class LoopCall:
    """A call that a core completes. If its caller is cancelled, the call stays with the core until it ends there."""

    def __init__(self) -> None:
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(self) -> bool:
        return self._future.done()

    def complete(self, _result: Any = None) -> None:
        if not self.done():
            self._future.set_result(None)

    def fail(self, error: BaseException) -> None:
        if not self.done():
            self._future.set_exception(error)
            self._future.exception()  # Retrieved: a cancelled caller does not read it.

    def then(self, call: Callable[[], object]) -> None:
        """Call a function when the call is done."""
        self._future.add_done_callback(lambda _: call())

    async def wait(self, timeout_s: float | None) -> None:
        """Wait for the end. Raises TimeoutError after `timeout_s`; the call goes on."""
        if self.done():
            self._future.result()
            return
        async with asyncio.timeout(timeout_s):
            await asyncio.shield(self._future)


class Changes:
    """Wakes the coroutines that wait for a change of a core."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify_all(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, timeout_s: float | None) -> None:
        """Until `notify_all`, at most `timeout_s`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait((waiter,), timeout=None if timeout_s is None else min(timeout_s, TIMEOUT_MAX_S))
        finally:
            self._waiters.discard(waiter)
