"""One request of the blocking client under way, the deadline of a call, and the exception of a request without an answer."""

from __future__ import annotations

from dataclasses import dataclass

from chaffinch.client.addresses import Address
from chaffinch.client.connections import Answered, Failed, Written
from chaffinch.client.wait_log import Wait
from chaffinch.errors import ApiException, NetworkException, Stored, TimeoutException, UnsupportedVersionException
from chaffinch.protocol.apis import api_of
from chaffinch.protocol.schema import Message
from chaffinch.runtime.clock import Clock


@dataclass(slots=True, eq=False)
class Exchange:
    """One request under way: its outcome, once there is one."""

    message: Message
    address: Address
    outcome: Answered | Failed | Written | None = None


class Deadline:
    """Until when a call may go on, and what it would say then."""

    def __init__(self, clock: Clock, timeout_ms: int, what: str, api: str | None = None, asked_to_wait_ms: int = 0) -> None:
        self._clock = clock
        self._api = api
        self._may_be_done = False
        self.started_ms = clock.now_ms()
        self.at_ms = self.started_ms + timeout_ms
        self.waits_since_ms = self.started_ms + asked_to_wait_ms
        self.what = what
        self.last_error: BaseException | None = None

    @property
    def left_ms(self) -> int:
        return max(0, self.at_ms - self._clock.now_ms())

    @property
    def is_over(self) -> bool:
        return self._clock.now_ms() >= self.at_ms

    @property
    def total_ms(self) -> int:
        """How long it is."""
        return self.at_ms - self.started_ms

    @property
    def waited_ms(self) -> int:
        return self._clock.now_ms() - self.started_ms

    def note(self, error: ApiException, *, is_new: bool = True) -> None:
        """An attempt failed. One of the request itself may have been acted on; `is_new`: it says more than the attempts before."""
        self._may_be_done |= error.api == self._api and error.stored is Stored.POSSIBLY
        if is_new or self.last_error is None:
            self.last_error = error

    def wait(self, why: str) -> Wait:
        """The wait, for a log line. Time that the broker was asked to wait does not count before the first line."""
        return Wait(None, self.what, self.waits_since_ms, why, until_ms=self.at_ms)

    def error(self, detail: str) -> TimeoutException:
        """What the caller is told when time is over; the last error is its cause."""
        stored = Stored.POSSIBLY if self._may_be_done else Stored.NO
        error = TimeoutException(f"{self.what} failed after {self.waited_ms} ms: {detail}", stored=stored, api=self._api)
        error.__cause__ = self.last_error
        return error


def failure_of(exchange: Exchange) -> ApiException:
    """The exception of a request that got no answer."""
    outcome, api = exchange.outcome, api_of(exchange.message).name
    if not isinstance(outcome, Failed):
        return TimeoutException(f"no answer from {exchange.address} in time", stored=Stored.POSSIBLY, api=api)
    if outcome.is_unsupported:
        return UnsupportedVersionException(f"{exchange.address}: {outcome.reason}", stored=Stored.NO, api=api)
    if outcome.error is not None:
        return outcome.error
    stored = Stored.POSSIBLY if outcome.was_sent else Stored.NO
    error_class = TimeoutException if outcome.is_timeout else NetworkException
    return error_class(f"{exchange.address}: {outcome.reason}", stored=stored, api=api)
