"""RecordMaker: the arguments of `send`, checked and converted to a record for the accumulator; log lines about a producer's options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chaffinch import plain_text
from chaffinch.client.plugins import callable_name
from chaffinch.client.serialization import Headers as SerializationHeaders
from chaffinch.client.serialization import WithContext
from chaffinch.producer import arguments, plugins
from chaffinch.producer.core.batches.accumulator import record_size
from chaffinch.producer.core.batches.batch import NewRecord
from chaffinch.producer.core.options import availability_ended_by, idempotence_ended_by
from chaffinch.producer.futures import Callback, RecordFuture
from chaffinch.producer.records import Headers, ProducerRecord, RecordMetadata
from chaffinch.runtime.clock import Clock
from chaffinch.settings import Settings

log = plain_text.logger("chaffinch.producer")


def log_options(settings: Settings) -> None:
    """Log the options without effect, and those that switch others off."""
    for name in sorted(settings.ignored):
        log.warning("option %s is known to Apache Kafka and without effect here", name)
    if (option := idempotence_ended_by(settings)) is not None:
        log.info("idempotence is off because of %s, as in Apache Kafka; set enable.idempotence=false to confirm that", option)
    if (option := availability_ended_by(settings)) is not None:
        log.warning("option partitioner.availability.timeout.ms is without effect because of %s, as in Apache Kafka", option)


class RecordMaker:
    """Makes the records of one producer. `keeps_originals`: an exception handler needs the records as the caller handed them over."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        """Raises ConfigException for a serializer that cannot be imported."""
        self._key_serializer = plugins.serializer(settings, "key.serializer")
        self._value_serializer = plugins.serializer(settings, "value.serializer")
        self._trace_headers = plugins.trace_headers(settings)
        self._clock = clock
        self.keeps_originals = False

    @property
    def is_plain(self) -> bool:
        """Whether bytes need no conversion, no headers are added, and no original is needed."""
        hooks = (self._key_serializer, self._value_serializer, self._trace_headers)
        return all(hook is None for hook in hooks) and not self.keeps_originals

    @staticmethod
    def _with_trace(headers: Headers, trace_headers: Callable[[], Headers]) -> Headers:
        """The headers, and those of the trace context that they do not contain."""
        try:
            found = arguments.checked_headers(trace_headers())
        except BaseException as error:
            error.add_note(f"raised by the option {plugins.TRACE_HEADERS}, {callable_name(trace_headers)}")
            raise
        given = {name for name, _ in headers}
        return [*headers, *(pair for pair in found if pair[0] not in given)]

    def make(
        self,
        future: RecordFuture[RecordMetadata],
        topic: str | ProducerRecord,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers | None,
        on_delivery: Callback | None,
    ) -> NewRecord:
        """Check and convert the arguments of `send`. Raises TypeError and ValueError, and whatever a serializer raises."""
        record = topic if isinstance(topic, ProducerRecord) else None
        if record is not None:
            arguments.check_is_alone({"value": value, "key": key, "partition": partition, "timestamp_ms": timestamp_ms, "headers": headers})
            topic, value, key, partition = record.topic, record.value, record.key, record.partition
            timestamp_ms, headers = record.timestamp_ms, record.headers
        name = arguments.checked_topic(topic)
        partition = arguments.checked_number(partition, "partition", arguments.INT32_MAX)
        timestamp_ms = arguments.checked_number(timestamp_ms, "timestamp_ms", arguments.INT64_MAX)
        checked_headers = arguments.checked_headers(headers)
        if self._trace_headers is not None:
            checked_headers = self._with_trace(checked_headers, self._trace_headers)
        key_serializer, value_serializer = self._key_serializer, self._value_serializer
        given_headers: SerializationHeaders | None = None
        if isinstance(key_serializer, WithContext) or isinstance(value_serializer, WithContext):
            given_headers = list(checked_headers)
            key_serializer, value_serializer = (
                function.for_record(name, given_headers) if isinstance(function, WithContext) else function
                for function in (key_serializer, value_serializer)
            )
        value_bytes = arguments.content(value, "value", value_serializer, name)
        key_bytes = arguments.content(key, "key", key_serializer, name)
        if given_headers is not None:  # A serializer may have added the id of a schema.
            checked_headers = arguments.checked_headers(given_headers)

        def record_itself() -> ProducerRecord:
            return record or ProducerRecord(name, value, key, partition, timestamp_ms, () if headers is None else headers)

        if self.keeps_originals:
            future.record = record_itself()
        return NewRecord(
            topic=name,
            partition=partition,
            key=key_bytes,
            value=value_bytes,
            timestamp_ms=self._clock.wall_ms() if timestamp_ms is None else timestamp_ms,
            headers=checked_headers,
            size=record_size(key_bytes, value_bytes, checked_headers),
            future=future,
            callback=on_delivery,
            original=record_itself,
        )
