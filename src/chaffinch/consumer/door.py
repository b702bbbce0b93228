"""Who may call a consumer: one thread at a time, in the process that made it, until it is closed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from chaffinch.errors import IllegalStateException


class Door:
    """A thread that is inside may come in again, from a callback."""

    def __init__(self) -> None:
        self.is_closed = False
        self._pid = os.getpid()
        self._lock = threading.RLock()

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

    @contextmanager
    def entered(self, what: str) -> Iterator[None]:
        """IllegalStateException where the call `what` may not be made."""
        self.check_process()
        if not self._lock.acquire(blocking=False):
            raise IllegalStateException(
                f"{what} while another thread uses the consumer: one thread at a time may, and any may call wakeup()"
            )
        try:
            if self.is_closed:
                raise IllegalStateException(f"{what} after close(): the consumer is closed")
            yield
        finally:
            self._lock.release()
