"""Close of an AsyncProducer: concurrent calls, time limits, cancellation, and log lines if it takes long."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from chaffinch.client.loop_calls import LoopCall
from chaffinch.errors import KafkaException
from chaffinch.producer.async_gate import AsyncGate
from chaffinch.producer.async_sender import AsyncSender
from chaffinch.producer.closing import SILENT_S, CloseLog, abort_on_close
from chaffinch.producer.core import events
from chaffinch.producer.sender_thread import NEVER_MS

log = logging.getLogger("chaffinch.producer")


class AsyncClosing:
    """The close of one AsyncProducer."""

    def __init__(self, gate: AsyncGate, sender: AsyncSender) -> None:
        self._core = gate.core
        self._sender = sender
        self._gate = gate
        self._clock = gate.clock

    async def close(self, timeout_ms: int | None) -> None:
        """Send the remaining records and end, within `timeout_ms` if given. A cancelled first call ends at once."""
        if self._sender.is_in_other_process:
            return
        deadline_ms = self._clock.steady_ms() + (NEVER_MS if timeout_ms is None else timeout_ms)
        if self._gate.close():
            await self._close_first(deadline_ms)
        elif self._sender.death is None:  # Wait for the end together with the first call, which logs the result.
            with suppress(KafkaException):
                await self._sender.call(lambda call: events.CloseCalled(call=call, deadline_ms=deadline_ms)).wait(None)
            self._end()

    async def _close_first(self, deadline_ms: int) -> None:
        close_log = CloseLog(self._core, self._sender.lock)
        try:
            if self._core.has_open_transaction:
                _, make = abort_on_close(self._core, self._clock.steady_ms(), deadline_ms)
                await self._wait(make, close_log)
            await self._wait(lambda call: events.CloseCalled(call=call, deadline_ms=deadline_ms), close_log)
            close_log.given_up()
        except KafkaException as error:
            log.warning("close: %s", error.message)
            close_log.given_up()
        except BaseException:  # Cancelled.
            close_log.ended_early("cancelled")
            raise
        finally:
            self._end()

    async def _wait(self, make: Callable[[LoopCall], events.Event], close_log: CloseLog) -> None:
        """Wait for a call, which ends at the deadline of its event. Log what it waits for if it takes long."""
        call = self._sender.call(make)
        try:
            await call.wait(SILENT_S)
        except TimeoutError:
            close_log.waits("cancelling the task")
            await call.wait(None)

    def _end(self) -> None:
        """Stop the sender, and close the exception handler. A second call has no effect."""
        try:
            self._sender.stop()
        finally:
            self._gate.handler.close()
