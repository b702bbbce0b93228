"""What becomes of running producers when their process forks or ends.

A forked child has no sender thread, and may not use the parent's connections: there every call says so, and nothing waits. At the end
of the interpreter nothing is waited for either; of each producer that was not closed, one line says what it had not sent.
"""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from typing import TYPE_CHECKING, Final

from chaffinch.client.client_thread import EXIT_WAIT_MS
from chaffinch.identifiers import counted
from chaffinch.producer.futures import SHARED_LOCK

if TYPE_CHECKING:
    from chaffinch.producer.sender_thread import SenderThread

log = logging.getLogger("chaffinch.producer")

_RUNNING: Final[weakref.WeakSet[SenderThread]] = weakref.WeakSet()
_HELD: Final[list[SenderThread]] = []


def watch(sender: SenderThread) -> None:
    """A sender thread starts."""
    _RUNNING.add(sender)


def forget(sender: SenderThread) -> None:
    """It has ended."""
    _RUNNING.discard(sender)


def _before_fork() -> None:
    """Hold every lock, so that none is copied as held by a thread that the child does not have."""
    _HELD[:] = list(_RUNNING)
    for sender in _HELD:
        sender.changed.acquire()
    SHARED_LOCK.acquire()


def _in_parent() -> None:
    SHARED_LOCK.release()
    for sender in _HELD:
        sender.changed.release()
    _HELD.clear()


def _in_child() -> None:
    SHARED_LOCK.release()
    for sender in _HELD:
        sender.leave_to_parent()
        sender.changed.release()
        _RUNNING.discard(sender)
    _HELD.clear()


def _at_exit() -> None:
    for sender in list(_RUNNING):
        # A callback that hangs with the lock held must not hold up the end.
        if not sender.changed.acquire(timeout=EXIT_WAIT_MS / 1000):
            continue
        try:
            count = sender.core.outstanding_count
        finally:
            sender.changed.release()
        if count:
            what = counted(count, "record")
            log.warning("%s was not closed: %s had no outcome yet when the process ended, and may be lost", sender.name, what)
        sender.stop(EXIT_WAIT_MS)


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
