"""State of a request that is retried with backoff until it succeeds, and the callers that wait for it."""

from __future__ import annotations

from typing import Final, NamedTuple

from chaffinch.client.addresses import Address
from chaffinch.errors import KafkaException

CLOSES_LIMIT: Final = "close's timeout"


class Waiter(NamedTuple):
    """A caller that waits for the request, as the log names it, and its deadline. `limit`: what sets the deadline, usually an option."""

    name: str
    deadline_ms: int
    limit: str


class RequestInfo(NamedTuple):
    """A sent request, as the log names it, and its broker."""

    description: str
    address: Address


class RetryingRequest:
    """One request at a time: a step of the transaction, or InitProducerId of a producer without transactions."""

    def __init__(self) -> None:
        self.last: RequestInfo | None = None
        """The request that is under way, or the previous one."""
        self.last_error: KafkaException | None = None
        """Error of the last attempt; None after a success."""
        self.last_failed: RequestInfo | None = None
        """The request that got `last_error`."""
        self.failures = 0
        """Failed attempts in a row."""
        self.successes = 0
        self.is_under_way = False
        self._not_before_ms = 0

    def may_begin(self, steady_ms: int) -> bool:
        """Whether no request is under way, and the backoff after the last one is over."""
        return not self.is_under_way and steady_ms >= self._not_before_ms

    def begin(self, description: str, address: Address) -> None:
        """Record that a request is sent."""
        self.is_under_way, self.last = True, RequestInfo(description, address)

    def ended(self) -> None:
        """Record that the request is no longer under way, whatever its outcome."""
        self.is_under_way = False

    def lookup_succeeded(self) -> None:
        """Record the success of a coordinator lookup, which only prepares the actual request: clear the error if it was the lookup's."""
        self.is_under_way = False
        if self.last_failed is not None and self.last is not None and self.last_failed.description == self.last.description:
            self.clear_error()

    def clear_error(self) -> None:
        """Clear the last error. The backoff before the next request keeps its length."""
        self.last_error, self.last_failed = None, None

    def retry(self, error: KafkaException, at_ms: int) -> None:
        """Record a failed attempt. The next one must not be sent before `at_ms`."""
        self.is_under_way = False
        self.last_error, self.last_failed = error, self.last
        self.failures += 1
        self._not_before_ms = at_ms

    def succeeded(self) -> None:
        """Record a success, and reset the backoff."""
        self.is_under_way = False
        self.clear_error()
        self.failures = 0
        self.successes += 1

    def next_deadline_ms(self, steady_ms: int) -> int | None:
        """When the next attempt may be sent; None if no backoff is running."""
        return self._not_before_ms if not self.is_under_way and self._not_before_ms > steady_ms else None
