"""Close of a producer: concurrent calls, time limits, and log lines if it takes long."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import AbstractContextManager, suppress
from typing import Any, Final

from chaffinch.errors import KafkaException
from chaffinch.identifiers import pluralize
from chaffinch.producer.core import events
from chaffinch.producer.core.producer_core import ProducerCore
from chaffinch.producer.futures import RecordFuture
from chaffinch.producer.send_gate import SendGate
from chaffinch.producer.sender_thread import NEVER_MS, SenderThread

log = logging.getLogger("chaffinch.producer")

# close() logs what it waits for if it takes longer than this; sooner after Ctrl-C, because a user is waiting.
SILENT_S: Final = 5.0
INTERRUPTED_SILENT_S: Final = 1.0
# close() waits for the sender thread this much longer than its own limit. Then it returns without it, because a callback may never return.
GRACE_S: Final = 1.0
_SEE_FUTURES: Final = "; each future says whether it may be stored"


class CloseLog:
    """Log texts of a close: what it waits for, and the records without an outcome at its end."""

    def __init__(self, core: ProducerCore, lock: AbstractContextManager[Any]) -> None:
        self._core = core
        self._lock = lock
        self._expired_before = core.completer.expired_count

    def given_up(self) -> None:
        """Log the number of records that close gives up, and of those that expired while it waited: futures are rarely read after close."""
        with self._lock:
            completer, left_count = self._core.completer, self._core.outstanding_count
            lost = (
                ("given up without an outcome", completer.closed_count, completer.closed_cause),
                ("given up without an outcome", left_count, self._core.wait_causes.cause()),
                ("expired after delivery.timeout.ms", completer.expired_count - self._expired_before, completer.expired_cause),
            )
        for what, count, why in lost:
            if count:
                reason = "" if why is None else f" ({why})"
                log.warning("close: %s %s%s%s", pluralize(count, "record"), what, reason, _SEE_FUTURES)

    def waits(self, way_out: str) -> None:
        """Log what close waits for. `way_out`: what ends it earlier."""
        log.warning("closing waits for %s; %s ends it without them", self._unfinished(), way_out)

    def ended_early(self, how: str) -> None:
        """Log what close does not wait for any longer."""
        with self._lock:
            see = _SEE_FUTURES if self._core.outstanding_count else ""
        log.warning("close was %s and no longer waits for %s%s", how, self._unfinished(), see)

    def _unfinished(self) -> str:
        """Text about the records or the transaction without an outcome, and the cause, if known."""
        with self._lock:
            count, why = self._core.outstanding_count, self._core.wait_causes.cause()
        is_for_end = not count and self._core.transaction is not None
        waiting = "the end of the transaction" if is_for_end else f"{pluralize(count, 'record')} without an outcome"
        return waiting + (f" ({why})" if why else "")


def abort_on_close(core: ProducerCore, steady_ms: int, deadline_ms: int) -> tuple[int, Callable[[Any], events.AbortCalled]]:
    """The deadline of the abort of an open transaction by close, and a function that makes its event from the waiting call."""
    block_until_ms = steady_ms + core.context.block_ms
    within = "close's timeout" if deadline_ms < block_until_ms else "max.block.ms"
    until_ms = min(deadline_ms, block_until_ms)
    return until_ms, lambda call: events.AbortCalled(call=call, deadline_ms=until_ms, closes_within=within, only_if_open=True)


class Closing:
    """The close of one producer."""

    def __init__(self, gate: SendGate, sender: SenderThread) -> None:
        self._core = gate.core
        self._sender = sender
        self._gate = gate
        self._handler = gate.handler
        self._clock = gate.clock

    def close(self, timeout_ms: int | None, *, is_interrupted: bool) -> None:
        """Send the remaining records and end, within `timeout_ms` if given. `is_interrupted`: the user has pressed Ctrl-C, and waits."""
        deadline_ms = self._clock.steady_ms() + (NEVER_MS if timeout_ms is None else timeout_ms)
        was_open = not self._gate.is_closed
        try:
            if self._gate.close():
                self._close_first(deadline_ms, INTERRUPTED_SILENT_S if is_interrupted else SILENT_S)
            else:
                was_open = False
                self._wait_with_another(deadline_ms)
        except BaseException:
            if was_open:  # After an interrupted second call the first one goes on.
                self._end(0)
            raise

    def _close_first(self, deadline_ms: int, silent_s: float) -> None:
        """The first of several calls. However it ends, the sender thread is stopped."""
        join_ms = None
        close_log = CloseLog(self._core, self._sender.lock)
        try:
            self._abort_open_transaction(deadline_ms, silent_s, close_log)
            future = self._sender.call(lambda call: events.CloseCalled(call=call, deadline_ms=deadline_ms))
            if not self._sender.is_own_thread:
                self._wait_and_log(future, deadline_ms, silent_s, close_log)
            close_log.given_up()
        except KafkaException as error:
            if not self._sender.is_in_other_process:
                log.warning("close: %s", error.message)
                close_log.given_up()
        except FutureTimeoutError:
            log.warning("close: a callback or handler blocks the sender thread; the remaining outcomes follow once it returns")
            join_ms = 0
        except BaseException:  # KeyboardInterrupt, or another exception of a signal handler.
            close_log.ended_early("interrupted")
            raise
        finally:
            self._end(join_ms)

    def _end(self, join_ms: int | None) -> None:
        """Stop the sender thread, and close the exception handler. A second call has no effect."""
        try:
            self._sender.stop(join_ms)
        finally:
            self._handler.close()

    def _wait_with_another(self, deadline_ms: int) -> None:
        """Wait for the end together with an earlier call of close, perhaps one of this thread. The earlier call logs the result."""
        if self._sender.is_own_thread:
            return
        if self._sender.is_stopping:
            if self._sender.death is not None:
                self._handler.close()  # The first call may have been interrupted before it. A second close has no effect.
            return
        with suppress(KafkaException, FutureTimeoutError):
            future = self._sender.call(lambda call: events.CloseCalled(call=call, deadline_ms=deadline_ms))
            future.result(self._limit_s(deadline_ms))
        self._end(round(1000 * GRACE_S))  # The first call and its clean-up may have been interrupted.

    def _limit_s(self, deadline_ms: int) -> float:
        return min((deadline_ms - self._clock.steady_ms()) / 1000 + GRACE_S, threading.TIMEOUT_MAX)

    def _wait_and_log(self, future: RecordFuture[None], deadline_ms: int, silent_s: float, close_log: CloseLog) -> None:
        """Wait for a call. After `silent_s` log what it waits for, because an unreachable broker can take minutes."""
        limit_s = self._limit_s(deadline_ms)
        try:
            future.result(min(silent_s, limit_s))
        except FutureTimeoutError:
            if future.done() or limit_s <= silent_s:
                raise
            close_log.waits("Ctrl-C")
            future.result(limit_s - silent_s)

    def _abort_open_transaction(self, deadline_ms: int, silent_s: float, close_log: CloseLog) -> None:
        if not self._core.has_open_transaction:
            return
        until_ms, make = abort_on_close(self._core, self._clock.steady_ms(), deadline_ms)
        future = self._sender.call(make)
        if not self._sender.is_own_thread:
            self._wait_and_log(future, until_ms, silent_s, close_log)
