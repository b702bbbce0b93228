"""Rate-limited log lines about long waits: each is logged after some seconds, and rarely again (`client/wait_log.py`).

- `RequestWaitLog`: requests of a transaction, or InitProducerId of a producer without one. They may take as long as `max.block.ms`.
- `OutageLog`: no broker can be reached while records wait, and `send` raises no error. One line at the beginning, one at the end.
- `BatchWaitLog`: batches that wait for any other reason. A batch behind others in flight has no reason of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Final

from chaffinch.client.addresses import Address
from chaffinch.client.wait_log import FIRST_LINE_MS, Wait, WaitLog, in_words
from chaffinch.errors import KafkaException, codes
from chaffinch.identifiers import pluralize
from chaffinch.producer.core.batches.batch import ProducerBatch
from chaffinch.producer.core.batches.outstanding import Outstanding
from chaffinch.producer.core.context import ProducerContext
from chaffinch.producer.core.effects import Report
from chaffinch.producer.core.refusals.wait_causes import WaitCauses
from chaffinch.producer.core.retrying_request import RequestInfo, RetryingRequest, Waiter

SILENT_AFTER_MS: Final = 1_000
"""A request that is under way for less than this is not reported as one without a response."""
# An outage is reported after this time. A restarted broker is usually back sooner.
REPORT_AFTER_MS: Final = 1_000
# Minimum interval between checks of the batches while some are old: with many partitions each check is slow.
CHECK_INTERVAL_MS: Final = 500
OUTAGE: Final = "outage"
"""Cause of all waits during an outage that has been reported."""


class RequestWaitLog:
    """Logs why a request has not succeeded yet. `waiters`: callers and records that wait for it; without any nothing is logged."""

    def __init__(self, context: ProducerContext, retrying_request: RetryingRequest, waiters: Callable[[], Iterable[Waiter]]) -> None:
        self._context = context
        self._retrying_request = retrying_request
        self._waiters = waiters
        self._run: Hashable = None
        self._since_ms = 0
        self._last: RequestInfo | None = None
        """The last request at the last check, and when it was first seen."""
        self._last_ms = 0
        self._earlier: tuple[RequestInfo | None, RequestInfo | None] = None, None
        """The last failed and the last sent request when the run began: their errors do not belong to the run."""
        self._wait_log = WaitLog()

    def check(self, goal: Hashable, steady_ms: int) -> None:
        """Log the wait when a line is due. `goal`: what is requested from a broker now, None for nothing. A new goal, or a success on the
        way to it, is progress and restarts the wait.
        """
        run = None if goal is None else (goal, self._retrying_request.successes)
        if run != self._run:
            self._run, self._since_ms = run, steady_ms
            if run is None:
                self._wait_log.over()
            self._earlier = self._retrying_request.last_failed, self._last
        if self._retrying_request.last is not self._last:
            self._last, self._last_ms = self._retrying_request.last, steady_ms
        if run is None or steady_ms < self._due_ms:
            return
        blocking, error = self._blocking_request(steady_ms)
        if blocking is None:
            return
        first = min(self._waiters(), key=lambda waiting: waiting.deadline_ms, default=None)
        if first is None:
            return
        why = "no response yet" if error is None else in_words(error)
        what = f"{blocking.description} at {blocking.address}"
        line = self._wait_log.line(Wait(None, what, self._since_ms, why, first.name, first.deadline_ms, first.limit), steady_ms)
        if line is not None:
            self._context.out.append(Report(line))

    def _blocking_request(self, steady_ms: int) -> tuple[RequestInfo | None, KafkaException | None]:
        """The request that everything waits for, and its error (None: no response yet). (None, None) if no request was sent."""
        retrying_request = self._retrying_request
        silent = retrying_request.last if retrying_request.is_under_way and steady_ms >= self._last_ms + SILENT_AFTER_MS else None
        failed = retrying_request.last_failed
        is_of_run = failed is not None and all(failed is not earlier for earlier in self._earlier)
        if not is_of_run or silent not in (None, failed):  # It now waits for another broker, or another request.
            return silent, None
        return failed, retrying_request.last_error

    @property
    def _due_ms(self) -> int:
        return self._wait_log.due_ms(None, self._since_ms)

    @property
    def next_deadline_ms(self) -> int | None:
        """When the next line is due, if nothing happens until then."""
        if self._run is None:
            return None
        return max(self._due_ms, self._last_ms + SILENT_AFTER_MS) if self._retrying_request.is_under_way else self._due_ms


class OutageLog:
    """Logs outages. An outage begins when a connection is lost, and ends with the next response of any broker."""

    def __init__(self, context: ProducerContext, outstanding: Outstanding) -> None:
        self._context = context
        self._outstanding = outstanding
        self.had_response = False
        """Some broker has responded at least once."""
        self._since_ms: int | None = None
        self.is_reported = False
        """The beginning of the current outage has been logged."""

    @property
    def reported_since_ms(self) -> int | None:
        """When the current outage began, if it has been logged."""
        return self._since_ms if self.is_reported else None

    def lost(self, steady_ms: int) -> bool:
        """A connection was lost, or could not be made. Returns whether the outage is logged now."""
        if self._since_ms is None:
            self._since_ms = steady_ms
        context, lasts_ms = self._context, steady_ms - self._since_ms
        oldest_ms, addresses = self._outstanding.oldest_ms(), context.known_addresses
        if self.is_reported or lasts_ms < REPORT_AFTER_MS or oldest_ms is None or not all(map(context.attempts.failures, addresses)):
            return False
        self.is_reported, left_ms = True, max(0, oldest_ms + context.delivery_timeout_ms - steady_ms)
        tried = f"each is retried until delivery.timeout.ms, {context.delivery_timeout_ms} ms, is over, the first for another {left_ms} ms"
        self._report(f"{context.attempts.describe(addresses, lasts_ms)}; {self._waiting()}: {tried}")
        return True

    def response_received(self, address: Address, steady_ms: int) -> None:
        """A broker has responded: the outage is over."""
        self.had_response = True
        if self.is_reported and self._since_ms is not None:
            self._report(f"the broker at {address} responds after an outage of {steady_ms - self._since_ms} ms; {self._waiting()}")
        self._since_ms, self.is_reported = None, False

    def unreachable(self) -> str | None:
        """Text for the error of a caller that waited for `max.block.ms` while no broker could be reached; None if one can."""
        attempts, addresses = self._context.attempts, self._context.known_addresses
        if self.had_response and not all(map(attempts.failures, addresses)):
            return None
        return attempts.describe(addresses, self._context.block_ms)

    def _waiting(self) -> str:
        count = self._outstanding.count()
        return "1 record waits" if count == 1 else f"{count} records wait"

    def _report(self, text: str) -> None:
        self._context.out.append(Report(text))


class BatchWaitLog:
    """Logs why batches wait. `check` is called once in each round."""

    def __init__(self, context: ProducerContext, outstanding: Outstanding, wait_causes: WaitCauses) -> None:
        self.log: Final = WaitLog()
        self._context = context
        self._outstanding = outstanding
        self._wait_causes = wait_causes
        self._next_check_ms: int | None = None
        self._unknown_limit_ms = min(context.retry_unknown_ms, context.delivery_timeout_ms)

    def check(self, steady_ms: int, outage_since_ms: int | None) -> None:
        """Log the longest wait when a line is due. `outage_since_ms`: beginning of an outage that has been logged."""
        oldest_ms = self._outstanding.oldest_ms()
        first_ms = None if oldest_ms is None else oldest_ms + FIRST_LINE_MS
        if first_ms is None or steady_ms < first_ms:
            wait, self._next_check_ms = None, first_ms
        elif self._next_check_ms is not None and steady_ms < self._next_check_ms:
            return
        else:
            wait, self._next_check_ms = self._longest(outage_since_ms), steady_ms + CHECK_INTERVAL_MS
        if wait is not None and steady_ms >= wait.since_ms + FIRST_LINE_MS:
            line = self.log.line(wait, steady_ms)
            if line is not None:
                self._context.out.append(Report(line))
        elif outage_since_ms is None:
            self.log.over()
        if wait is not None:
            self._next_check_ms = min(self.log.due_ms(wait.cause, wait.since_ms), steady_ms + CHECK_INTERVAL_MS)

    @property
    def next_deadline_ms(self) -> int | None:
        """When to check again without an event."""
        return self._next_check_ms

    def _longest(self, outage_since_ms: int | None) -> Wait | None:
        waits = list(self._wait_causes.waits())
        if not waits:
            return None
        since_ms, waiting, error = min(waits, key=lambda wait: wait[0])
        topic_partition = waiting.topic_partition if isinstance(waiting, ProducerBatch) else waiting
        address = self._context.cluster.leader_address(topic_partition)
        created_ms = waiting.created_ms if isinstance(waiting, ProducerBatch) else since_ms
        cause: Hashable = (topic_partition.topic, None if error is None else error.name)
        if outage_since_ms is not None:
            since_ms, cause = outage_since_ms, OUTAGE
            why = self._context.attempts.describe(self._context.known_addresses)
        else:
            why = "no response yet" if error is None else in_words(error)
        is_unknown = error is not None and error.code is codes.UNKNOWN_TOPIC_OR_PARTITION
        limit_ms = self._unknown_limit_ms if is_unknown else self._context.delivery_timeout_ms
        return Wait(
            cause,
            f"{topic_partition}" if address is None else f"{topic_partition} at {address}",
            since_ms,
            why,
            f"{pluralize(self._outstanding.count(), 'record')} without an outcome",
            created_ms + limit_ms,
            "delivery.timeout.ms" if limit_ms == self._context.delivery_timeout_ms else "retry.unknown.topic.partition.ms",
        )
