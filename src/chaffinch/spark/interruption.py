"""Ctrl-C while Java starts or is at work: noted, and acted upon when that is over, without traces of what is stopped for it."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from types import FrameType, TracebackType
from typing import Any, Final, Self

from chaffinch.signals import Handler, handled

_TASKS_STOP_S: Final = 10.0
_JAVA_EXIT_S: Final = 5.0
_POLL_S: Final = 0.05


@contextmanager
def deferred(presses: list[int] | None = None) -> Iterator[list[int]]:
    """Not empty once Ctrl-C was pressed, which raises nothing meanwhile; pressed again it does what it did before. `presses`: those until
    now, of a block around this one.

    PySpark's own handler calls Java in the middle of another call to it, and Py4J prints the traceback of whatever a call is interrupted
    by; and a Java that is interrupted while it starts stays behind. Elsewhere than in the main thread nothing changes.
    """
    signals = [] if presses is None else presses

    def deferring(before: Handler) -> Handler:
        def defer(number: int, frame: FrameType | None) -> None:
            signals.append(number)
            if len(signals) > 1:
                before(number, frame)

        return defer

    with handled([signal.SIGINT], deferring):
        yield signals


@contextmanager
def silenced_log() -> Iterator[None]:
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
    deadline_s = time.monotonic() + _TASKS_STOP_S
    while sum(executor.numRunningTasks() for executor in context._jsc.sc().statusTracker().getExecutorInfos()):
        if time.monotonic() >= deadline_s:
            return
        time.sleep(_POLL_S)  # Spark reports no event when a cancelled task ends.


class JavaStart:
    """While it is entered a Java is started. Ctrl-C, and a SIGTERM whose handler raises, end that Java; then what they raise is raised.

    Raised at once it would leave Java behind: PySpark removes the folder in which Java is to say where it listens, and a Java that cannot
    say so never ends. A Java that was there before is left alone: what it is asked comes to its end first, for PySpark's own handler
    asks it in the middle of that, and Py4J prints the traceback of whatever it is interrupted by. Elsewhere than in the main thread
    nothing changes.
    """

    def __init__(self) -> None:
        self._gateway: Any = import_module("pyspark.java_gateway")
        self._popen = self._gateway.Popen
        self._process: subprocess.Popen[Any] | None = None
        self._interruption: BaseException | None = None
        self._restored_on_exit = ExitStack()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._gateway.Popen = self._start_process  # PySpark keeps the process to itself until Java has answered.
            self._restored_on_exit.callback(setattr, self._gateway, "Popen", self._popen)
            self._restored_on_exit.enter_context(handled([signal.SIGINT], lambda _: self._deferring(signal.default_int_handler)))
            self._restored_on_exit.enter_context(handled([signal.SIGTERM], self._deferring))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._restored_on_exit:
            self._end(error)
        if self._interruption is not None and self._interruption is not error:
            raise self._interruption from None

    def _deferring(self, handler: Handler) -> Handler:
        def defer(number: int, frame: FrameType | None) -> None:
            try:
                handler(number, frame)
            except BaseException as error:
                self._interrupted(error)

        return defer

    def _start_process(self, *command: Any, **keywords: Any) -> subprocess.Popen[Any]:
        self._process = subprocess.Popen(*command, **keywords)
        if self._interruption is not None:
            self._process.terminate()
        return self._process

    def _interrupted(self, error: BaseException) -> None:
        self._interruption = error
        if self._process is not None:
            self._process.terminate()  # PySpark's next look at it, or the call that waits for an answer of its, ends with an error.

    def _end(self, error: BaseException | None) -> None:
        if self._interruption is None and error is not None and not isinstance(error, Exception):
            self._interrupted(error)  # By the handler that PySpark sets when its context is there.
        if self._interruption is not None and self._process is not None:
            try:
                self._process.wait(_JAVA_EXIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            _reset_pyspark()


def _reset_pyspark() -> None:
    """What PySpark keeps of a Java that has ended: the next session would be asked of it."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._gateway is not None:
        with suppress(Exception):
            SparkContext._gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
