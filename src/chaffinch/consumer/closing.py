"""Closing a consumer: commits what was read if auto-commit is on, then sends LeaveGroup."""

from __future__ import annotations

import logging

from chaffinch.consumer.core.consumer_core import ConsumerCore
from chaffinch.consumer.runner import Pending, Runner
from chaffinch.errors import KafkaException, WakeupException

log = logging.getLogger("chaffinch.consumer")


async def commit_on_close(core: ConsumerCore, runner: Runner, deadline_ms: int, exception_type: type[BaseException] | None) -> None:
    """Commit what was read; a failure is logged.

    Nothing is committed if an exception ended the `with` statement: a record whose processing failed would never be read again. After
    WakeupException everything is committed: it ends a `poll`, and the records of earlier polls were processed.
    """
    group = core.group
    if group is None or not group.commits.is_automatic or runner.death is not None:
        return
    if exception_type is not None and not issubclass(exception_type, WakeupException):
        log.warning(
            "close: %s ended the with statement: records read since the last commit are not committed, and will be read again",
            exception_type.__name__,
        )
        return
    pending = Pending()
    await runner.run(lambda: group.commits.commit_all(deadline_ms, lambda error: pending.complete(error=error), retries=True))
    await _wait(runner, pending)
    if pending.error is not None:
        log.warning("close: offsets were not committed: %s", pending.error)


async def leave(core: ConsumerCore, runner: Runner, deadline_ms: int) -> None:
    """Send LeaveGroup and wait for the response."""
    pending = Pending()
    if runner.death is None:
        await runner.run(lambda: core.close(pending, deadline_ms))
        await _wait(runner, pending)


async def _wait(runner: Runner, pending: Pending) -> None:
    """Wait without a limit: the core completes `pending` at its deadline."""
    try:
        await runner.run_until(lambda: True if pending.is_done else None, None)
    except KafkaException:
        if not pending.is_done:  # The runner failed before it completed `pending`.
            raise
