"""Ctrl-C while Java is at work. No Java here: what starts it is played."""

from __future__ import annotations

import signal
import sys
import threading

import pytest

from chaffinch.spark import interruption, session


class Started:
    """A session that has just started."""

    def __init__(self) -> None:
        self.stops = 0

    def stop(self) -> None:
        self.stops += 1


@pytest.fixture
def started(monkeypatch) -> Started:
    spark, module = Started(), sys.modules["chaffinch.spark.session"]

    def starts(builder, config):
        signal.raise_signal(signal.SIGINT)
        return spark

    monkeypatch.setattr("chaffinch.spark.java.use_java", lambda: None)
    monkeypatch.setattr(module, "_configured", starts)
    return spark


def test_a_start_that_is_interrupted_ends_first_and_leaves_nothing_running(started):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        session(master="local[1]")
    assert started.stops == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_a_handler_that_was_set_meanwhile_stays():
    """As PySpark sets its own."""
    before = signal.getsignal(signal.SIGINT)
    try:
        with interruption.noted():
            signal.signal(signal.SIGINT, signal.default_int_handler)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_threads_have_no_handlers_to_set():
    found = []

    def run() -> None:
        with interruption.noted() as is_interrupted:
            found.append(is_interrupted())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [False]
