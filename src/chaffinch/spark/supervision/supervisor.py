"""Query supervisor: `supervise` restarts a failed query. `rules.decide` has the policy; this module handles query, clock and log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from chaffinch.errors import ConfigException
from chaffinch.public_names import exported_from
from chaffinch.spark import interruption
from chaffinch.spark.error_texts import first_line, tag_of_error
from chaffinch.spark.refusals import ErrorTag
from chaffinch.spark.session import activate_session
from chaffinch.spark.supervision.rules import Limits, Stop, decide
from chaffinch.spark.workers import advice_for

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from chaffinch.spark.supervision.metrics import Metrics

_log = logging.getLogger("chaffinch.spark")

POLL_S: Final = 1
_SPARK_ERROR_MODULES: Final = ("pyspark.errors", "py4j.")
"""Modules of Spark errors. Their texts are long Java stack traces, such as for a checkpointLocation that is not writable."""
OnRestart = Callable[[ErrorTag, int, float], None]


@exported_from("chaffinch.spark")
class SupervisionEnded(RuntimeError):
    """The query has failed and is not restarted. The exception of Spark is the cause.

    Attributes:
        tag: tag of the last error; None if it is not an error of Kafka.
        restarts: number of restarts before it.
    """

    def __init__(self, text: str, tag: ErrorTag | None, restarts: int) -> None:
        super().__init__(text)
        self.tag = tag
        self.restarts = restarts


@exported_from("chaffinch.spark")
def supervise(
    start: Callable[[], StreamingQuery],
    *,
    restarts_max: int = 10,
    window_s: float = 3600.0,
    pause_s: float = 1.0,
    pause_max_s: float = 60.0,
    metrics: str | None = None,
    checkpoint: str | None = None,
    on_restart: OnRestart | None = None,
) -> StreamingQuery:
    """Start a query and wait for it. Restart it after errors that a restart can fix.

    A query that was stopped, or whose trigger has completed, is not restarted. Ctrl-C, or an exception of `on_restart`, stops the query and
    is raised.

    Args:
        start: builds and starts the query, and returns it. It is called for each restart.
        restarts_max: maximum number of restarts within any `window_s`.
        window_s: length of that window in seconds.
        pause_s: pause before a restart in seconds; doubled for each earlier restart in the window. At most 1e6.
        pause_max_s: largest pause in seconds. At most 1e6.
        metrics: HOST:PORT on which Prometheus finds `/metrics`; port 0 selects a free one. Requires `checkpoint`.
        checkpoint: the option `checkpointLocation` of the query, in which its sinks store their counts.
        on_restart: called before each pause with the error, the number of the restart (from 1) and the pause in seconds.

    Returns:
        The query, when it has ended without an error.

    Raises:
        SupervisionEnded: the query failed and is not restarted.
        ConfigException: an argument is invalid, or `metrics` cannot be served.
        Exception: exceptions of `start` that are not errors of Kafka or Spark are raised unchanged.
    """
    if not callable(start):
        raise ConfigException(f"start cannot be {start!r}: it must be a function that starts the query; it is called for each restart")
    if on_restart is not None and not callable(on_restart):
        raise ConfigException(
            f"on_restart cannot be {on_restart!r}: it must be a function of the error, the restart's number and the pause"
        )
    limits = Limits(restarts_max=restarts_max, window_s=window_s, pause_s=pause_s, pause_max_s=pause_max_s)
    with _listener(metrics, checkpoint) as active_metrics:
        return _supervised(start, limits, active_metrics, on_restart)


def _listener(address: str | None, checkpoint: str | None) -> Metrics | nullcontext[None]:
    for name, value, example in (("metrics", address, "127.0.0.1:9464"), ("checkpoint", checkpoint, "/data/checkpoint")):
        if value is not None and not (isinstance(value, str) and value.strip()):
            raise ConfigException(f"{name} cannot be {value!r}: it must be a string such as {example}")
    if address is None:
        if checkpoint is not None:
            raise ConfigException("checkpoint is only used with metrics: give metrics=HOST:PORT too, or leave it out")
        return nullcontext()
    if checkpoint is None:
        raise ConfigException("metrics needs checkpoint: the option checkpointLocation of the query, where the sink stores its counts")
    from chaffinch.spark.supervision.metrics import Metrics

    return Metrics(address, checkpoint)


def _supervised(
    start: Callable[[], StreamingQuery], limits: Limits, metrics: Metrics | None, on_restart: OnRestart | None
) -> StreamingQuery:
    restarts: list[float] = []
    while True:
        ended = _run_once(start, metrics)
        if not isinstance(ended, Exception):
            return ended
        text = str(ended)
        tag = tag_of_error(ended)
        decision = decide(tag, restarts, time.monotonic(), limits)
        if isinstance(decision, Stop):
            reason = (advice_for(text) if tag is None else None) or decision.reason
            raise SupervisionEnded(f"{first_line(tag, text)}; not started again: {reason}", tag, len(restarts)) from ended
        assert tag is not None, "else it is not started again"
        number = len(restarts) + 1
        _log.warning("restart %d in %g s: %s", number, decision.pause_s, first_line(tag, text))
        if metrics is not None:
            metrics.restarted(tag)
        if on_restart is not None:
            on_restart(tag, number, decision.pause_s)
        time.sleep(decision.pause_s)  # The caller waits for the query anyway; Ctrl-C ends the pause.
        restarts.append(time.monotonic())


def _run_once(start: Callable[[], StreamingQuery], metrics: Metrics | None) -> StreamingQuery | Exception:
    """Run the query once: returns the query if it ended without an error, or else the error."""
    with interruption.deferred() as presses:
        ended = _start_and_wait(start, metrics, presses)
    if presses:
        raise KeyboardInterrupt from (ended if isinstance(ended, Exception) else None)
    return ended


def _start_and_wait(start: Callable[[], StreamingQuery], metrics: Metrics | None, presses: list[int]) -> StreamingQuery | Exception:
    """Start the query and wait for it. An exception of `start` counts as an error of the query if it has a tag or comes from Spark."""
    try:
        activate_session()
        query = start()
    except Exception as error:
        if tag_of_error(error) is None and not type(error).__module__.startswith(_SPARK_ERROR_MODULES):
            raise
        return error
    if not hasattr(query, "awaitTermination"):
        raise ConfigException(f"start returned {query!r}: it must return the query that it has started, which otherwise runs unsupervised")
    with _stopped_on_error(query):
        if metrics is not None:
            metrics.watch(query)
        return _wait(query, presses)


def _wait(query: StreamingQuery, presses: list[int]) -> StreamingQuery | Exception:
    with interruption.deferred(presses):  # If `start` created the session, PySpark has replaced the handler.
        try:
            while not query.awaitTermination(POLL_S):
                if presses:
                    _log.warning("interrupted: stopping the query; interrupt again to exit without waiting for it")
                    raise KeyboardInterrupt
        except Exception as error:
            return error
        return query


@contextmanager
def _stopped_on_error(query: StreamingQuery) -> Iterator[None]:
    """Stop the query if the block raises, so that it does not run unsupervised."""
    try:
        yield
    except BaseException:
        try:
            with interruption.silenced_log():
                query.stop()
        except Exception as error:  # It must not replace the original exception.
            _log.warning("the query could not be stopped: %s", first_line(None, str(error)))
        raise
