"""The end of a consumer: what was read is committed, if that is automatic, and the group hears that a member leaves."""

from __future__ import annotations

import logging
from typing import Final

from chaffinch.consumer.consumer_thread import ConsumerThread, Pending
from chaffinch.consumer.core.consumer_core import ConsumerCore

log = logging.getLogger("chaffinch.consumer")

# Waiting is looked at now and then, so that Ctrl-C is heard everywhere; deadlines are the core's.
LOOK_S: Final = 10


def commit_last(core: ConsumerCore, thread: ConsumerThread, deadline_ms: int) -> None:
    """Commit what was read; that it could not be is said in the log."""
    group = core.group
    if group is None or not group.commits.is_automatic or thread.death is not None:
        return
    pending = Pending()
    with thread.changed:
        group.commits.commit_all(deadline_ms, lambda error: pending.complete(error=error), retries=True)
        thread.push()
        while not pending.is_done:
            thread.changed.wait(LOOK_S)
    if pending.error is not None:
        log.warning("close: offsets were not committed: %s", pending.error)


def leave(core: ConsumerCore, thread: ConsumerThread, deadline_ms: int) -> None:
    """Leave the group, and wait until it has heard of it."""
    pending = Pending()
    with thread.changed:
        core.close(pending, deadline_ms)
        if thread.death is None:
            thread.push()
        while not pending.is_done and thread.death is None:
            thread.changed.wait(LOOK_S)
