"""The thread behind a consumer: it owns the network and keeps the core going while the caller works: heartbeats, fetches, answers.

It alone uses the core, for callers as well, who hand over what is to be done and wait (`run`, `run_until`): in a caller's thread Ctrl-C
may come in the midst of anything, and would leave the core changed by half. Callers set no more than single fields, as `poll` ends and as a
loop goes on. There is no lock: a signal handler, or a finalizer, may call whatever call it interrupts, and this thread would wait for one
that is held there. However this thread ends, whoever waits, and whoever calls later, gets an error rather than waiting for ever.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from chaffinch.client.client_thread import EXIT_WAIT_MS, ClientThread
from chaffinch.client.effects import CompleteCall, Disconnect, FailCall, Report, SendRequest
from chaffinch.client.network import Network
from chaffinch.consumer.core.consumer_core import ConsumerCore
from chaffinch.consumer.core.context import Effect, WakeCaller
from chaffinch.errors import IllegalStateException, KafkaException
from chaffinch.errors.copies import copy_for_raise
from chaffinch.runtime.clock import Clock

log = logging.getLogger("chaffinch.consumer")

T = TypeVar("T")

# Without a deadline the thread still looks up now and then; nothing depends on it.
IDLE_WAIT_MS: Final = 60_000
# Waiting "for ever" is looked at now and then, so that Ctrl-C is heard everywhere.
WAIT_S_MAX: Final = 10.0


class Pending:
    """An outcome that the core tells."""

    __slots__ = ("error", "is_done", "result")

    def __init__(self) -> None:
        self.is_done = False
        self.result: Any = None
        self.error: KafkaException | None = None

    def complete(self, result: Any = None, error: KafkaException | None = None) -> None:
        self.is_done, self.result, self.error = True, result, error


class _Job:
    """What a caller wants done. With `repeats` it is tried whenever something has changed, until it gives something but None."""

    __slots__ = ("call", "error", "is_abandoned", "repeats", "result", "running_lock")

    def __init__(self, call: Callable[[], Any], *, repeats: bool) -> None:
        self.call = call
        self.repeats = repeats
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_abandoned = False
        """Nobody waits for it any more."""
        self.running_lock = threading.Lock()
        """Held until then."""
        self.running_lock.acquire()

    def attempt(self) -> bool:
        """Whether there is nothing left to try; the caller hears of it by `end`."""
        try:
            self.result = self.call()
        except BaseException as error:  # Whatever it is, it is the caller's.
            self.error = error
        return self.error is not None or self.result is not None or not self.repeats

    def end(self, death: KafkaException | None = None) -> None:
        """Let the caller go on, once; with `death` whatever came of it."""
        if death is not None:
            self.error = copy_for_raise(death)
        self.running_lock.release()


class ConsumerThread(ClientThread):
    """Runs a core until it is stopped, or nobody holds its consumer any more: then the group misses it after its session."""

    def __init__(self, core: ConsumerCore, network: Network, clock: Clock, name: str) -> None:
        super().__init__(network, name, "consumer", log)
        self.core = core
        self._clock = clock
        self._new_jobs: SimpleQueue[_Job] = SimpleQueue()
        self._jobs: list[_Job] = []
        """Those that were taken over and are not over."""
        self._has_changes = False
        """Something has changed for those who wait."""
        self._outbox: list[SendRequest] = []
        self._reports: list[str] = []

    def start(self) -> None:
        super().start()
        atexit.register(self.stop, EXIT_WAIT_MS)

    def run(self, call: Callable[[], T]) -> T:
        """Have this thread do something with the core; what it gives, or raises. Who is interrupted does not know whether it was done."""
        job = _Job(call, repeats=False)
        self._wait_for(job, None)
        result: T = job.result
        return result

    def run_until(self, call: Callable[[], T | None], limit_s: float | None) -> T | None:
        """Have something done whenever something has changed, until it gives something; None after `limit_s` seconds, and at least once."""
        job = _Job(call, repeats=True)
        self._wait_for(job, limit_s)
        result: T | None = job.result
        return result

    def post(self, call: Callable[[], object]) -> None:
        """Have something done before what is asked for next, without waiting for it; not at all once the thread has ended."""
        self._submit(_Job(call, repeats=False))

    def notify(self) -> None:
        """Something has changed for those who wait. From any thread, also from a signal handler."""
        self._has_changes = True
        self._network.wakeup()

    def _submit(self, job: _Job) -> None:
        self._new_jobs.put(job)  # In C, and made for being called in the midst of itself.
        self.notify()

    def _wait_for(self, job: _Job, limit_s: float | None) -> None:
        if self.is_own_thread:
            raise IllegalStateException(
                "a finalizer that Python calls in the consumer's own thread would wait for itself: call the consumer in the main flow"
            )
        deadline_ms = None if limit_s is None else self._clock.steady_ms() + 1000 * limit_s
        try:
            self._submit(job)
            if self.death is not None and job.running_lock.locked():  # In this order: it may have been done, and have ended the thread.
                self.check_alive()  # At its end the thread says so first, then it ends what was handed over.
            while not job.running_lock.acquire(timeout=WAIT_S_MAX if deadline_ms is None else self._remaining_s(deadline_ms)):
                if deadline_ms is not None and self._clock.steady_ms() >= deadline_ms:
                    self.run(lambda: setattr(job, "is_abandoned", True))  # It has been tried once then.
                    break
        except BaseException:  # Ctrl-C: nobody waits for it any more.
            job.is_abandoned = True
            raise
        error, job.error = job.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # Its traceback holds this frame, which would hold it, and the consumer, until a collection of garbage.

    def _remaining_s(self, deadline_ms: float) -> float:
        return min(max(0.0, (deadline_ms - self._clock.steady_ms()) / 1000), WAIT_S_MAX)

    def _loop(self) -> None:
        events: list[Any] = []
        while not self._is_stopping and self._unclosed is None:
            steady_ms = self._clock.steady_ms()
            if events or not self._is_caller_waiting:  # Else what callers want leads to a round of the core's, too.
                self._apply(self.core.handle_all(events, steady_ms))
            self._work()
            requests, self._outbox = self._outbox, []
            for request in requests:
                self._network.carry_out(request)
            reports, self._reports = self._reports, []
            for text in reports:
                log.warning("%s", text)
            deadline_ms = self.core.next_deadline_ms
            wakes_at_ms = steady_ms + IDLE_WAIT_MS if deadline_ms is None else deadline_ms
            events = list(self._network.poll(0 if self._has_changes else max(0, wakes_at_ms - self._clock.steady_ms())))
        for request in self._outbox:  # LeaveGroup, where close had no time left to wait for its answer.
            self._network.carry_out(request)

    @property
    def _is_caller_waiting(self) -> bool:
        """Whether somebody waits for whom something has changed."""
        return self._has_changes and (bool(self._jobs) or not self._new_jobs.empty())

    def _work(self) -> None:
        """Do what callers want done, and again for those who wait as long as something changes by it."""
        while self._has_changes:
            self._has_changes = False
            self._accept_jobs()
            done = [job for job in self._jobs if job.is_abandoned or job.attempt()]
            if self._jobs:
                self._apply(self.core.drain(self._clock.steady_ms()))
            for job in done:
                self._jobs.remove(job)
                job.end()

    def _accept_jobs(self) -> None:
        with suppress(Empty):
            while True:
                self._jobs.append(self._new_jobs.get_nowait())

    def _apply(self, effects: list[Effect]) -> None:
        """Sort effects: requests and reports are for later, outcomes are told at once."""
        for effect in effects:
            match effect:
                case SendRequest():
                    self._outbox.append(effect)
                case Disconnect():
                    self._network.disconnect(effect.address, effect.reason)
                case CompleteCall():
                    effect.call.complete(effect.result)
                    self._has_changes = True
                case FailCall():
                    effect.call.complete(error=effect.error)
                    self._has_changes = True
                case WakeCaller():
                    self._has_changes = True
                case Report():
                    self._reports.append(effect.text)

    def _end(self, death: KafkaException) -> None:
        self.death = death
        try:
            self._apply(self.core.fail_all(death))
        finally:
            self._accept_jobs()
            for job in self._jobs:
                job.end(death)
            atexit.unregister(self.stop)
