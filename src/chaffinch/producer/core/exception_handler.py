"""ProducerExceptionHandler (KIP-1038): the application decides about records that cannot be sent. Decisions 22 to 27 of the design.

An application derives from `ProducerExceptionHandler` and overrides the methods it needs. Methods that are not overridden follow the two
options. Handlers are called without any lock of the producer, on the thread where the failure was seen: the caller's thread in `send`, or
the sender thread. So they must be thread-safe, and a slow handler blocks its thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from chaffinch.errors import ApiException, RecordTooLargeException, UnknownTopicOrPartitionException, codes
from chaffinch.producer.records import ProducerRecord
from chaffinch.public_names import exported_from


@exported_from("chaffinch")
class NonRetriableResponse(Enum):
    """Responses to a failure that a retry does not cure. FAIL takes precedence over SWALLOW."""

    FAIL = 0
    """The record fails, and its transaction with it."""
    SWALLOW = 1
    """The record is dropped, and everything else continues."""

    @property
    def id(self) -> int:
        """The KIP's number."""
        return self.value


@exported_from("chaffinch")
class RetriableResponse(Enum):
    """Responses to a failure that a retry may cure. FAIL takes precedence over SWALLOW, and SWALLOW over RETRY."""

    FAIL = 0
    RETRY = 1
    """Retry, until one of the time limits ends it."""
    SWALLOW = 2

    @property
    def id(self) -> int:
        """The KIP's number."""
        return self.value


@exported_from("chaffinch")
class ProducerExceptionHandler:
    """Decides about records that cannot be sent (KIP-1038). The option `custom.exception.handler.class` takes an instance or the class.

    Override the methods of interest; the others follow the options. Methods are called without a lock, on the thread of `send` or on the
    sender thread, so they must be thread-safe, and a slow one blocks its thread. An exception, or a value of another type, means FAIL.

    Also define `handle_rejected_record(record, exception)`, which returns a NonRetriableResponse, to decide about records that a broker
    has rejected for good (beyond the KIP): see `Question.REJECTED`.
    """

    drops_large_records: bool = False
    """The option `drop.invalid.large.records`, set by the producer before `configure`."""

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Called once, before the first record.

        Args:
            settings: all options of the producer by dotted name, with their defaults.

        Raises:
            Exception: any exception makes the producer's constructor raise ConfigException.
        """

    def close(self) -> None:
        """Called once, after the producer was closed."""

    def handle(self, record: ProducerRecord, exception: ApiException) -> NonRetriableResponse | RetriableResponse:
        """Called by the producer for each record. By default it calls the method for the class of the exception.

        Args:
            record: the record as passed to `send`.
            exception: why it cannot be sent.

        Returns:
            The decision: a NonRetriableResponse or a RetriableResponse, as the called method returns it.

        Raises:
            TypeError: there is no method for the class of the exception.
        """
        for kind, method in _METHODS.items():
            if isinstance(exception, kind):
                response: NonRetriableResponse | RetriableResponse = getattr(self, method)(record, exception)
                return response
        raise TypeError(f"a {type(exception).__name__} is not handled by exception handlers")

    def handle_record_too_large(self, record: ProducerRecord, exception: RecordTooLargeException) -> NonRetriableResponse:
        """Called for a record that is larger than `max.request.size` or `buffer.memory` allow.

        Args:
            record: the record as passed to `send`.
            exception: contains the size and the limit in its text.

        Returns:
            By default SWALLOW with `drop.invalid.large.records`, otherwise FAIL.
        """
        return NonRetriableResponse.SWALLOW if self.drops_large_records else NonRetriableResponse.FAIL

    def handle_unknown_topic_or_partition(self, record: ProducerRecord, exception: UnknownTopicOrPartitionException) -> RetriableResponse:
        """Called if no broker knows the topic, or if the topic has no such partition; again for each such response.

        Args:
            record: the record as passed to `send`.
            exception: contains topic and partition.

        Returns:
            By default RETRY.
        """
        return RetriableResponse.RETRY


_METHODS: Final = {
    RecordTooLargeException: "handle_record_too_large",
    UnknownTopicOrPartitionException: "handle_unknown_topic_or_partition",
}
"""The method for each class of exceptions."""


class Question(Enum):
    """The cases in which a handler decides about records that are in a batch already."""

    UNKNOWN_TOPIC = "unknown topic or partition"
    REJECTED = "rejected by a broker"


# Final rejections: the record itself is at fault (with MESSAGE_TOO_LARGE: a record that is alone in its batch).
REJECTED_CODES = frozenset({codes.INVALID_RECORD, codes.INVALID_TIMESTAMP, codes.INVALID_COMPACTION_KEY, codes.MESSAGE_TOO_LARGE})
REJECTED_METHOD = "handle_rejected_record"

Response = TypeVar("Response", NonRetriableResponse, RetriableResponse)


@dataclass(frozen=True, slots=True)
class HandlerResult(Generic[Response]):
    """A handler's response. `failure`: the handler's own exception or invalid return value, which counts as FAIL."""

    response: Response
    failure: BaseException | None = None


def call_handler(
    allowed: type[Response],
    call: Callable[[ProducerRecord, Any], object],
    record: ProducerRecord,
    error: ApiException,
    caught: type[BaseException] | tuple[type[BaseException], ...] = Exception,
) -> HandlerResult[Response]:
    """Call a handler. An exception of class `caught`, or a return value of a type other than `allowed`, counts as FAIL.

    KeyboardInterrupt, SystemExit and the like end the call of `send`, since they may come from a signal handler. Only the sender thread,
    which serves all callers, catches them. A Spark process, which has no such signal handler, catches SystemExit.
    """
    try:
        response = call(record, error)
    except caught as failure:
        return HandlerResult(allowed["FAIL"], failure)
    if isinstance(response, allowed):
        return HandlerResult(response)
    returned = f"{response!r}, as a method without a return statement does," if response is None else f"{response!r}"
    text = f"the exception handler's {_name_of(call, error)} returned {returned} for {error.name}: it must return a {allowed.__name__}"
    return HandlerResult(allowed["FAIL"], TypeError(text))


def _name_of(call: Callable[..., object], error: ApiException) -> str:
    """The application's class and method for error texts. A `handle` that is not overridden only dispatches to another method."""
    handler = getattr(call, "__self__", None)
    if not isinstance(handler, ProducerExceptionHandler):
        return getattr(call, "__qualname__", repr(call))
    method = call.__name__
    if method == "handle" and type(handler).handle is ProducerExceptionHandler.handle:
        method = next((name for kind, name in _METHODS.items() if isinstance(error, kind)), method)
    return f"{type(handler).__qualname__}.{method}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerDecision:
    """The handler's decision about records of one batch, by index; the others fail. `failures`: exceptions of the handler itself."""

    swallowed: frozenset[int] = frozenset()
    retried: frozenset[int] = frozenset()
    failures: Mapping[int, BaseException] = field(default_factory=dict)

    def with_failure(self, index: int, error: ApiException) -> ApiException:
        """Set the handler's own failure as the cause of a record's error."""
        if index in self.failures:
            error.__cause__ = self.failures[index]
        return error


NO_DECISION = HandlerDecision()


def questions_of(handler: ProducerExceptionHandler) -> frozenset[Question]:
    """The cases that a handler decides once records are in a batch; none if it leaves everything to the options."""
    kind = type(handler)
    found = {Question.REJECTED} if callable(getattr(handler, REJECTED_METHOD, None)) else set()
    if kind.handle is not ProducerExceptionHandler.handle or overrides(handler, "handle_unknown_topic_or_partition"):
        found.add(Question.UNKNOWN_TOPIC)
    return frozenset(found)


def overrides(handler: ProducerExceptionHandler, method: str) -> bool:
    """Whether the handler overrides a method that otherwise follows the options."""
    return getattr(getattr(handler, method), "__func__", None) is not getattr(ProducerExceptionHandler, method)
