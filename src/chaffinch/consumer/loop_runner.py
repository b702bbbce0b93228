"""The event loop as a runner of a consumer's core: heartbeats, fetches and rebalances go on while no call waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, TypeVar

from chaffinch.client.connections import ConnectionEvent
from chaffinch.client.effects import CompleteCall, Disconnect, FailCall, Report, SendRequest
from chaffinch.client.loop_calls import Changes
from chaffinch.client.loop_network import LoopNetwork
from chaffinch.client.options import ConnectionSettings
from chaffinch.consumer.core.consumer_core import ConsumerCore
from chaffinch.consumer.core.context import Effect, WakeCaller
from chaffinch.errors import IllegalStateException, KafkaException
from chaffinch.errors.copies import copy_for_raise
from chaffinch.runtime.clock import Clock

log = logging.getLogger("chaffinch.consumer")

T = TypeVar("T")


class LoopRunner:
    """Runs a core on the running event loop until it is stopped. Everything happens on the loop's thread."""

    def __init__(self, core: ConsumerCore, settings: ConnectionSettings, clock: Clock) -> None:
        self.core = core
        self.death: KafkaException | None = None
        self._clock = clock
        self._changes = Changes()
        self._has_changes = False
        """Something has changed since the waiting call was last tried."""
        self._network = LoopNetwork(settings, clock, "consumer", self._advance, self._failed)
        self.check_loop: Final = self._network.check_loop
        self.call_from_finalizer: Final = self._network.call_from_finalizer

    @property
    def is_stopping(self) -> bool:
        return self._network.is_closed

    def run_now(self, call: Callable[[], T]) -> T:
        """Call a function that may change the core; returns its result or raises its exception."""
        if self.death is not None:
            raise copy_for_raise(self.death)
        self._network.wake()  # For what the call causes.
        return call()

    async def run(self, call: Callable[[], T]) -> T:
        return self.run_now(call)

    async def run_until(self, call: Callable[[], T | None], limit_s: float | None) -> T | None:
        """Call a function after each change until its result is not None. It is called at least once; None after `limit_s` seconds.

        It is called by the task itself, so no result is lost if the task is cancelled.
        """
        deadline_ms = None if limit_s is None else self._clock.steady_ms() + 1000 * limit_s
        await asyncio.sleep(0)  # A loop over polls that never have to wait must not keep the event loop from its other tasks.
        while True:
            self._has_changes = False
            result = self.run_now(call)
            if result is not None:
                return result
            self._network.run()  # Do what the call has caused, which may be all that it waits for.
            if self._has_changes:
                continue
            remaining_s = None if deadline_ms is None else (deadline_ms - self._clock.steady_ms()) / 1000
            if remaining_s is not None and remaining_s <= 0:
                return None
            await self._changes.wait(remaining_s)

    def post(self, call: Callable[[], object]) -> None:
        """Call a function, unless the runner has ended."""
        if self.death is None:
            self.run_now(call)

    def notify(self) -> None:
        """Report a change from any thread, so that a waiting call is tried again."""
        self._network.call_from_finalizer(self._notify)

    def stop(self, timeout_ms: int | None = None) -> None:
        """Leave the group without waiting for the response, close the connections, and fail later calls. A second call has no effect."""
        if self.death is None:
            self.core.leave("the consumer is being closed")
            self._network.run()  # Unless `close` has done so: after a cancelled close the group need not wait for the session timeout.
        self._network.close()
        self._end(IllegalStateException("the consumer was closed in the meantime"))

    def _notify(self) -> None:
        self._has_changes = True
        self._changes.notify_all()

    def _advance(self, events: list[ConnectionEvent]) -> int | None:
        self._apply(self.core.handle_all(events, self._clock.steady_ms()))
        return self.core.next_deadline_ms

    def _apply(self, effects: list[Effect]) -> None:
        has_changes = False
        for effect in effects:
            match effect:
                case SendRequest():
                    self._network.send(effect)
                case Disconnect():
                    self._network.network.disconnect(effect.address, effect.reason)
                case CompleteCall():
                    effect.call.complete(effect.result)
                    has_changes = True
                case FailCall():
                    effect.call.complete(error=effect.error)
                    has_changes = True
                case WakeCaller():
                    has_changes = True
                case Report():
                    log.warning("%s", effect.text)
        if has_changes:
            self._notify()

    def _failed(self, error: BaseException) -> None:
        log.error("the consumer has failed", exc_info=error)
        death = KafkaException(f"the consumer has failed: {error!r}")
        death.__cause__ = error
        self._end(death)

    def _end(self, death: KafkaException) -> None:
        if self.death is not None:
            return
        self.death = death
        self._apply(self.core.fail_all(death))
        self._notify()
