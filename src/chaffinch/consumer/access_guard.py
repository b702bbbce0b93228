"""Access guard: one thread at a time may use a consumer, in the process that created it, until it is closed (KafkaConsumer's `acquire`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import get_ident
from typing import TypeVar

from chaffinch.errors import IllegalStateException

T = TypeVar("T")


class AccessGuard:
    """Reentrant for the owning thread, so that callbacks may call the consumer. KeyboardInterrupt at any point releases it."""

    def __init__(self) -> None:
        self.is_closed = False
        self._pid = os.getpid()
        self._owner: int | None = None
        """Ident of the thread that uses the consumer."""

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

    def enter(self, method: str, call: Callable[[], T], on_entry: Callable[[], object]) -> T:
        """Run `call`, which implements the public method `method`. `on_entry` runs first, unless this call is nested in another one.

        Raises IllegalStateException if another thread uses the consumer, if it is closed, or in a forked child.
        """
        self.check_process()
        thread_id = get_ident()
        # No function call from here to `try`: no thread switch and no KeyboardInterrupt can occur in between.
        previous = self._owner
        may_enter = previous is None or previous == thread_id
        try:
            if may_enter:
                self._owner = thread_id
                if self.is_closed and method != "close":  # A second close has no effect.
                    raise IllegalStateException(f"{method} after close(): the consumer is closed")
                if previous is None:
                    on_entry()
                return call()
        finally:
            if may_enter:
                self._owner = previous
        raise IllegalStateException(f"{method} while another thread uses the consumer: one thread at a time may, and any may call wakeup()")
