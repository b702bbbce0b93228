"""The thread behind a producer: it feeds the core, owns the network, and tells everybody their outcome.

One lock guards the core; callers' threads take it to append records and to hand over events, never while they wait for an outcome.
Outcomes are told by this thread alone, outside the lock and in the core's order, so callbacks of one partition come in order and may
call the producer. It holds nothing of the public producer: one that nobody holds any more is collected, and its thread ends when what
was accepted has its outcome. However the thread ends (close, a mistake of ours, a fork that leaves it in the parent), whoever waits,
and whoever calls later, gets an error rather than waiting for ever.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from chaffinch.client.network import Network
from chaffinch.errors import IllegalStateException, KafkaException
from chaffinch.producer import process_ends
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
from chaffinch.producer.core.exception_handler import HandlerSaid
from chaffinch.producer.core.producer_core import ProducerCore
from chaffinch.runtime.clock import Clock

log = logging.getLogger("chaffinch.producer")

# Without a deadline the thread still looks up now and then; nothing depends on it.
IDLE_WAIT_MS: Final = 60_000
# close() without a limit still ends: every record has its outcome within delivery.timeout.ms.
NEVER_MS: Final = 2**53


class SenderThread:
    """Runs a core until it is stopped. `changed` is the lock, and what callers in `send` wait on."""

    def __init__(
        self,
        core: ProducerCore,
        network: Network,
        clock: Clock,
        name: str,
        on_outcome: Callable[[CompleteBatch | FailRecords], None],
        on_question: Callable[[AskHandler], HandlerSaid],
    ) -> None:
        self.core = core
        self.name = name
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.death: KafkaException | None = None
        """Why the thread is no more, once it has ended: nothing can be sent any more."""
        self.is_in_other_process = False
        """This is a forked child; the thread and the connections stay with the process that made them."""
        self._network = network
        self._clock = clock
        self._on_outcome = on_outcome
        self._on_question = on_question
        self._outbox: list[Effect] = []
        self._untold: deque[Effect] = deque()
        """Effects that are being carried out."""
        self._is_stopping = False
        self._after_last: Callable[[], None] | None = None
        """What to call at the end of a producer that nobody holds any more."""
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        process_ends.watch(self)
        self._thread.start()

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is this thread: a callback that must not wait for itself."""
        return threading.current_thread() is self._thread

    def submit(self, event: events.Event) -> None:
        """Hand an event to the core, from any thread; its effects are carried out by the sender thread."""
        with self.changed:
            if self.death is not None:
                raise self.death
            self._outbox += self.core.handle(event, self._clock.now_ms())
        self._network.wakeup()

    def call(self, make: Callable[[Future[None]], events.Event]) -> Future[None]:
        """Hand over an event that somebody waits for: `make` puts the future into it."""
        future: Future[None] = Future()
        self.submit(make(future))
        return future

    def wakeup(self) -> None:
        """There may be something to send."""
        self._network.wakeup()

    def leave_to_parent(self) -> None:
        """In a forked child: close the child's copies of the connections, and say from now on whose producer this is."""
        self.is_in_other_process = True
        self.death = IllegalStateException("the producer belongs to the process that made it, not to its forked child")
        self.core.shut()
        self._network.close()

    def abandon(self, after_last: Callable[[], None]) -> None:
        """Nobody holds the producer any more: send what was accepted, abort an open transaction, end, and call `after_last`.

        Takes no lock, because Python may collect the producer in any thread, in the midst of anything.
        """
        self._after_last = after_last
        self._network.wakeup()

    def stop(self, timeout_ms: int | None = None) -> None:
        """End the thread; what is under way is forgotten."""
        self._is_stopping = True
        self._network.wakeup()
        if not self.is_own_thread:
            self._thread.join(None if timeout_ms is None else timeout_ms / 1000)

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as error:  # The top of the thread: whatever it is, nobody may be left waiting.
            log.exception("the sender thread has died")
            death = KafkaException(f"the producer's sender thread has died: {error!r}")
            death.__cause__ = error
            self._end(death)
        else:
            self._end(IllegalStateException("the producer was closed before this was done"))
        finally:
            process_ends.forget(self)
            self._network.close()
            if self._after_last is not None:
                self._after_last()

    def _loop(self) -> None:
        heard: list[Any] = []
        while not self._is_stopping:
            with self.changed:
                now_ms = self._clock.now_ms()
                if self._after_last is not None and not self._is_ending:
                    heard += self._last_calls(now_ms)
                effects, self._outbox = self._outbox, []
                effects += self.core.handle_all(heard, now_ms)
                if any(isinstance(effect, WakeCallers) for effect in effects):
                    self.changed.notify_all()
            self._carry_out(effects)
            with self.lock:
                deadline_ms = self.core.next_deadline_ms
            wait_ms = IDLE_WAIT_MS if deadline_ms is None else max(0, deadline_ms - self._clock.now_ms())
            heard = list(self._network.poll(0 if self._outbox else wait_ms))

    def _last_calls(self, now_ms: int) -> list[events.Event]:
        """What close would ask for, of a producer that nobody can close any more."""
        self._is_ending = True
        calls: list[events.Event] = []
        if self.core.has_open_transaction:
            log.warning("%s: nobody holds the producer any more, and it was not closed: its open transaction is aborted", self.name)
            calls.append(events.AbortCalled(call=None, deadline_ms=now_ms + self.core.wiring.block_ms))
        over: Future[None] = Future()
        over.add_done_callback(lambda _: self.stop())
        return [*calls, events.CloseCalled(call=over, deadline_ms=NEVER_MS)]

    def _carry_out(self, effects: list[Effect]) -> None:
        self._untold.extend(effects)
        # Requests first: brokers work on them while outcomes are told.
        for effect in effects:
            if isinstance(effect, SendRequest):
                self._network.carry_out(effect)
        while self._untold:
            self._tell(self._untold.popleft())

    def _tell(self, effect: Effect) -> None:
        match effect:
            case CompleteBatch() | FailRecords():
                self._on_outcome(effect)
            case AskHandler():
                # Outside the lock: handlers may do what they like. What they say is heard in the next round.
                self.submit(events.HandlerAnswered(batch=effect.batch, said=self._on_question(effect)))
            case CompleteCall():
                if effect.call is not None:
                    effect.call.set_result(None)
            case FailCall():
                if effect.call is not None:
                    effect.call.set_exception(effect.error)
            case Report():
                log.warning("%s", effect.text)
            case SendRequest() | WakeCallers():
                pass

    def _end(self, death: KafkaException) -> None:
        """Settle everybody: records, callers, and whoever calls from now on."""
        with self.changed:
            self.death = death
            self.core.shut()
            effects, self._outbox = [*self._untold, *self._outbox], []
            # Of a producer that is closed nobody needs to hear in the log that it cannot go on.
            given_up = self.core.give_up(death)
            effects += [effect for effect in given_up if not (self._is_stopping and isinstance(effect, Report))]
            self.changed.notify_all()
        for effect in effects:
            try:
                self._tell(effect)
            except BaseException:
                log.exception("an outcome could not be told")
