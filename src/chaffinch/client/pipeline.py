"""A window of requests to one broker, for the blocking client: batches are pushed without waiting for each answer."""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol, Self

from chaffinch.client.addresses import Address
from chaffinch.client.connections import Answered
from chaffinch.client.exchange import Deadline, Exchange, failure_of
from chaffinch.errors import IllegalStateException, NetworkException, Stored
from chaffinch.protocol.schema import Message


class Owner(Protocol):
    """What a pipeline needs of its client."""

    @property
    def lock(self) -> AbstractContextManager[Any]: ...
    def start(self, message: Message, address: Address) -> Exchange: ...
    def deadline(self, timeout_ms: int | None, what: str) -> Deadline: ...
    def pump(self, wait_ms: int) -> None: ...


class Pipeline:
    """Requests in flight to one broker, in order, at most `window` of them; answers come back in the same order.

    Nothing is tried again here: when the connection is lost, `send` or `finish` raises NetworkException (TimeoutException when time
    is over). Then `take_answers()` has the answers that came before, and `unanswered` the requests, in order, whose fate the caller
    has to find out (Produce batches with sequences can simply be pushed again).
    """

    def __init__(self, client: Owner, address: Address, window: int) -> None:
        if window < 1:
            raise ValueError(f"a window of {window} requests")
        self.address = address
        self._client = client
        self._window = window
        self._open: deque[Exchange] = deque()
        self._answers: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None and self._open:
            raise IllegalStateException(f"{len(self._open)} requests to {self.address} were never waited for: call finish()")

    @property
    def unanswered(self) -> list[Any]:
        """The requests without an answer, in the order in which they were sent."""
        return [exchange.message for exchange in self._open]

    def take_answers(self) -> list[Any]:
        """The answers that have come and were not returned yet, in order."""
        answers, self._answers = self._answers, []
        return answers

    def send(self, message: Message, *, timeout_ms: int | None = None) -> list[Any]:
        """Send, after waiting for room in the window; the answers that have come meanwhile, in order."""
        with self._client.lock:
            self._wait(self._window - 1, timeout_ms)
            self._open.append(self._client.start(message, self.address))
            return self.take_answers()

    def finish(self, *, timeout_ms: int | None = None) -> list[Any]:
        """Wait for every answer; those not returned yet, in order."""
        with self._client.lock:
            self._wait(0, timeout_ms)
            return self.take_answers()

    def _wait(self, open_max: int, timeout_ms: int | None) -> None:
        deadline = self._client.deadline(timeout_ms, f"waiting for {len(self._open)} answers of {self.address}")
        self._collect()
        while len(self._open) > open_max:
            if deadline.is_over:
                deadline.note(NetworkException(f"no answer from {self.address} yet", stored=Stored.POSSIBLY))
                raise deadline.error(f"{len(self._open)} requests have no answer")
            self._client.pump(deadline.left_ms)
            self._collect()

    def _collect(self) -> None:
        while self._open and (outcome := self._open[0].outcome) is not None:
            if not isinstance(outcome, Answered):
                raise failure_of(self._open[0])
            self._open.popleft()
            self._answers.append(outcome.message)
