"""The thread behind a consumer: it owns the network and keeps the core going while the caller works: heartbeats, fetches, answers.

One lock guards the core, and is what the caller waits on. The caller's own thread changes the core directly and hands over what that
leads to with `push`. However this thread ends, whoever waits, and whoever calls later, gets an error rather than waiting for ever.
"""

from __future__ import annotations

import atexit
import logging
import threading
from typing import Any, Final

from chaffinch.client.client_thread import EXIT_WAIT_MS, ClientThread
from chaffinch.client.network import Network
from chaffinch.consumer.core.consumer_core import ConsumerCore
from chaffinch.consumer.core.effects import CompleteCall, Effect, FailCall, Report, SendRequest, WakeCaller
from chaffinch.errors import KafkaException
from chaffinch.runtime.clock import Clock

log = logging.getLogger("chaffinch.consumer")

# Without a deadline the thread still looks up now and then; nothing depends on it.
IDLE_WAIT_MS: Final = 60_000


class Pending:
    """An outcome somebody waits for, on `ConsumerThread.changed`."""

    __slots__ = ("error", "is_done", "result")

    def __init__(self) -> None:
        self.is_done = False
        self.result: Any = None
        self.error: KafkaException | None = None

    def complete(self, result: Any = None, error: KafkaException | None = None) -> None:
        self.is_done, self.result, self.error = True, result, error


class ConsumerThread(ClientThread):
    """Runs a core until it is stopped, or nobody holds its consumer any more: then the group misses it after its session."""

    def __init__(self, core: ConsumerCore, network: Network, clock: Clock, name: str) -> None:
        super().__init__(network, name, "consumer", log)
        self.core = core
        self.changed = threading.Condition(threading.RLock())
        self._clock = clock
        self._outbox: list[SendRequest] = []
        self._reports: list[str] = []
        self._wakes_at_ms = 0

    def start(self) -> None:
        atexit.register(self.stop, EXIT_WAIT_MS)
        super().start()

    def push(self) -> bool:
        """The caller has changed the core, and holds the lock: see to what follows from it. Whether that is news for the caller itself."""
        self.check_alive()
        has_news = self._take(self.core.drain(self._clock.now_ms()))
        deadline_ms = self.core.next_deadline_ms
        if self._outbox or self._reports or (deadline_ms is not None and deadline_ms < self._wakes_at_ms):
            self._network.wakeup()
        return has_news

    def _loop(self) -> None:
        heard: list[Any] = []
        while not self._is_stopping and self._unclosed is None:
            with self.changed:
                now_ms = self._clock.now_ms()
                self._take(self.core.handle_all(heard, now_ms))
                requests, self._outbox = self._outbox, []
                reports, self._reports = self._reports, []
                deadline_ms = self.core.next_deadline_ms
                self._wakes_at_ms = now_ms + IDLE_WAIT_MS if deadline_ms is None else deadline_ms
            for request in requests:
                self._network.carry_out(request)
            for text in reports:
                log.warning("%s", text)
            heard = list(self._network.poll(max(0, self._wakes_at_ms - self._clock.now_ms())))
        for request in self._outbox:  # LeaveGroup, where close had no time left to wait for its answer.
            self._network.carry_out(request)

    def _take(self, effects: list[Effect]) -> bool:
        """Sort effects: requests and reports are this thread's, outcomes are told at once. Called with the lock held."""
        wakes = False
        for effect in effects:
            match effect:
                case SendRequest():
                    self._outbox.append(effect)
                case CompleteCall():
                    effect.call.complete(effect.result)
                    wakes = True
                case FailCall():
                    effect.call.complete(error=effect.error)
                    wakes = True
                case WakeCaller():
                    wakes = True
                case Report():
                    self._reports.append(effect.text)
        if wakes:
            self.changed.notify_all()
        return wakes

    def _end(self, death: KafkaException) -> None:
        with self.changed:
            self.death = death
            self._take(self.core.give_up(death))
            self.changed.notify_all()
        atexit.unregister(self.stop)
