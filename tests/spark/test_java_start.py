"""Ctrl-C and SIGTERM while Spark's Java starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

import pytest
from pyspark import java_gateway
from pyspark.sql import SparkSession

from chaffinch.spark import interruption, session
from chaffinch.spark.interruption import JavaStart

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def popen_of_pyspark() -> type[subprocess.Popen[bytes]]:
    """The class with which PySpark starts Java at this moment."""
    found: type[subprocess.Popen[bytes]] = vars(java_gateway)["Popen"]
    return found


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What PySpark keeps is that of other tests' Spark; handlers and Popen are as they were."""
    monkeypatch.setattr(interruption, "_reset_pyspark", lambda: None)
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    assert popen_of_pyspark() is subprocess.Popen
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.fixture
def terminating(kept: None) -> Iterator[None]:
    """A process that SIGTERM ends with SystemExit, as the command's is."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(143)

    before = signal.signal(signal.SIGTERM, end)
    yield
    signal.signal(signal.SIGTERM, before)


def java(ignores: bool = False) -> subprocess.Popen[bytes]:
    """What stands for it, and has begun; it ends by a signal."""
    begin = "import signal; " + "signal.signal(signal.SIGTERM, signal.SIG_IGN); " * ignores
    process = popen_of_pyspark()([sys.executable, "-c", f"{begin}print(flush=True); signal.pause()"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    return process


def fail() -> None:
    raise RuntimeError("a wrong option")


def starting(*steps: Callable[[], object]) -> None:
    """The start comes to an error for want of Java, or for another reason."""
    with JavaStart():
        for step in steps:
            step()
        fail()


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_signal_ends_java_before_exception_is_raised(
    terminating: None, number: signal.Signals, error: type[SystemExit | KeyboardInterrupt]
) -> None:
    started = []
    with pytest.raises(error):
        starting(lambda: started.append(java()), lambda: signal.raise_signal(number), lambda: started[0].wait(60))
    assert started[0].returncode == -signal.SIGTERM


def test_sigterm_ends_java_if_sigint_is_ignored(terminating: None) -> None:
    """As a shell has it of what runs in the background."""
    started = []
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(SystemExit):
            starting(
                lambda: started.append(java()), lambda: signal.raise_signal(signal.SIGINT), lambda: signal.raise_signal(signal.SIGTERM)
            )
    finally:
        signal.signal(signal.SIGINT, before)
    assert started[0].returncode == -signal.SIGTERM


def test_java_started_after_signal_is_ended() -> None:
    started = []
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    with pytest.raises(KeyboardInterrupt):
        starting(lambda: signal.raise_signal(signal.SIGINT), lambda: started.append(popen_of_pyspark()(command)))
    assert started[0].returncode == -signal.SIGTERM


def test_exception_of_pyspark_handler_ends_java() -> None:
    """It is there as soon as the context is."""
    started = []
    with pytest.raises(KeyboardInterrupt):
        starting(lambda: started.append(java()), lambda: signal.default_int_handler(signal.SIGINT, None))
    assert started[0].returncode == -signal.SIGTERM


def test_java_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(interruption, "_JAVA_EXIT_S", 0.0)
    with pytest.raises(KeyboardInterrupt):
        starting(lambda: started.append(java(ignores=True)), lambda: signal.raise_signal(signal.SIGINT))
    assert started[0].returncode == -signal.SIGKILL


def test_other_error_keeps_java_running() -> None:
    started = []
    with pytest.raises(RuntimeError, match="a wrong option"):
        starting(lambda: started.append(java()))
    assert started[0].poll() is None
    started[0].kill()
    started[0].wait()


def test_sigterm_handler_that_does_not_raise_keeps_java_running() -> None:
    signals = []
    before = signal.signal(signal.SIGTERM, lambda *_: signals.append("it"))
    try:
        with JavaStart():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert signals == ["it"]


def test_other_threads_set_no_handlers() -> None:
    found = []

    def run() -> None:
        with JavaStart():
            found.append(popen_of_pyspark())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [subprocess.Popen]


class Started:
    """A session that has just started."""

    def __init__(self) -> None:
        self.stops = 0

    def stop(self) -> None:
        self.stops += 1


@pytest.mark.parametrize("is_there_before", [False, True])
def test_interrupted_session_in_existing_java_is_stopped(monkeypatch: pytest.MonkeyPatch, is_there_before: bool) -> None:
    """Not one that was there before, too."""
    spark, module = Started(), sys.modules["chaffinch.spark.session"]

    def starts(builder: SparkSession.Builder, config: Mapping[str, str]) -> Started:
        signal.raise_signal(signal.SIGINT)
        monkeypatch.setattr(SparkSession, "_instantiatedSession", spark)
        return spark

    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", spark if is_there_before else None)
    monkeypatch.setattr("chaffinch.spark.java.use_java", lambda: None)
    monkeypatch.setattr(module, "_configured", starts)
    with pytest.raises(KeyboardInterrupt):
        session(master="local[1]")
    assert spark.stops == (not is_there_before)


PROGRAM = """
import os, signal, subprocess, sys

class Popen(subprocess.Popen):
    polls = 0

    def __init__(self, command, *rest, **keywords):
        super().__init__(command, *rest, **keywords)
        if "pyspark-shell" in command:
            if not hasattr(type(self), "java"):
                print(self.pid, flush=True)
            type(self).java = self

    def poll(self):
        self.polls += 1
        if place == "waiting" and self.polls == 1 and "pyspark-shell" in self.args:
            os.kill(os.getpid(), number)
        return super().poll()

subprocess.Popen = Popen
place, number = sys.argv[1], int(sys.argv[2])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

from chaffinch.spark import session
from pyspark import SparkContext

begin = SparkContext._do_init

def interrupted(*given):
    SparkContext._do_init = begin
    os.kill(os.getpid(), number)
    begin(*given)

if place == "context":
    SparkContext._do_init = interrupted
try:
    session(master="local[1]")
except KeyboardInterrupt:
    print("Java has ended" if Popen.java.poll() is not None else "Java is there")
    if place == "context":
        print(session(master="local[1]").range(3).count())
"""


@pytest.mark.spark
@pytest.mark.parametrize(
    ("place", "number", "says"),
    [("waiting", signal.SIGTERM, []), ("waiting", signal.SIGINT, ["Java has ended"]), ("context", signal.SIGINT, ["Java has ended", "3"])],
    ids=str,
)
def test_next_session_starts_after_interrupted_start(tmp_path: Path, place: str, number: int, says: Sequence[str]) -> None:
    command = [sys.executable, "-c", PROGRAM, place, str(int(number))]
    with open(tmp_path / "said", "w+") as file:  # A pipe would not end before a Java that is left.
        status = subprocess.run(command, stdout=file, stderr=subprocess.DEVNULL, check=False).returncode
        file.seek(0)
        java, *said = file.read().splitlines()
    with pytest.raises(ProcessLookupError):
        os.kill(int(java), signal.SIGKILL)
    assert (status, said) == (143 if number == signal.SIGTERM else 0, says)
