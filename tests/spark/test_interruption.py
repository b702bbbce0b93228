"""Ctrl-C while Java is at work. No Java here: what starts it is played."""

from __future__ import annotations

import signal
from contextlib import suppress
from unittest.mock import Mock

import pytest
from pyspark import SparkContext

from chaffinch.spark import interruption


def test_first_ctrl_c_is_deferred_and_second_raises() -> None:
    with interruption.deferred() as presses:
        assert not presses
        signal.raise_signal(signal.SIGINT)
        assert presses
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


class Context:
    """A SparkContext with two executors, whose tasks end while they are polled."""

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


def test_log_is_silenced_until_stopped_tasks_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context()
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    with interruption.silenced_log():
        assert (context.levels, context.running) == (["OFF"], 3)
    assert (context.levels, context.running) == (["OFF", "WARN"], 0)


def test_log_is_restored_after_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context()
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    with pytest.raises(KeyboardInterrupt), interruption.silenced_log():
        raise KeyboardInterrupt
    assert context.levels == ["OFF", "WARN"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, AttributeError])
def test_log_is_restored_if_task_status_is_unknown(
    monkeypatch: pytest.MonkeyPatch, error: type[AttributeError | KeyboardInterrupt]
) -> None:
    """A second Ctrl-C, or a Spark that has ended in the meantime."""
    context = Context()
    context._jsc.sc().statusTracker().getExecutorInfos.side_effect = error
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    with suppress(KeyboardInterrupt), interruption.silenced_log():
        pass
    assert context.levels == ["OFF", "WARN"]


def test_silenced_log_works_with_spark_connect_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("pyspark.SparkContext")
    stopped = []
    with interruption.silenced_log():
        stopped.append(True)
    assert stopped


@pytest.mark.parametrize("context", [None, Mock(_jvm=None)], ids=["Spark Connect", "Java has ended"])
def test_silenced_log_has_no_effect_without_spark(monkeypatch: pytest.MonkeyPatch, context: Mock | None) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    with interruption.silenced_log():
        pass
    assert context is None or not context._jsc.called


def test_wait_for_stopped_tasks_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context()
    context.running = 1 << 30
    monkeypatch.setattr(interruption, "_TASKS_STOP_S", 0.0)
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    with interruption.silenced_log():
        pass
    assert context.running == (1 << 30) - 1
