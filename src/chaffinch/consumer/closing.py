"""The end of a consumer: what was read is committed, if that is automatic, and the group hears that a member leaves."""

from __future__ import annotations

import logging

from chaffinch.consumer.consumer_thread import ConsumerThread, Pending
from chaffinch.consumer.core.consumer_core import ConsumerCore
from chaffinch.errors import KafkaException, WakeupException

log = logging.getLogger("chaffinch.consumer")


def commit_on_close(core: ConsumerCore, thread: ConsumerThread, deadline_ms: int, exception_type: type[BaseException] | None) -> None:
    """Commit what was read; that it could not be is said in the log. Nothing where an exception comes out of the midst of it: a record
    whose handling has failed would never be read again. Who is woken up in `poll` was done with all that came before."""
    group = core.group
    if group is None or not group.commits.is_automatic or thread.death is not None:
        return
    if exception_type is not None and not issubclass(exception_type, WakeupException):
        log.warning(
            "close: left by %s, so what was read since the last commit is not committed, and will be read again", exception_type.__name__
        )
        return
    pending = Pending()
    thread.run(lambda: group.commits.commit_all(deadline_ms, lambda error: pending.complete(error=error), retries=True))
    _wait(thread, pending)
    if pending.error is not None:
        log.warning("close: offsets were not committed: %s", pending.error)


def leave(core: ConsumerCore, thread: ConsumerThread, deadline_ms: int) -> None:
    """Leave the group, and wait until it has heard of it."""
    pending = Pending()
    if thread.death is None:
        thread.run(lambda: core.close(pending, deadline_ms))
        _wait(thread, pending)


def _wait(thread: ConsumerThread, pending: Pending) -> None:
    """Deadlines are the core's."""
    try:
        thread.run_until(lambda: True if pending.is_done else None, None)
    except KafkaException:
        if not pending.is_done:  # The thread has died, and nobody was told.
            raise
