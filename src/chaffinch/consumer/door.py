"""Who may call a consumer: one thread at a time, in the process that made it, until it is closed."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import get_ident
from typing import TypeVar

from chaffinch.errors import IllegalStateException

T = TypeVar("T")


class Door:
    """A thread that is inside may come in again, from a callback. Ctrl-C, which may come at any call, leaves nobody inside."""

    def __init__(self) -> None:
        self.is_closed = False
        self._pid = os.getpid()
        self._inside: int | None = None
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

    def through(self, what: str, call: Callable[[], T], first: Callable[[], object]) -> T:
        """Make the call `what`, after `first` unless it is made from within another one; IllegalStateException where it may not be."""
        self.check_process()
        me = get_ident()
        # Without a call from here to `try`: no other thread has a turn, and nothing is interrupted.
        before = self._inside
        is_alone = before is None or before == me
        try:
            if is_alone:
                self._inside = me
                if self.is_closed and what != "close":  # Which has no effect then.
                    raise IllegalStateException(f"{what} after close(): the consumer is closed")
                if before is None:
                    first()
                return call()
        finally:
            if is_alone:
                self._inside = before
        raise IllegalStateException(f"{what} while another thread uses the consumer: one thread at a time may, and any may call wakeup()")
