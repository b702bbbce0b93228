"""Sender of an AsyncProducer: runs the producer's core on the running event loop, and completes its futures and calls there.

As in `SenderThread`, outcomes come in the core's order, and the producer may be called from callbacks. There is no lock: one thread, that
of the event loop, does everything.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, TypeVar

from chaffinch.client.connections import ConnectionEvent
from chaffinch.client.loop_calls import Changes, LoopCall
from chaffinch.client.loop_network import LoopNetwork
from chaffinch.client.options import ConnectionSettings
from chaffinch.errors import IllegalStateException, KafkaException
from chaffinch.errors.copies import copy_for_raise
from chaffinch.producer.core import events
from chaffinch.producer.core.effects import (
    AskHandler,
    CompleteBatch,
    CompleteCall,
    Effect,
    FailCall,
    FailRecords,
    Report,
    SendRequest,
    WakeCallers,
)
from chaffinch.producer.core.producer_core import ProducerCore
from chaffinch.producer.futures import RecordFuture
from chaffinch.producer.handler_calls import HandlerCalls
from chaffinch.producer.outcomes import complete_records
from chaffinch.producer.sender_thread import NEVER_MS
from chaffinch.public_names import exported_from
from chaffinch.runtime.clock import Clock

log = logging.getLogger("chaffinch.producer")

T = TypeVar("T")

CALLS_BETWEEN_ROUNDS: Final = 1000
"""A loop of `await producer.send(...)` that never has to wait would keep the event loop from sending: about 2 ms."""


@exported_from("chaffinch")
class AsyncRecordFuture(RecordFuture[T]):
    """The outcome of one record or table of an AsyncProducer: `await` it. A cancelled wait does not take the record back."""

    def result(self, timeout: float | None = None) -> T:
        """The outcome, if it is known.

        Raises:
            asyncio.InvalidStateError: it is not known yet; waiting here would block the event loop.
            KafkaException: the record failed.
        """
        self._check_done()
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, or None for success, if the outcome is known.

        Raises:
            asyncio.InvalidStateError: it is not known yet; waiting here would block the event loop.
        """
        self._check_done()
        return super().exception(0)

    def __await__(self) -> Generator[Any, None, T]:
        if not self.done():
            loop = asyncio.get_running_loop()
            waiter = loop.create_future()

            def wake() -> None:
                if not waiter.done():
                    waiter.set_result(None)

            def completed(_: object) -> None:
                if asyncio._get_running_loop() is loop:
                    wake()
                else:  # It is awaited on a loop other than its producer's.
                    loop.call_soon_threadsafe(wake)

            self.add_done_callback(completed)
            yield from waiter
        return self.result()

    def _check_done(self) -> None:
        if not self.done():
            raise asyncio.InvalidStateError("the outcome is not known yet: await the future")


class AsyncSender:
    """Runs a core until it is stopped. `changed` wakes the coroutines that wait in `send`."""

    is_own_thread: Final = False
    """Callbacks run on the loop, which never waits: a coroutine that one of them starts can wait for the core."""
    new_future: Final = AsyncRecordFuture

    def __init__(self, core: ProducerCore, settings: ConnectionSettings, clock: Clock, name: str, handler: HandlerCalls) -> None:
        self.core = core
        self.name: Final = name
        self.lock: AbstractContextManager[Any] = nullcontext()
        self.changed = Changes()
        self.death: KafkaException | None = None
        self._clock = clock
        self._handler = handler
        self._inbox: list[events.Event] = []
        """Events from callers; they stay here until the core has handled them."""
        self._pending_effects: deque[Effect] = deque()
        """Effects that are being executed."""
        self._calls_since_round = 0
        self._network = LoopNetwork(settings, clock, "producer", self._advance, self._failed)
        self.check_loop: Final = self._network.check_loop
        self.wakeup: Final = self._network.wake
        """Run a round soon: there may be something to send."""

    @property
    def is_in_other_process(self) -> bool:
        """Whether this is a forked child; the loop and the connections belong to the parent."""
        return self._network.is_in_other_process

    def submit(self, event: events.Event) -> None:
        """Hand an event to the core; the next round handles it."""
        if self.death is not None:
            raise copy_for_raise(self.death)
        self._inbox.append(event)
        self._network.wake()

    def call(self, make: Callable[[LoopCall], events.Event]) -> LoopCall:
        """Hand over an event with a call that waits for its outcome: `make` builds the event from the call.

        The round runs at once, so a call that needs no response, such as BeginTransaction, is done before its caller can be cancelled.
        """
        call = LoopCall()
        self.submit(make(call))
        self._network.run()
        return call

    async def yield_to_loop(self) -> None:
        """Let the loop run a round and other tasks before one more batch is accepted."""
        self._network.wake()
        await asyncio.sleep(0)

    @property
    def needs_round(self) -> bool:
        """Count a call that did not have to wait. Whether the loop must run a round before the next call."""
        self._calls_since_round += 1
        return self._calls_since_round > CALLS_BETWEEN_ROUNDS

    def stop(self) -> None:
        """Close the connections, and fail what has no outcome yet. A second call has no effect."""
        if self.death is None:
            self._end(IllegalStateException("the producer was closed in the meantime"), is_closing=True)
        self._network.close()

    def abandon(self, on_ended: Callable[[], None]) -> None:
        """The producer was garbage-collected without `close`, on any thread: send what was accepted, then end, and call `on_ended`."""

        def close() -> None:
            if self.death is not None:
                return
            if self.core.has_open_transaction:
                log.warning("%s: the producer was garbage-collected without close(): its open transaction is aborted", self.name)
                self.submit(events.AbortCalled(call=None, deadline_ms=self._clock.steady_ms() + self.core.context.block_ms))
            self.call(lambda call: events.CloseCalled(call=call, deadline_ms=NEVER_MS)).then(end)

        def end() -> None:
            self.stop()
            on_ended()

        self._network.call_from_finalizer(close)

    def _advance(self, received: list[ConnectionEvent]) -> int | None:
        self._calls_since_round = 0
        # If the core raises, the events stay in the inbox, and `_end` fails their calls.
        effects = self.core.handle_all([*self._inbox, *received], self._clock.steady_ms())
        self._inbox.clear()
        self._pending_effects.extend(effects)
        for effect in effects:
            if isinstance(effect, SendRequest):
                self._network.send(effect)
        while self._pending_effects:
            self._run_effect(self._pending_effects.popleft())
        return self.core.next_deadline_ms

    def _run_effect(self, effect: Effect) -> None:
        match effect:
            case CompleteBatch() | FailRecords():
                complete_records(effect)
            case AskHandler():
                # The handler may call the producer. The next round handles the decision.
                self.submit(events.HandlerDecided(batch=effect.batch, decision=self._handler.decide(effect)))
            case CompleteCall():
                if effect.call is not None:
                    effect.call.complete(None)
            case FailCall():
                if effect.call is not None:
                    effect.call.fail(effect.error)
            case WakeCallers():
                self.changed.notify_all()
            case Report():
                log.warning("%s", effect.text)
            case SendRequest():
                pass

    def _failed(self, error: BaseException) -> None:
        log.error("the producer has failed", exc_info=error)
        death = KafkaException(f"the producer has failed: {error!r}")
        death.__cause__ = error
        self._end(death, is_closing=False)

    def _end(self, death: KafkaException, *, is_closing: bool) -> None:
        """Fail all records and calls, and let every later call fail. `is_closing`: records fail as at the deadline of a close."""
        self.death = death
        self.core.shut()
        left_open = self.core.left_open(self._network.network.is_connected)
        effects: list[Effect] = [] if left_open is None else [Report(f"{self.name}: {left_open}")]
        effects += self._pending_effects
        if is_closing:
            self.core.completer.close()
        # The log need not say of a closed producer that it cannot go on.
        effects += [effect for effect in self.core.give_up(death) if not (is_closing and isinstance(effect, Report))]
        effects += [FailCall(call=event.call, error=death) for event in self._inbox if hasattr(event, "call")]
        self._pending_effects.clear()
        self._inbox.clear()
        for effect in effects:
            try:
                self._run_effect(effect)
            except BaseException:
                log.exception("an outcome could not be reported")
        self.changed.notify_all()
