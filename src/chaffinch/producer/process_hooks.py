"""What becomes of running producers when their process forks or ends.

A forked child has no sender thread, and may not use the parent's connections: there every call says so, and nothing waits. At the end
of the interpreter nothing is waited for either; of each producer that was not closed, one line says what it had not sent.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Final

from chaffinch.client.client_thread import EXIT_WAIT_MS
from chaffinch.identifiers import pluralize
from chaffinch.producer.futures import SHARED_LOCK
from chaffinch.producer.sender_thread import RUNNING

log = logging.getLogger("chaffinch.producer")

_FORKING: Final = threading.RLock()
"""Of the thread that forks: any number of them may want to at once."""
_HELD: Final[list[Iterator[None]]] = []
"""What that thread holds, until this is cleared."""


def _before_fork() -> None:
    """Hold every lock, so that none is copied as held by a thread that the child does not have. Who is interrupted here by Ctrl-C, which
    Python reports and forks all the same, holds none."""
    holding = _holding_all()
    next(holding)
    _HELD.append(holding)


def _holding_all() -> Iterator[None]:
    with _FORKING:
        yield from _holding([*(sender.lock for sender in RUNNING), SHARED_LOCK])


def _holding(locks: Sequence[threading.RLock]) -> Iterator[None]:
    """Gives once, with all of them held. `with` takes and leaves a lock as a whole, wherever Ctrl-C comes."""
    if not locks:
        yield
        return
    with locks[0]:
        yield from _holding(locks[1:])


def _in_child() -> None:
    for sender in list(RUNNING):
        sender.leave_to_parent()
        RUNNING.discard(sender)
    _HELD.clear()


def _at_exit() -> None:
    for sender in list(RUNNING):
        # A callback that hangs with the lock held must not hold up the end.
        if not sender.changed.acquire(timeout=EXIT_WAIT_MS / 1000):
            continue
        try:
            count = sender.core.outstanding_count
        finally:
            sender.changed.release()
        if count:
            what = pluralize(count, "record")
            log.warning("%s was not closed: %s had no outcome yet when the process ended, and may be lost", sender.name, what)
        sender.stop(EXIT_WAIT_MS)


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    # Not a function of Python's in the parent: Ctrl-C could come before it has done anything.
    os.register_at_fork(before=_before_fork, after_in_parent=_HELD.clear, after_in_child=_in_child)
