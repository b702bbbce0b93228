"""Fork and exit hooks of running producers.

A forked child has no sender thread, and must not use the parent's connections: every call raises IllegalStateException, and none blocks.
The exit of the interpreter does not wait for records. One log line per unclosed producer gives the number of records without an outcome.
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
"""Held by the thread that forks: several threads may fork at once."""
_HELD: Final[list[Iterator[None]]] = []
"""The locks of the forking thread, until this list is cleared."""


def _before_fork() -> None:
    """Take every lock, so that the child has no lock held by a thread that does not exist there.

    After KeyboardInterrupt in this hook no lock is held; Python reports the exception, and forks nevertheless.
    """
    holding = _holding_all()
    next(holding)
    _HELD.append(holding)


def _holding_all() -> Iterator[None]:
    with _FORKING:
        yield from _holding([*(sender.lock for sender in RUNNING), SHARED_LOCK])


def _holding(locks: Sequence[threading.RLock]) -> Iterator[None]:
    """Yield once, with all locks held. `with` takes and releases a lock atomically, even if KeyboardInterrupt comes."""
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
        # A callback that hangs with the lock held must not block the exit.
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
    # Not a Python function in the parent: KeyboardInterrupt could come before it has cleared the list.
    os.register_at_fork(before=_before_fork, after_in_parent=_HELD.clear, after_in_child=_in_child)
