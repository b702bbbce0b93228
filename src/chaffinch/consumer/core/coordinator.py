"""Finds the group coordinator (FindCoordinator): looked up when needed, forgotten when its connection ends or it rejects requests."""

from __future__ import annotations

from dataclasses import dataclass

from chaffinch.client import coordinators
from chaffinch.client.addresses import Address
from chaffinch.consumer.core.context import LANE_GROUP, ConsumerContext
from chaffinch.errors import KafkaException, codes, exception_for
from chaffinch.protocol.messages.find_coordinator import FindCoordinatorResponse


@dataclass(frozen=True, slots=True)
class CoordinatorToken:
    """Token of a FindCoordinator."""


class CoordinatorFinder:
    """The coordinator of one group. `advance` sends the lookup."""

    def __init__(self, context: ConsumerContext) -> None:
        self.lost_address: Address | None = None
        """The coordinator's address when its connection last ended."""
        self._context = context
        self._address: Address | None = None
        self._is_under_way = False
        self._failures = 0
        self._not_before_ms = 0

    def address(self, steady_ms: int) -> Address | None:
        """Where to send now; None while it is not known, or in back-off after a failure."""
        address = self._address
        return address if address is not None and self._context.attempts.may_try(address, steady_ms) else None

    @property
    def known_address(self) -> Address | None:
        """The last known address, even if it cannot be reached now."""
        return self._address

    def no_response_text(self) -> str:
        """Part of a message, for a request in flight."""
        return "" if self._address is None else f", the coordinator {self._address} has not responded yet"

    def forget(self) -> None:
        """The broker is not the coordinator, or not available as one."""
        self._address = None

    def connection_lost(self, address: Address) -> None:
        """A connection has ended."""
        if address == self._address:
            self._address, self.lost_address = None, address

    def advance(self, steady_ms: int) -> None:
        """Send the lookup to any broker, if the coordinator is not known."""
        if self._address is not None or self._is_under_way or steady_ms < self._not_before_ms:
            return
        broker = self._context.any_address(steady_ms)
        if broker is not None:
            self._is_under_way = True
            self._context.send_to_any(broker, coordinators.find_request(self._context.group_id, "group"), CoordinatorToken())

    def response_received(self, response: FindCoordinatorResponse, steady_ms: int) -> None:
        """Process the response. An error that retries cannot solve is raised to the caller."""
        self._is_under_way = False
        found = coordinators.parse_find_response(response)
        if found.code is codes.NONE:
            self._address, self._failures, self._context.coordinator_error = found.address._replace(lane=LANE_GROUP), 0, None
            return
        self._wait(steady_ms)
        # Without `api="FindCoordinator"`: the texts for that api are for producers, whose transactions may end.
        text = f"looking for the coordinator of group {self._context.group_id!r}: {found.message or found.code.text}"
        self._context.coordinator_error = error = exception_for(found.code, message=text)
        if not found.code.is_retriable:
            self._context.fail(error)

    def request_failed(self, error: KafkaException, steady_ms: int) -> None:
        self._is_under_way = False
        self._context.coordinator_error = error
        self._wait(steady_ms)

    def _wait(self, steady_ms: int) -> None:
        self._failures += 1
        self._not_before_ms = steady_ms + self._context.wait_ms(self._failures)

    def next_deadline_ms(self, steady_ms: int) -> int | None:
        """When to look up, or to try a connection again."""
        if self._address is None:
            return None if self._is_under_way else self._not_before_ms
        return self._context.attempts.retry_at_ms(self._address, steady_ms)
