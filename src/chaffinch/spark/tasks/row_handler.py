"""Exception handler of the user (KIP-1038) for bad rows: rows that it swallows are dropped, the others stay bad rows.

Tasks call it for rows that they reject, the committing process for rows that the broker rejects. There is one handler per process and
options. Spark ends a worker without notice, so `close` is only called when the cache evicts a handler.
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
from chaffinch.spark.options import with_spark_names
from chaffinch.spark.worker_cache import LruCache

if TYPE_CHECKING:
    from chaffinch.records.columns import RecordColumns

_log = plain_text.logger(__name__)

# SystemExit in a handler would end the task or the commit.
_CAUGHT: Final = (Exception, SystemExit)
_MODULE_ADVICE: Final = (
    "each Python that Spark starts must find its module, on the driver's machine and on every worker: "
    "install it there, or ship it, as with --py-files"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """Options of the exception handler (KIP-1038). Hashable: a process caches one handler per value."""

    class_name: str | None
    drops_large: bool
    settings: tuple[tuple[str, Any], ...]
    """All given `kafka.*` options without the prefix, for the handler's `configure`."""


def handler_for(options: HandlerOptions | None) -> RowHandler | None:
    """The cached handler for these options. Raises ConfigException if it cannot be imported, created or configured."""
    if options is None:
        return None
    with with_spark_names():
        return _handlers.get(options, lambda: _create(options))


def _create(options: HandlerOptions) -> RowHandler:
    from chaffinch.producer import plugins

    settings = dict(options.settings) | {plugins.HANDLER: options.class_name, plugins.DROP_LARGE: options.drops_large}
    try:
        return RowHandler(plugins.exception_handler(Settings(settings)))
    except ConfigException as error:
        if isinstance(error.__cause__, ImportError):
            raise ConfigException(f"{error}; {_MODULE_ADVICE}") from error
        raise


class RowHandler:
    """Calls a handler for rows. Each method takes records, row i of which is rejected for `rejections[i]`, and returns the indices to
    drop.

    An exception or an invalid response counts as FAIL, as in the producer: the row stays a bad row. The first one is logged.
    """

    def __init__(self, handler: ProducerExceptionHandler) -> None:
        self._handler: Final = handler
        has_own = type(handler).handle is not ProducerExceptionHandler.handle
        self._handles_large: Final = has_own or overrides(handler, "handle_record_too_large")
        self._handles_unknown_topics: Final = has_own or overrides(handler, "handle_unknown_topic_or_partition")
        self._handle_rejected: Final[Callable[[ProducerRecord, Any], object] | None] = getattr(handler, REJECTED_METHOD, None)
        self._has_failed = False

    def close(self) -> None:
        """Close the handler. Exceptions of its `close` are logged."""
        try:
            self._handler.close()
        except _CAUGHT:
            _log.warning("close() of the exception handler %s failed", type(self._handler).__qualname__, exc_info=True)

    def too_large(self, columns: RecordColumns, rejections: Sequence[Rejection], indices: Sequence[int] | None = None) -> frozenset[int]:
        """Call the handler for records above `kafka.max.request.size` or above the limit of the topic. `indices`: the records to handle;
        None: all.
        """
        if self._handles_large:
            return self._swallowed(self._handler.handle, columns, rejections, indices)
        chosen = range(len(rejections)) if indices is None else indices
        return frozenset(chosen) if self._handler.drops_large_records else frozenset()

    def rejected(self, columns: RecordColumns, rejections: Sequence[Rejection]) -> frozenset[int]:
        """Call the handler for records that the target rejects permanently, in a task or in the commit.

        Both methods of KIP-1038 apply: to a record that is too large for the topic, and to one for a partition that does not exist, for
        which RETRY is not a valid response.
        """

        def with_code(*wanted: ErrorCode) -> list[int]:
            return [index for index, rejection in enumerate(rejections) if rejection.code in wanted]

        large = with_code(codes.MESSAGE_TOO_LARGE) if self._handles_large or self._handler.drops_large_records else []
        unknown = with_code(codes.UNKNOWN_TOPIC_OR_PARTITION) if self._handles_unknown_topics else []
        swallowed = self.too_large(columns, rejections, large)
        swallowed |= self._swallowed(self._handler.handle, columns, rejections, unknown, RetriableResponse)
        if self._handle_rejected is not None:
            others = sorted(set(with_code(*REJECTED_CODES)) - set(large))
            swallowed |= self._swallowed(self._handle_rejected, columns, rejections, others)
        return swallowed

    def unknown_topic(self, columns: RecordColumns, rejection: Rejection) -> RetriableResponse:
        """Call the handler with the first of several records of an unknown topic; its response counts for all."""
        if not self._handles_unknown_topics:
            return RetriableResponse.RETRY
        return self._call(RetriableResponse, self._handler.handle, _record(columns, rejection, 0), rejection)

    def _swallowed(
        self,
        method: Callable[[ProducerRecord, Any], object],
        columns: RecordColumns,
        rejections: Sequence[Rejection],
        indices: Sequence[int] | None = None,
        allowed: Any = NonRetriableResponse,
    ) -> frozenset[int]:
        return frozenset(
            index
            for index in (range(len(rejections)) if indices is None else indices)
            if self._call(allowed, method, _record(columns, rejections[index], index), rejections[index]) is allowed.SWALLOW
        )

    def _call(
        self, allowed: type[Response], method: Callable[[ProducerRecord, Any], object], record: ProducerRecord, rejection: Rejection
    ) -> Response:
        result = call_handler(allowed, method, record, _error(rejection), caught=_CAUGHT)
        if result.failure is not None and not self._has_failed:
            self._has_failed = True
            text = "the exception handler %s failed, its rows stay bad rows: %r, called for %s"
            _log.warning(text, type(self._handler).__qualname__, result.failure, rejection, exc_info=result.failure)
        return result.response


_handlers: LruCache[HandlerOptions, RowHandler] = LruCache(RowHandler.close)


def _error(rejection: Rejection) -> Any:
    return exception_for(rejection.code, message=rejection.message, topic_partition=rejection.topic_partition, api="Produce")


def _record(columns: RecordColumns, rejection: Rejection, index: int) -> ProducerRecord:
    topic, partition = rejection.topic_partition
    partition_or_none = None if partition < 0 else partition
    timestamp_ms = int(columns.timestamps[index])
    return ProducerRecord(topic, columns.value(index), columns.key(index), partition_or_none, timestamp_ms, columns.headers(index))
