"""Calls of the exception handler (KIP-1038), never with a lock of the producer held. The core applies the decisions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from chaffinch.errors import ApiException, KafkaException, RecordTooLargeException, UnknownTopicOrPartitionException
from chaffinch.producer.core.effects import AskHandler
from chaffinch.producer.core.exception_handler import (
    REJECTED_METHOD,
    HandlerDecision,
    NonRetriableResponse,
    ProducerExceptionHandler,
    Question,
    RetriableResponse,
    call_handler,
    overrides,
    questions_of,
)
from chaffinch.producer.outcomes import records_of
from chaffinch.producer.records import ProducerRecord

log = logging.getLogger("chaffinch.producer")


@dataclass(frozen=True, slots=True)
class Dropped:
    """The handler returned SWALLOW: the record is not sent, and nothing fails."""


DROPPED: Final = Dropped()
Stop: TypeAlias = KafkaException | Dropped
"""Why a record is not sent."""


class HandlerCalls:
    """The exception handler of one producer. ProducerRecords are created only if the handler decides about them."""

    def __init__(self, handler: ProducerExceptionHandler) -> None:
        self.questions: Final = questions_of(handler)
        self._handler: Final = handler
        self._is_closed = False
        has_own_handle = type(handler).handle is not ProducerExceptionHandler.handle
        self._handles_large: Final = has_own_handle or overrides(handler, "handle_record_too_large")
        self._handles_unknown_topics: Final = Question.UNKNOWN_TOPIC in self.questions

    def too_large(self, record_of: Callable[[], ProducerRecord], error: RecordTooLargeException, *, may_drop: bool) -> Stop:
        """The record exceeds `max.request.size` or `buffer.memory`. `may_drop`: `drop.invalid.large.records` applies to the limit."""
        if not self._handles_large:
            return DROPPED if may_drop and self._handler.drops_large_records else error
        result = call_handler(NonRetriableResponse, self._handler.handle, record_of(), error)
        return DROPPED if result.response is NonRetriableResponse.SWALLOW else _with_cause(error, result.failure)

    def unknown_topic(self, record_of: Callable[[], ProducerRecord], error: UnknownTopicOrPartitionException) -> Stop | None:
        """No broker knows the topic or partition. Returns None to retry."""
        if not self._handles_unknown_topics:
            return None
        result = call_handler(RetriableResponse, self._handler.handle, record_of(), error)
        if result.response is RetriableResponse.RETRY:
            return None
        return DROPPED if result.response is RetriableResponse.SWALLOW else _with_cause(error, result.failure)

    def decide(self, effect: AskHandler) -> HandlerDecision:
        """Decide about records of a batch one by one, on the sender thread."""
        swallowed, retried, failures = set(), set(), {}
        for (index, error), record in zip(effect.errors.items(), records_of(effect.batch, effect.errors), strict=True):
            if effect.question is Question.REJECTED:
                rejected = call_handler(NonRetriableResponse, getattr(self._handler, REJECTED_METHOD), record, error, BaseException)
                response: Any = rejected.response
                failure = rejected.failure
            else:
                unknown = call_handler(RetriableResponse, self._handler.handle, record, error, BaseException)
                response, failure = unknown.response, unknown.failure
            if response in (NonRetriableResponse.SWALLOW, RetriableResponse.SWALLOW):
                swallowed.add(index)
            elif response is RetriableResponse.RETRY:
                retried.add(index)
            elif failure is not None:
                failures[index] = failure
        return HandlerDecision(swallowed=frozenset(swallowed), retried=frozenset(retried), failures=failures)

    def close(self) -> None:
        """Close the handler. Its exceptions are only logged, because the producer is closed. A second call has no effect."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._handler.close()
        except Exception:
            log.exception("the exception handler raised in close")


def _with_cause(error: ApiException, failure: BaseException | None) -> ApiException:
    if failure is not None:
        error.__cause__ = failure
    return error
