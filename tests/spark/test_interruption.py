"""Ctrl-C while Java is at work. No Java here: what starts it is played."""

from __future__ import annotations

import signal
from contextlib import suppress
from unittest.mock import Mock

import pytest
from pyspark import SparkContext

from chaffinch.spark import interruption


def test_ctrl_c_is_noted_and_raises_once_it_is_pressed_again() -> None:
    with interruption.deferred() as presses:
        assert not presses
        signal.raise_signal(signal.SIGINT)
        assert presses
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


class Context:
    """A SparkContext with two executors, whose tasks end while somebody looks."""

    def __init__(self) -> None:
        self.levels: list[object] = []
        self.running = 3
        self._jvm, self._jsc = Mock(), Mock()
        log4j = self._jvm.org.apache.logging.log4j
        log4j.Level.OFF = "OFF"
        log4j.LogManager.getRootLogger().getLevel.return_value = "WARN"
        log4j.core.config.Configurator.setRootLevel = self.levels.append
        executors = Mock(numRunningTasks=self.look), Mock(numRunningTasks=lambda: 0)
        self._jsc.sc().statusTracker().getExecutorInfos.return_value = executors

    def look(self) -> int:
        self.running -= 1
        return self.running


def test_the_log_is_off_until_the_tasks_that_were_stopped_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context()
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    with interruption.silenced_log():
        assert (context.levels, context.running) == (["OFF"], 3)
    assert (context.levels, context.running) == (["OFF", "WARN"], 0)


def test_the_log_is_on_again_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context()
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    with pytest.raises(KeyboardInterrupt), interruption.silenced_log():
        raise KeyboardInterrupt
    assert context.levels == ["OFF", "WARN"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, AttributeError])
def test_the_log_is_on_again_though_nobody_knows_of_the_tasks(
    monkeypatch: pytest.MonkeyPatch, error: type[AttributeError | KeyboardInterrupt]
) -> None:
    """Ctrl-C once more, or a Spark that has ended meanwhile."""
    context = Context()
    context._jsc.sc().statusTracker().getExecutorInfos.side_effect = error
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    with suppress(KeyboardInterrupt), interruption.silenced_log():
        pass
    assert context.levels == ["OFF", "WARN"]


def test_a_spark_that_has_only_connect_is_stopped_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("pyspark.SparkContext")
    stopped = []
    with interruption.silenced_log():
        stopped.append(True)
    assert stopped


@pytest.mark.parametrize("context", [None, Mock(_jvm=None)], ids=["Spark Connect", "Java has ended"])
def test_where_there_is_no_log_nothing_is_asked_of_it(monkeypatch: pytest.MonkeyPatch, context: Mock | None) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    with interruption.silenced_log():
        pass
    assert context is None or not context._jsc.called


def test_tasks_that_do_not_end_are_not_waited_for_longer_than_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context()
    context.running = 1 << 30
    monkeypatch.setattr(interruption, "_TASKS_STOP_S", 0.0)
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    with interruption.silenced_log():
        pass
    assert context.running == (1 << 30) - 1
