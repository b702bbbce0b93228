"""Background thread of a consumer: sends heartbeats and fetches, and runs all work on the core, also for callers.

Callers submit jobs and wait for them (`run`, `run_until`). On a caller's thread KeyboardInterrupt could interrupt a change of the core
half-way. Callers themselves set only single fields, at the end of `poll` and while a loop iterates.

There is no lock. A signal handler or a finalizer may interrupt any call of the caller; with a lock held by that call it would wait for
itself. When this thread ends, for any reason, all waiting and later calls fail instead of blocking.
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

# Upper limit of a wait without a deadline; nothing depends on it.
IDLE_WAIT_MS: Final = 60_000
# A wait without a limit is interrupted after this time, so that KeyboardInterrupt is noticed on all platforms.
WAIT_S_MAX: Final = 10.0


class _Job:
    """A function that a caller submits. With `repeats` it is called after each change, until its result is not None."""

    __slots__ = ("call", "error", "is_abandoned", "repeats", "result", "running_lock")

    def __init__(self, call: Callable[[], Any], *, repeats: bool) -> None:
        self.call = call
        self.repeats = repeats
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_abandoned = False
        """No caller waits for it."""
        self.running_lock = threading.Lock()
        """Held until the job is done."""
        self.running_lock.acquire()

    def attempt(self) -> bool:
        """Call the function; returns whether the job is done. `end` notifies the caller."""
        try:
            self.result = self.call()
        except BaseException as error:  # `end` passes it to the caller.
            self.error = error
        return self.error is not None or self.result is not None or not self.repeats

    def end(self, death: KafkaException | None = None) -> None:
        """Release the caller, once. With `death` the call fails with that error, whatever its result was."""
        if death is not None:
            self.error = copy_for_raise(death)
        self.running_lock.release()


class ConsumerThread(ClientThread):
    """Runs a core until it is stopped, or its consumer is garbage-collected; then the group removes the member after its session."""

    def __init__(self, core: ConsumerCore, network: Network, clock: Clock, name: str) -> None:
        super().__init__(network, name, "consumer", log)
        self.core = core
        self._clock = clock
        self._new_jobs: SimpleQueue[_Job] = SimpleQueue()
        self._jobs: list[_Job] = []
        """Accepted jobs that are not done."""
        self._has_changes = False
        """Something has changed since the waiting jobs were last called."""
        self._outbox: list[SendRequest] = []
        self._reports: list[str] = []

    def start(self) -> None:
        super().start()
        atexit.register(self.stop, EXIT_WAIT_MS)

    def run(self, call: Callable[[], T]) -> T:
        """Call a function on this thread; returns its result or raises its exception. After KeyboardInterrupt it may have run."""
        job = _Job(call, repeats=False)
        self._wait_for(job, None)
        result: T = job.result
        return result

    def run_until(self, call: Callable[[], T | None], limit_s: float | None) -> T | None:
        """Call a function after each change until its result is not None. It is called at least once; None after `limit_s` seconds."""
        job = _Job(call, repeats=True)
        self._wait_for(job, limit_s)
        result: T | None = job.result
        return result

    def post(self, call: Callable[[], object]) -> None:
        """Call a function before later jobs, without waiting for it. It is not called once the thread has ended."""
        self._submit(_Job(call, repeats=False))

    def notify(self) -> None:
        """Report a change, so that waiting jobs are called again. May be called from any thread and from signal handlers."""
        self._has_changes = True
        self._network.wakeup()

    def _submit(self, job: _Job) -> None:
        self._new_jobs.put(job)  # SimpleQueue.put is reentrant.
        self.notify()

    def _wait_for(self, job: _Job, limit_s: float | None) -> None:
        if self.is_own_thread:
            raise IllegalStateException(
                "a finalizer on the consumer's own thread would wait for itself: call the consumer from the main program"
            )
        deadline_ms = None if limit_s is None else self._clock.steady_ms() + 1000 * limit_s
        try:
            self._submit(job)
            if self.death is not None and job.running_lock.locked():  # In this order: the job itself may have ended the thread.
                self.check_alive()  # At its end the thread sets `death` first, then fails submitted jobs.
            while not job.running_lock.acquire(timeout=WAIT_S_MAX if deadline_ms is None else self._remaining_s(deadline_ms)):
                if deadline_ms is not None and self._clock.steady_ms() >= deadline_ms:
                    self.run(lambda: setattr(job, "is_abandoned", True))  # After this it was called at least once.
                    break
        except BaseException:  # KeyboardInterrupt: no caller waits for it any more.
            job.is_abandoned = True
            raise
        error, job.error = job.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # Its traceback references this frame: a cycle that would keep the consumer alive until a garbage collection.

    def _remaining_s(self, deadline_ms: float) -> float:
        return min(max(0.0, (deadline_ms - self._clock.steady_ms()) / 1000), WAIT_S_MAX)

    def _loop(self) -> None:
        events: list[Any] = []
        while not self._is_stopping and self._unclosed is None:
            steady_ms = self._clock.steady_ms()
            if events or not self._is_caller_waiting:  # Otherwise `_work` runs a round of the core for the callers.
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
        for request in self._outbox:  # LeaveGroup, if `close` had no time left for its response.
            self._network.carry_out(request)

    @property
    def _is_caller_waiting(self) -> bool:
        """Whether a job waits and something has changed for it."""
        return self._has_changes and (bool(self._jobs) or not self._new_jobs.empty())

    def _work(self) -> None:
        """Call the jobs, and repeat those that wait while they cause further changes."""
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
        """Apply effects: queue requests and log lines, complete calls immediately."""
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
