"""Signal handling around calls to Java: Ctrl-C is deferred until the call returns, and Spark's log of stopped tasks is silenced."""

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
    """Defer Ctrl-C: within the block it raises nothing, and the yielded list gets the signal. A second Ctrl-C runs the previous handler.

    The handler of PySpark calls Java in the middle of another call, and Py4J prints the traceback of an interrupted call. A Java that is
    interrupted while it starts is left running. Has no effect outside the main thread.

    Args:
        presses: the list of an enclosing block, to share its signals.
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
    """Turn Spark's log off until the tasks that the block stops have ended: it logs a stack trace for each, which looks like an error.

    With Spark Connect the log belongs to the server, and nothing changes.
    """
    try:
        from pyspark import SparkContext  # Missing in an installation with Spark Connect only.

        context: Any = SparkContext._active_spark_context
        log4j = context._jvm.org.apache.logging.log4j
        # Not Spark's setLogLevel: it drops the separate log level of shells, of which Python is one.
        set_level, level = log4j.core.config.Configurator.setRootLevel, log4j.LogManager.getRootLogger().getLevel()
        set_level(log4j.Level.OFF)
    except Exception:  # No running Spark in this process. Only the log is affected, so this is not an error.
        yield
        return
    try:
        yield
    finally:
        try:
            with suppress(Exception):
                _wait_for_tasks(context)
        finally:  # Also if Ctrl-C interrupts that wait.
            with suppress(Exception):
                set_level(level)


def _wait_for_tasks(context: Any) -> None:
    deadline_s = time.monotonic() + _TASKS_STOP_S
    while sum(executor.numRunningTasks() for executor in context._jsc.sc().statusTracker().getExecutorInfos()):
        if time.monotonic() >= deadline_s:
            return
        time.sleep(_POLL_S)  # Spark reports no event when a cancelled task ends.


class JavaStart:
    """Context manager around the start of a Java. Ctrl-C, or a SIGTERM whose handler raises, ends that Java before the exception is raised.

    If it were raised immediately, the exception would leave Java running: PySpark removes the directory in which Java writes its port, and
    a Java that cannot write it never ends.

    A Java that already ran is left alone, and its current call completes first: the handler of PySpark would call it in the middle of that
    call, and Py4J prints the traceback of an interrupted call.

    Has no effect outside the main thread.
    """

    def __init__(self) -> None:
        self._gateway: Any = import_module("pyspark.java_gateway")
        self._popen = self._gateway.Popen
        self._process: subprocess.Popen[Any] | None = None
        self._interruption: BaseException | None = None
        self._restored_on_exit = ExitStack()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._gateway.Popen = self._start_process  # PySpark does not expose the process before Java has answered.
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
            self._process.terminate()  # The next poll by PySpark, or its pending call, then fails.

    def _end(self, error: BaseException | None) -> None:
        if self._interruption is None and error is not None and not isinstance(error, Exception):
            self._interrupted(error)  # Raised by the handler that PySpark installs with its context.
        if self._interruption is not None and self._process is not None:
            try:
                self._process.wait(_JAVA_EXIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            _reset_pyspark()


def _reset_pyspark() -> None:
    """Clear PySpark's cached references to a Java that has ended: otherwise the next session would use them."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._gateway is not None:
        with suppress(Exception):
            SparkContext._gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
