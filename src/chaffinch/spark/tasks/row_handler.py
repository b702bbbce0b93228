"""What a user's exception handler (KIP-1038) says about bad rows: those that it swallows are left out, the others stay bad rows.

Asked in tasks about what they find, in the committing process about what only the broker finds. One handler per process and options;
a process of Spark's ends without a word, so `close` is called only where a process has met several others since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chaffinch import plain_text
from chaffinch.errors import ConfigException, codes, exception_for
from chaffinch.errors.codes import ErrorCode
from chaffinch.producer.core.exception_handler import (
    REJECTED_CODES,
    REJECTED_METHOD,
    NonRetriableResponse,
    ProducerExceptionHandler,
    Response,
    RetriableResponse,
    call_handler,
    overrides,
)
from chaffinch.producer.records import ProducerRecord
from chaffinch.settings import Settings
from chaffinch.spark.commit.messages import Rejection
from chaffinch.spark.kept import Kept
from chaffinch.spark.options import named_as_typed

if TYPE_CHECKING:
    from chaffinch.records.columns import RecordColumns

_log = plain_text.logger(__name__)

# A program that ends itself would end a task of Spark's, or the commit, with it.
_CAUGHT: Final = (Exception, SystemExit)
_WHERE_MODULES_LIE: Final = (
    "each Python that Spark starts has to find its module, beside the driver and on every worker: "
    "install it there, or ship it, as with --py-files"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """What is asked about bad rows (KIP-1038). Hashable: a process keeps one handler per value of this."""

    class_name: str | None
    drops_large: bool
    settings: tuple[tuple[str, Any], ...]
    """All `kafka.*` options given, without that prefix, for the handler's `configure`."""


def handler_for(options: HandlerOptions | None) -> RowHandler | None:
    """This process's handler for these options. ConfigException for one that cannot be imported, made or configured."""
    if options is None:
        return None
    with named_as_typed():
        return _handlers.get(options, lambda: _made(options))


def _made(options: HandlerOptions) -> RowHandler:
    from chaffinch.producer import plugins

    settings = dict(options.settings) | {plugins.HANDLER: options.class_name, plugins.DROP_LARGE: options.drops_large}
    try:
        return RowHandler(plugins.exception_handler(Settings(settings)))
    except ConfigException as error:
        if isinstance(error.__cause__, ImportError):
            raise ConfigException(f"{error}; {_WHERE_MODULES_LIE}") from error
        raise


class RowHandler:
    """A handler over rows. Each method takes records, row i of which is rejected for `rejections[i]`, and gives those i that are left out.

    What a handler answers that it may not, or raises, counts as FAIL, as in the producer: its row stays a bad one. The log has the first.
    """

    def __init__(self, handler: ProducerExceptionHandler) -> None:
        self._handler: Final = handler
        has_own = type(handler).handle is not ProducerExceptionHandler.handle
        self._asks_about_large: Final = has_own or overrides(handler, "handle_record_too_large")
        self._asks_about_topics: Final = has_own or overrides(handler, "handle_unknown_topic_or_partition")
        self._about_rejected: Final[Callable[[ProducerRecord, Any], object] | None] = getattr(handler, REJECTED_METHOD, None)
        self._has_failed = False

    def close(self) -> None:
        """It is not asked any more. What its own `close` raises is logged."""
        try:
            self._handler.close()
        except _CAUGHT:
            _log.warning("close() of the exception handler %s failed", type(self._handler).__qualname__, exc_info=True)

    def too_large(self, columns: RecordColumns, rejections: Sequence[Rejection], asked: Sequence[int] | None = None) -> frozenset[int]:
        """Of records above `kafka.max.request.size`, or above what the topic takes. `asked`: those i that are meant; None: all."""
        if self._asks_about_large:
            return self._swallowed(self._handler.handle, columns, rejections, asked)
        meant = range(len(rejections)) if asked is None else asked
        return frozenset(meant) if self._handler.drops_large_records else frozenset()

    def rejected(self, columns: RecordColumns, rejections: Sequence[Rejection]) -> frozenset[int]:
        """Of records that the target refuses for good, in a task or in the commit. Both methods of KIP-1038 apply to them: to a record that
        is larger than the topic takes, and to one for a partition that does not exist, for which RETRY is no answer."""

        def with_code(*wanted: ErrorCode) -> list[int]:
            return [index for index, rejection in enumerate(rejections) if rejection.code in wanted]

        large = with_code(codes.MESSAGE_TOO_LARGE) if self._asks_about_large or self._handler.drops_large_records else []
        unknown = with_code(codes.UNKNOWN_TOPIC_OR_PARTITION) if self._asks_about_topics else []
        swallowed = self.too_large(columns, rejections, large)
        swallowed |= self._swallowed(self._handler.handle, columns, rejections, unknown, RetriableResponse)
        if self._about_rejected is not None:
            others = sorted(set(with_code(*REJECTED_CODES)) - set(large))
            swallowed |= self._swallowed(self._about_rejected, columns, rejections, others)
        return swallowed

    def unknown_topic(self, columns: RecordColumns, rejection: Rejection) -> RetriableResponse:
        """Of records whose topic nobody knows; asked with the first of them, for all."""
        if not self._asks_about_topics:
            return RetriableResponse.RETRY
        return self._asked(RetriableResponse, self._handler.handle, _record(columns, rejection, 0), rejection)

    def _swallowed(
        self,
        method: Callable[[ProducerRecord, Any], object],
        columns: RecordColumns,
        rejections: Sequence[Rejection],
        asked: Sequence[int] | None = None,
        allowed: Any = NonRetriableResponse,
    ) -> frozenset[int]:
        return frozenset(
            index
            for index in (range(len(rejections)) if asked is None else asked)
            if self._asked(allowed, method, _record(columns, rejections[index], index), rejections[index]) is allowed.SWALLOW
        )

    def _asked(
        self, allowed: type[Response], method: Callable[[ProducerRecord, Any], object], record: ProducerRecord, rejection: Rejection
    ) -> Response:
        said = call_handler(allowed, method, record, _error(rejection), caught=_CAUGHT)
        if said.failure is not None and not self._has_failed:
            self._has_failed = True
            text = "the exception handler %s failed, its rows stay bad ones: %r, asked about %s"
            _log.warning(text, type(self._handler).__qualname__, said.failure, rejection, exc_info=said.failure)
        return said.response


_handlers: Kept[HandlerOptions, RowHandler] = Kept(RowHandler.close)


def _error(rejection: Rejection) -> Any:
    return exception_for(rejection.code, message=rejection.message, topic_partition=rejection.topic_partition, api="Produce")


def _record(columns: RecordColumns, rejection: Rejection, index: int) -> ProducerRecord:
    topic, partition = rejection.topic_partition
    place = None if partition < 0 else partition
    timestamp_ms = int(columns.timestamps[index])
    return ProducerRecord(topic, columns.value(index), columns.key(index), place, timestamp_ms, columns.headers(index))
