"""Transactional producer that is closed with a time limit during a commit, as by a signal handler or another thread."""

from __future__ import annotations

from typing import Final

from chaffinch.errors import IllegalStateException, KafkaException
from chaffinch.producer.core import events
from simulation.programs.producers import ProducerProcess
from simulation.programs.programs import Call, Verb

CLOSES_SHARE: Final = 0.2
"""Share of commits during which the producer is closed."""
BEGINS_MS_MAX: Final = 60
"""Longest time from the call of commit to that of close."""
LIMIT_MS_MAX: Final = 150
ENDS_MS_MAX: Final = 30
"""Longest time from the end of close's wait to the end of the sender."""
CLOSE: Final = Call(Verb.CLOSE)


class EarlyCloseProcess(ProducerProcess):
    """A producer that is sometimes closed during a commit; its program then requests a new one."""

    _is_closed = False

    def _call(self, call: Call) -> None:
        if self._is_closed:
            self._resume_soon(IllegalStateException("the producer is closed"))
            return
        if call.verb is Verb.COMMIT and self._world.chance(CLOSES_SHARE):
            self._world.after(self._world.rng.randint(0, BEGINS_MS_MAX), self._close_during_commit)
        super()._call(call)

    def _close_during_commit(self) -> None:
        if self._awaited is None or self._awaited.verb is not Verb.COMMIT or self._is_closed:
            return
        self._is_closed = True
        limit_ms = self._world.rng.randint(0, LIMIT_MS_MAX)
        self._world.count("closes during a commit")
        self._world.log(self.actor, f"is closed within {limit_ms} ms")
        self._core.shut()
        self.handle(events.CloseCalled(call=CLOSE, deadline_ms=self._world.steady_ms + limit_ms))

    def _returned(self, call: Call | None, error: KafkaException | None) -> None:
        if call is CLOSE:
            self._world.after(self._world.rng.randint(0, ENDS_MS_MAX), self._end_sender)
        elif call is not None:  # None: the abort that close itself requests.
            super()._returned(call, error)

    def _end_sender(self) -> None:
        """Like `SenderThread._end`: calls that still wait fail, because nothing will complete them."""
        if not self._is_dead:
            for effect in self._core.give_up(IllegalStateException("the producer is closed")):
                self._perform(effect)
