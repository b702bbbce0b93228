"""KIP-1038: what an application says about records that the producer cannot send, decisions 22 to 27 of the design.

An application derives from `ProducerExceptionHandler` and overrides the methods it cares about; a method that is not overridden
answers what the two options say. Handlers are called without any lock of the producer's held, on the thread where the failure was
seen: the caller's of `send`, or the producer's own; so they must be thread-safe, and while one thinks its thread waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from chaffinch.errors import ApiException, RecordTooLargeException, UnknownTopicOrPartitionException, codes
from chaffinch.producer.records import ProducerRecord


class NonRetriableResponse(Enum):
    """Answers to a failure that trying again does not cure. FAIL comes before SWALLOW."""

    FAIL = 0
    """The record fails, and its transaction with it."""
    SWALLOW = 1
    """The record is dropped, and everything else goes on."""

    @property
    def id(self) -> int:
        """The KIP's number."""
        return self.value


class RetriableResponse(Enum):
    """Answers to a failure that may pass. FAIL comes before SWALLOW, SWALLOW before RETRY."""

    FAIL = 0
    RETRY = 1
    """Go on trying, until one of the time limits ends it."""
    SWALLOW = 2

    @property
    def id(self) -> int:
        """The KIP's number."""
        return self.value


class ProducerExceptionHandler:
    """Who decides about records that cannot be sent (KIP-1038): the option `custom.exception.handler.class` takes one, or its class.

    Override the methods of interest; the others answer what the options say. They are called without a lock, on the thread of `send` or
    on the producer's own, so they have to be thread-safe, and while one thinks its thread waits. Another answer than theirs, and an
    exception, means FAIL. Also define `handle_rejected_record(record, exception)`, which answers a NonRetriableResponse, to be asked
    about records that a broker rejected for good (beyond the KIP): see `Question.REJECTED`.
    """

    drops_large_records: bool = False
    """The option `drop.invalid.large.records`, set by the producer before `configure`."""

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Called once, before the first record, with all options of the producer."""

    def close(self) -> None:
        """Called once, when the producer has been closed."""

    def handle(self, record: ProducerRecord, exception: ApiException) -> NonRetriableResponse | RetriableResponse:
        """What the producer calls: one of the two methods below, by the class of the exception."""
        for kind, method in _METHODS.items():
            if isinstance(exception, kind):
                response: NonRetriableResponse | RetriableResponse = getattr(self, method)(record, exception)
                return response
        raise TypeError(f"a {type(exception).__name__} is not handled by exception handlers")

    def handle_record_too_large(self, record: ProducerRecord, exception: RecordTooLargeException) -> NonRetriableResponse:
        """The record is larger than `max.request.size` or `buffer.memory` allow."""
        return NonRetriableResponse.SWALLOW if self.drops_large_records else NonRetriableResponse.FAIL

    def handle_unknown_topic_or_partition(self, record: ProducerRecord, exception: UnknownTopicOrPartitionException) -> RetriableResponse:
        """No broker knows the topic, or the topic has no such partition. Asked again with each answer that says so."""
        return RetriableResponse.RETRY


_METHODS: Final = {
    RecordTooLargeException: "handle_record_too_large",
    UnknownTopicOrPartitionException: "handle_unknown_topic_or_partition",
}
"""Which method is about which exceptions."""


class Question(Enum):
    """What a handler is asked about records that are in a batch already."""

    UNKNOWN_TOPIC = "unknown topic or partition"
    REJECTED = "rejected by a broker"


# Rejections for good: the record itself is at fault (of MESSAGE_TOO_LARGE: a record that is alone in its batch).
REJECTED_CODES = frozenset({codes.INVALID_RECORD, codes.INVALID_TIMESTAMP, codes.INVALID_COMPACTION_KEY, codes.MESSAGE_TOO_LARGE})
REJECTED_METHOD = "handle_rejected_record"

Response = TypeVar("Response", NonRetriableResponse, RetriableResponse)


@dataclass(frozen=True, slots=True)
class HandlerResult(Generic[Response]):
    """What a handler answered. `failure`: why that counts as FAIL although it is no FAIL."""

    response: Response
    failure: BaseException | None = None


def call_handler(
    allowed: type[Response],
    call: Callable[[ProducerRecord, Any], object],
    record: ProducerRecord,
    error: ApiException,
    caught: type[BaseException] | tuple[type[BaseException], ...] = Exception,
) -> HandlerResult[Response]:
    """One call of a handler. One that raises what is `caught`, or answers anything but `allowed`, has said FAIL.

    Ctrl-C, SystemExit and their like end the call of `send` that they come in, as everywhere; they may be a signal handler's. Only the
    sender thread, which is everybody's, catches them; a process of Spark's, which has no such handler, SystemExit."""
    try:
        response = call(record, error)
    except caught as failure:
        return HandlerResult(allowed["FAIL"], failure)
    if isinstance(response, allowed):
        return HandlerResult(response)
    answered = f"{response!r}, as a method without return does," if response is None else f"{response!r}"
    text = f"the exception handler's {_name_of(call, error)} answered {answered} to {error.name}: it must answer a {allowed.__name__}"
    return HandlerResult(allowed["FAIL"], TypeError(text))


def _name_of(call: Callable[..., object], error: ApiException) -> str:
    """The class and method of the application's own that was asked: `handle`, unless it is overridden, only chooses one."""
    handler = getattr(call, "__self__", None)
    if not isinstance(handler, ProducerExceptionHandler):
        return getattr(call, "__qualname__", repr(call))
    method = call.__name__
    if method == "handle" and type(handler).handle is ProducerExceptionHandler.handle:
        method = next((name for kind, name in _METHODS.items() if isinstance(error, kind)), method)
    return f"{type(handler).__qualname__}.{method}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerDecision:
    """What was said about records of one batch, by index; the rest has to fail. `failures`: why, where the handler itself failed."""

    swallowed: frozenset[int] = frozenset()
    retried: frozenset[int] = frozenset()
    failures: Mapping[int, BaseException] = field(default_factory=dict)

    def with_failure(self, index: int, error: ApiException) -> ApiException:
        """A record's error, with the handler's own failure as its cause."""
        if index in self.failures:
            error.__cause__ = self.failures[index]
        return error


NO_DECISION = HandlerDecision()


def questions_of(handler: ProducerExceptionHandler) -> frozenset[Question]:
    """What there is to ask a handler once records are in a batch; nothing of one that leaves everything to the options."""
    kind = type(handler)
    found = {Question.REJECTED} if callable(getattr(handler, REJECTED_METHOD, None)) else set()
    if kind.handle is not ProducerExceptionHandler.handle or overrides(handler, "handle_unknown_topic_or_partition"):
        found.add(Question.UNKNOWN_TOPIC)
    return frozenset(found)


def overrides(handler: ProducerExceptionHandler, method: str) -> bool:
    """Whether the handler has a method of its own instead of the one that answers what the options say."""
    return getattr(getattr(handler, method), "__func__", None) is not getattr(ProducerExceptionHandler, method)
