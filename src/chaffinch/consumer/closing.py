"""Closing a consumer: commits what was read if auto-commit is on, then sends LeaveGroup."""

from __future__ import annotations

import logging

from chaffinch.consumer.consumer_thread import ConsumerThread, Pending
from chaffinch.consumer.core.consumer_core import ConsumerCore
from chaffinch.errors import KafkaException, WakeupException

log = logging.getLogger("chaffinch.consumer")


def commit_on_close(core: ConsumerCore, thread: ConsumerThread, deadline_ms: int, exception_type: type[BaseException] | None) -> None:
    """Commit what was read; a failure is logged.

    Nothing is committed if an exception ended the `with` statement: a record whose processing failed would never be read again. After
    WakeupException everything is committed: it ends a `poll`, and the records of earlier polls were processed.
    """
    group = core.group
    if group is None or not group.commits.is_automatic or thread.death is not None:
        return
    if exception_type is not None and not issubclass(exception_type, WakeupException):
        log.warning(
            "close: %s ended the with statement: records read since the last commit are not committed, and will be read again",
            exception_type.__name__,
        )
        return
    pending = Pending()
    thread.run(lambda: group.commits.commit_all(deadline_ms, lambda error: pending.complete(error=error), retries=True))
    _wait(thread, pending)
    if pending.error is not None:
        log.warning("close: offsets were not committed: %s", pending.error)


def leave(core: ConsumerCore, thread: ConsumerThread, deadline_ms: int) -> None:
    """Send LeaveGroup and wait for the response."""
    pending = Pending()
    if thread.death is None:
        thread.run(lambda: core.close(pending, deadline_ms))
        _wait(thread, pending)


def _wait(thread: ConsumerThread, pending: Pending) -> None:
    """Wait without a limit: the core completes `pending` at its deadline."""
    try:
        thread.run_until(lambda: True if pending.is_done else None, None)
    except KafkaException:
        if not pending.is_done:  # The thread died before it completed `pending`.
            raise
