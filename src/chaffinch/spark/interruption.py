"""Ctrl-C while Java is at work: noted, and acted upon when that is over, without traces of what is stopped for it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final

from chaffinch.signals import Handler, handled

_TASKS_END_S: Final = 10.0
_LOOK_S: Final = 0.05


@contextmanager
def noted(presses: list[int] | None = None) -> Iterator[list[int]]:
    """Not empty once Ctrl-C was pressed, which raises nothing meanwhile; pressed again it does what it did before. `presses`: those until
    now, of a block around this one.

    PySpark's own handler calls Java in the middle of another call to it, and Py4J prints the traceback of whatever a call is interrupted
    by; and a Java that is interrupted while it starts stays behind. Elsewhere than in the main thread nothing changes.
    """
    times = [] if presses is None else presses

    def noting(before: Handler) -> Handler:
        def note(number: int, frame: FrameType | None) -> None:
            times.append(number)
            if len(times) > 1:
                before(number, frame)

        return note

    with handled([signal.SIGINT], noting):
        yield times


@contextmanager
def quietly() -> Iterator[None]:
    """Spark's log is off until the tasks that are stopped meanwhile have ended: it has a trace of each, which whoever pressed Ctrl-C
    would take for an error. On Spark Connect the log is the server's."""
    try:
        from pyspark import SparkContext  # Which a Spark that has only Connect lacks.

        context: Any = SparkContext._active_spark_context
        log4j = context._jvm.org.apache.logging.log4j
        # Spark's own setLogLevel forgets that shells, and Python is one, show less than the root's level.
        set_level, level = log4j.core.config.Configurator.setRootLevel, log4j.LogManager.getRootLogger().getLevel()
        set_level(log4j.Level.OFF)
    except Exception:  # No Spark of this process, or one that has ended: this is about the log alone.
        yield
        return
    try:
        yield
    finally:
        try:
            with suppress(Exception):
                _wait_for_tasks(context)
        finally:  # Also where Ctrl-C ends that wait, too.
            with suppress(Exception):
                set_level(level)


def _wait_for_tasks(context: Any) -> None:
    deadline_s = time.monotonic() + _TASKS_END_S
    while sum(executor.numRunningTasks() for executor in context._jsc.sc().statusTracker().getExecutorInfos()):
        if time.monotonic() >= deadline_s:
            return
        time.sleep(_LOOK_S)  # Nobody tells when a task that was cancelled has ended.
