"""RecordMaker: the arguments of `send`, checked and converted to a record for the accumulator; log lines about a producer's options."""

from __future__ import annotations

from typing import Any

from chaffinch import plain_text
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
        self._clock = clock
        self.keeps_originals = False

    @property
    def is_plain(self) -> bool:
        """Whether bytes need no conversion, and no original is needed."""
        return self._key_serializer is None and self._value_serializer is None and not self.keeps_originals

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
