"""`supervise`: keeps a query running. What an error asks for is `rules.decide`; here are the query, the clock and the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from chaffinch.errors import ConfigException
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
"""Modules of errors that are long traces of Java's, such as of a checkpointLocation that cannot be written."""
OnRestart = Callable[[ErrorTag, int, float], None]


class SupervisionEnded(RuntimeError):
    """A query that is not started again. `tag`: of its last error, None for one that is not Kafka's; Spark's exception is the cause."""

    def __init__(self, text: str, tag: ErrorTag | None, restarts: int) -> None:
        super().__init__(text)
        self.tag = tag
        self.restarts = restarts


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
    """Calls `start`, waits for the query to end, and starts it again as long as its errors ask for that; returns it when it ended without.

    `start` builds and starts the query; it is called for each restart. A query that somebody stopped, or that a trigger ended, is done;
    during a pause there is none that could be stopped.
    Restarts: at most `restarts_max` within any `window_s` seconds, after `pause_s` seconds, doubled each time up to `pause_max_s`;
    `on_restart` is told the error, the number of the restart (from 1) and the pause. `metrics`: HOST:PORT where Prometheus finds
    /metrics; the counts are those that the sink keeps in `checkpoint`, the option `checkpointLocation` of the query.
    An interruption (Ctrl-C), or an error that `on_restart` raises, ends it, and the query if there is one. Errors: SupervisionEnded;
    ConfigException for wrong limits; what `start` raises itself.
    """
    if not callable(start):
        raise ConfigException(f"start cannot be {start!r}: it must be a function that starts the query, it is called for each restart")
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
            raise ConfigException("checkpoint is only for metrics: give metrics=HOST:PORT too, or leave it out")
        return nullcontext()
    if checkpoint is None:
        raise ConfigException("metrics needs checkpoint: the option checkpointLocation of the query, where the sink keeps its counts")
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
        time.sleep(decision.pause_s)  # The caller waits for the query anyway; an interruption ends it.
        restarts.append(time.monotonic())


def _run_once(start: Callable[[], StreamingQuery], metrics: Metrics | None) -> StreamingQuery | Exception:
    """One run of the query: itself when it ended well, else its error."""
    with interruption.deferred() as presses:
        ended = _start_and_wait(start, metrics, presses)
    if presses:
        raise KeyboardInterrupt from (ended if isinstance(ended, Exception) else None)
    return ended


def _start_and_wait(start: Callable[[], StreamingQuery], metrics: Metrics | None, presses: list[int]) -> StreamingQuery | Exception:
    """What `start` raises counts as an error of the query if it has a tag or is Spark's."""
    try:
        activate_session()
        query = start()
    except Exception as error:
        if tag_of_error(error) is None and not type(error).__module__.startswith(_SPARK_ERROR_MODULES):
            raise
        return error
    if not hasattr(query, "awaitTermination"):
        raise ConfigException(f"start returned {query!r}: it must return the query that it has started, which else runs unwatched")
    with _stopped_on_error(query):
        if metrics is not None:
            metrics.watch(query)
        return _wait(query, presses)


def _wait(query: StreamingQuery, presses: list[int]) -> StreamingQuery | Exception:
    with interruption.deferred(presses):  # Where `start` has made the session, PySpark has set a handler of its own.
        try:
            while not query.awaitTermination(POLL_S):
                if presses:
                    _log.warning("interrupted: the query is being stopped; once more, and nobody waits for it")
                    raise KeyboardInterrupt
        except Exception as error:
            return error
        return query


@contextmanager
def _stopped_on_error(query: StreamingQuery) -> Iterator[None]:
    """Whoever leaves by an error leaves no query that runs unwatched."""
    try:
        yield
    except BaseException:
        try:
            with interruption.silenced_log():
                query.stop()
        except Exception as error:  # It must not stand for what was raised.
            _log.warning("the query could not be stopped: %s", first_line(None, str(error)))
        raise
