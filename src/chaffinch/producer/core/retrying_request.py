"""A request that goes again, after longer and longer waits, until its answer is of use; and who waits for that meanwhile."""

from __future__ import annotations

from typing import Final, NamedTuple

from chaffinch.client.addresses import Address
from chaffinch.errors import KafkaException

CLOSES_LIMIT: Final = "close's timeout"


class Waiter(NamedTuple):
    """Somebody who waits for it, in words, and until when; `limit` says what that follows from, an option as a rule."""

    name: str
    deadline_ms: int
    limit: str


class RequestInfo(NamedTuple):
    """A request, in words, and the broker that got it."""

    description: str
    address: Address


class RetryingRequest:
    """One request at a time: of the transaction, or for the identity of a producer without transactions."""

    def __init__(self) -> None:
        self.last: RequestInfo | None = None
        """The request that is under way, or was."""
        self.last_error: KafkaException | None = None
        """Why there is no answer of use yet."""
        self.last_failed: RequestInfo | None = None
        """The request that came to it."""
        self.failures = 0
        """Requests in a row that have to go again."""
        self.successes = 0
        self.is_under_way = False
        self._not_before_ms = 0

    def may_begin(self, steady_ms: int) -> bool:
        """Whether none is under way, and the wait after the last one is over."""
        return not self.is_under_way and steady_ms >= self._not_before_ms

    def begin(self, description: str, address: Address) -> None:
        """A request goes out."""
        self.is_under_way, self.last = True, RequestInfo(description, address)

    def ended(self) -> None:
        """Its outcome is in, whatever it means for what is asked for."""
        self.is_under_way = False

    def lookup_succeeded(self) -> None:
        """It only leads to the request that is meant: what was wrong with itself does not matter any more."""
        self.is_under_way = False
        if self.last_failed is not None and self.last is not None and self.last_failed.description == self.last.description:
            self.clear_error()

    def clear_error(self) -> None:
        """Why there was no answer of use does not matter any more. The wait before the next request stays as long as it has become."""
        self.last_error, self.last_failed = None, None

    def retry(self, error: KafkaException, at_ms: int) -> None:
        """It has to go again, not before `at_ms`."""
        self.is_under_way = False
        self.last_error, self.last_failed = error, self.last
        self.failures += 1
        self._not_before_ms = at_ms

    def succeeded(self) -> None:
        """What was asked for is there."""
        self.is_under_way = False
        self.clear_error()
        self.failures = 0
        self.successes += 1

    def next_deadline_ms(self, steady_ms: int) -> int | None:
        """When it may go again; None when that needs no time to pass."""
        return self._not_before_ms if not self.is_under_way and self._not_before_ms > steady_ms else None
