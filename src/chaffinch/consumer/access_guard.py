"""Who may call a consumer: one thread at a time, in the process that made it, until it is closed."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import get_ident
from typing import TypeVar

from chaffinch.errors import IllegalStateException

T = TypeVar("T")


class AccessGuard:
    """A thread that is inside may come in again, from a callback. Ctrl-C, which may come at any call, leaves nobody inside."""

    def __init__(self) -> None:
        self.is_closed = False
        self._pid = os.getpid()
        self._owner: int | None = None
        """The thread that is."""

    @property
    def is_in_other_process(self) -> bool:
        """This is a forked child: thread, connections and membership stay with the process that made them."""
        return os.getpid() != self._pid

    def check_process(self) -> None:
        """Before anything that a fork may have copied as held is touched."""
        if self.is_in_other_process:
            raise IllegalStateException(
                "the consumer belongs to the process that made it, not to its forked child: make one in each process"
            )

    def enter(self, method: str, call: Callable[[], T], on_entry: Callable[[], object]) -> T:
        """Make the call `method`, after `on_entry` unless it is made from within another one; IllegalStateException where it may not be."""
        self.check_process()
        thread_id = get_ident()
        # Without a call from here to `try`: no other thread has a turn, and nothing is interrupted.
        previous = self._owner
        may_enter = previous is None or previous == thread_id
        try:
            if may_enter:
                self._owner = thread_id
                if self.is_closed and method != "close":  # Which has no effect then.
                    raise IllegalStateException(f"{method} after close(): the consumer is closed")
                if previous is None:
                    on_entry()
                return call()
        finally:
            if may_enter:
                self._owner = previous
        raise IllegalStateException(f"{method} while another thread uses the consumer: one thread at a time may, and any may call wakeup()")
