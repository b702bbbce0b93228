"""Sender thread of a producer: passes events to the core, runs the network, and completes futures and calls.

- One lock guards the core. Callers take it to append records and to hand over events, never while they wait for an outcome.
- Only this thread runs the core's rounds: on a caller's thread KeyboardInterrupt could interrupt a round half-way.
- Only this thread reports outcomes, outside the lock and in the core's order. So callbacks of a partition come in order, and may call the
  producer.
- It has no reference to the public producer. An abandoned producer is garbage-collected, and its thread ends when all accepted records
  have their outcome.
- However the thread ends (close, a bug, a fork that leaves it in the parent), waiting and later callers get an error rather than block.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from chaffinch.client.client_thread import ClientThread
from chaffinch.client.condition import Condition
from chaffinch.client.network import Network
from chaffinch.errors import IllegalStateException, KafkaException
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
from chaffinch.producer.core.exception_handler import HandlerDecision
from chaffinch.producer.core.producer_core import ProducerCore
from chaffinch.producer.futures import SHARED_LOCK, RecordFuture, future_class_of
from chaffinch.producer.inline_send import InlineSender
from chaffinch.protocol.messages.end_txn import EndTxnRequest
from chaffinch.runtime.clock import Clock

log = logging.getLogger("chaffinch.producer")

# Maximum wait without a deadline; nothing depends on it.
IDLE_WAIT_MS: Final = 60_000
# The deadline of close() without a limit. It still ends, because every record has its outcome within delivery.timeout.ms.
NEVER_MS: Final = 2**53


class SenderThread(ClientThread):
    """Runs a core until it is stopped. `lock` guards the core, and callers in `send` wait on `changed`, which is the same one."""

    def __init__(
        self,
        core: ProducerCore,
        network: Network,
        clock: Clock,
        name: str,
        on_outcome: Callable[[CompleteBatch | FailRecords], None],
        on_question: Callable[[AskHandler], HandlerDecision],
    ) -> None:
        super().__init__(network, name, "producer", log)
        self.core = core
        self.lock = threading.RLock()
        self.changed = Condition(self.lock)
        self.is_in_other_process = False
        """This is a forked child; the thread and the connections belong to the parent."""
        self._clock = clock
        self.inline_sender = InlineSender(core, network, clock, self.lock, self.wakeup)
        self.read_response, self.expedite = self.inline_sender.read_response, self.inline_sender.expedite
        self._has_inline_send = core.allows_inline_send and network.can_lend
        network.on_awake = self.inline_sender.close
        self._on_outcome = on_outcome
        self._on_question = on_question
        self.new_future: Final = future_class_of(self)
        """Makes futures that this thread completes."""
        self._inbox: list[events.Event] = []
        """Events from callers; they stay here until the core has handled them."""
        self._outbox: list[Effect] = []
        """Effects of the last round before the thread ends."""
        self._pending_effects: deque[Effect] = deque()
        """Effects that are being executed."""

    def start(self) -> None:
        super().start()
        RUNNING.add(self)

    @property
    def holds_lock(self) -> bool:
        """Whether the caller's thread holds the core's lock, or that of all futures, so that this thread is blocked.

        Then the caller is a signal handler or finalizer that has interrupted another call.
        """
        return bool(self.changed.is_owned() or SHARED_LOCK._is_owned())

    def submit(self, event: events.Event) -> None:
        """Hand an event to the core, from any thread. After an interruption it may have been handed over or not."""
        try:
            with self.lock:
                self.check_alive()
                self._inbox.append(event)
            self._network.wakeup()
        except BaseException:  # KeyboardInterrupt, perhaps after the event was handed over.
            self._network.wakeup()
            raise

    def call(self, make: Callable[[RecordFuture[None]], events.Event]) -> RecordFuture[None]:
        """Hand over an event with a future for its outcome: `make` builds the event from the future."""
        future: RecordFuture[None] = self.new_future()
        self.submit(make(future))
        return future

    def wakeup(self) -> None:
        """Wake the thread: there may be something to send."""
        self._network.wakeup()

    def leave_to_parent(self) -> None:
        """In a forked child: close the child's copies of the connections, and let every later call raise IllegalStateException."""
        self.is_in_other_process = True
        self.inline_sender.end()
        self.death = IllegalStateException("the producer belongs to the process that made it, not to its forked child")
        self.core.shut()
        self._network.close()

    def _loop(self) -> None:
        received: list[Any] = []
        while not self._is_stopping:
            if self._unclosed is not None:
                self.warn_of_unclosed()
                received += self._closing_calls()
            has_news = self.inline_sender.was_used or bool(received or self._inbox)
            effects = self._handle(received)
            # Requests first, so that brokers start to work. Outcomes last: notified threads need the interpreter, which is free in `poll`.
            self._pending_effects.extend(effects)
            self._send_requests(effects)
            with self.lock:
                deadline_ms, is_awaited = self.core.next_deadline_ms, self.core.is_awaited
            self._run_effects()
            wait_ms = IDLE_WAIT_MS if deadline_ms is None else max(0, deadline_ms - self._clock.steady_ms())
            if self._has_inline_send and (has_news or effects):
                wait_ms = min(wait_ms, self._open_inline_send())
            received = list(self._network.poll(0 if self._inbox else wait_ms, is_awaited=is_awaited))
        if self._inbox:
            self._outbox = self._handle([])

    def _open_inline_send(self) -> int:
        """Enable inline sends while this thread sleeps, if there is nothing to do. Returns how long it may sleep, in ms."""
        with self.lock:
            return self.inline_sender.open() if self.core.is_idle and not self._inbox else IDLE_WAIT_MS

    def _handle(self, received: list[Any]) -> list[Effect]:
        """Run a round of the core. A full batch is encoded before it without the lock, which callers need for `send`."""
        with self.lock:
            steady_ms = self._clock.steady_ms()
            full = self.core.batch_sender.full_head(steady_ms)
            if full is None:
                return self._advance(received, steady_ms)
        self.core.accumulator.encode_ahead(full)
        with self.lock:
            return self._advance(received, self._clock.steady_ms())

    def _advance(self, received: list[Any], steady_ms: int) -> list[Effect]:
        # If the core raises, the events stay in the inbox, and `_end` fails their calls.
        effects = self.core.handle_all([*self._inbox, *received], steady_ms)
        self._inbox.clear()
        if WakeCallers in map(type, effects):
            self.changed.notify_all()
        return effects

    def _closing_calls(self) -> list[events.Event]:
        """The events that close would send, for an abandoned producer."""
        calls: list[events.Event] = []
        if self.core.has_open_transaction:
            log.warning("%s: the producer was garbage-collected without close(): its open transaction is aborted", self.name)
            calls.append(events.AbortCalled(call=None, deadline_ms=self._clock.steady_ms() + self.core.context.block_ms))
        over: RecordFuture[None] = self.new_future()
        over.add_done_callback(lambda _: self.stop())
        return [*calls, events.CloseCalled(call=over, deadline_ms=NEVER_MS)]

    def _send_requests(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SendRequest):
                self._network.carry_out(effect)

    def _run_effects(self) -> None:
        while self._pending_effects:
            self._run_effect(self._pending_effects.popleft())

    def _run_effect(self, effect: Effect) -> None:
        match effect:
            case CompleteBatch() | FailRecords():
                self._on_outcome(effect)
            case AskHandler():
                # Outside the lock, because handlers may call the producer. The next round handles the decision.
                self.submit(events.HandlerDecided(batch=effect.batch, decision=self._on_question(effect)))
            case CompleteCall():
                if effect.call is not None:
                    effect.call.complete(None)
            case FailCall():
                if effect.call is not None and not effect.call.done():
                    effect.call.fail(effect.error)
            case Report():
                log.warning("%s", effect.text)
            case SendRequest() | WakeCallers():
                pass

    def _end_transaction(self) -> list[Effect]:
        """Send an EndTxn of the last round, although its response is not read. Report a transaction that is left open without one, or whose
        coordinator is not connected.
        """
        try:
            for effect in self._outbox:
                if isinstance(effect, SendRequest) and isinstance(effect.message, EndTxnRequest):
                    self._network.carry_out(effect)
        except Exception:  # Callers must be notified in any case.
            log.exception("%s: EndTxn could not be sent", self.name)
        left_open = self.core.left_open(self._network.is_connected)
        return [] if left_open is None else [Report(f"{self.name}: {left_open}")]

    def _end(self, death: KafkaException) -> None:
        """Fail all records and calls, and let every later call fail."""
        with self.lock:
            self.death = death
            self.core.shut()
            self.inline_sender.end()
            effects, self._outbox = [*self._end_transaction(), *self._pending_effects, *self._outbox], []
            if self._is_stopping:  # Stopped by a close that did not wait to the end: records fail as at its deadline.
                self.core.completer.close()
            # For a closed producer no log line is needed.
            given_up = self.core.give_up(death)
            effects += [effect for effect in given_up if not (self._is_stopping and isinstance(effect, Report))]
            effects += [FailCall(call=event.call, error=death) for event in self._inbox if hasattr(event, "call")]
            self._inbox.clear()
            self.changed.notify_all()
        for effect in effects:
            try:
                self._run_effect(effect)
            except BaseException:
                log.exception("an outcome could not be reported")
        RUNNING.discard(self)
        self._network.on_awake = None


RUNNING: Final[weakref.WeakSet[SenderThread]] = weakref.WeakSet()
"""Threads that were started and have not ended: `process_hooks.py` ends them with the process."""
