"""Access guard: one thread at a time may use a consumer, in the process that created it, until it is closed (KafkaConsumer's `acquire`)."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from threading import get_ident
from typing import Final, TypeVar

from chaffinch.errors import IllegalStateException

T = TypeVar("T")


class AccessGuard:
    """Reentrant for the owning thread, so that callbacks may call the consumer. KeyboardInterrupt at any point releases it."""

    def __init__(self) -> None:
        self.is_closed = False
        self._pid = os.getpid()
        self._owner: object = None
        """The thread, or the call of a task, that uses the consumer."""

    @property
    def is_in_other_process(self) -> bool:
        """Whether this is a forked child. Thread, connections and membership stay with the parent process."""
        return os.getpid() != self._pid

    def check_process(self) -> None:
        """Raise in a forked child. Called first, since the fork may have copied held locks."""
        if self.is_in_other_process:
            raise IllegalStateException(
                "the consumer belongs to the process that made it, not to its forked child: make one in each process"
            )

    def check_open(self, method: str) -> None:
        """Raise IllegalStateException if the consumer is closed, or in a forked child."""
        self.check_process()
        if self.is_closed and method != "close":  # A second close has no effect.
            raise IllegalStateException(f"{method} after close(): the consumer is closed")

    async def enter(self, method: str, call: Callable[[], Awaitable[T]], on_entry: Callable[[], Awaitable[object]]) -> T:
        """Run `call`, which implements the public method `method`. `on_entry` runs first, unless this call is nested in another one.

        Raises IllegalStateException if another thread uses the consumer, if it is closed, or in a forked child.
        """
        self.check_process()
        caller = get_ident()
        # No function call from here to `try`: no thread switch and no KeyboardInterrupt can occur in between.
        previous = self._owner
        may_enter = previous is None or previous == caller
        try:
            if may_enter:
                self._owner = caller
                self.check_open(method)
                if previous is None:
                    await on_entry()
                return await call()
        finally:
            if may_enter:
                self._owner = previous
        raise _in_use(method, "thread")


class TaskGuard(AccessGuard):
    """One task at a time may use the methods that wait. Reentrant for tasks that a callback has created, as `asyncio.wait_for` does."""

    async def enter(self, method: str, call: Callable[[], Awaitable[T]], on_entry: Callable[[], Awaitable[object]]) -> T:
        self.check_open(method)
        if self._owner is not None:
            if self._owner not in _CALLS.get():
                raise _in_use(method, "task")
            return await call()
        self._owner = object()
        outer = _CALLS.set(_CALLS.get() | {self._owner})
        try:
            await on_entry()
            return await call()
        finally:
            self._owner = None
            _CALLS.reset(outer)


_CALLS: Final[ContextVar[frozenset[object]]] = ContextVar("calls of consumers", default=frozenset())
"""The calls of consumers that the present task makes, or in whose callbacks it was created."""


def _in_use(method: str, kind: str) -> IllegalStateException:
    return IllegalStateException(f"{method} while another {kind} uses the consumer: one {kind} at a time may, and any may call wakeup()")
