"""ConsumerRecord and deserializers: converts fetched columns to one object per record.

A deserializer is a function of bytes, its dotted name, or the name of an equivalent Java class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple

from chaffinch.client.plugins import import_plugin
from chaffinch.client.serialization import JSON, WithContext, from_json, with_context
from chaffinch.consumer.core.fetcher import Portion
from chaffinch.errors import ConfigException, RecordDeserializationException
from chaffinch.identifiers import TopicPartition
from chaffinch.public_names import exported_from
from chaffinch.records.byte_columns import ByteColumn
from chaffinch.settings import Settings, unshaded

Deserializer = Callable[[bytes], Any]

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # With defaults, which Python has since 3.13; type checkers know it without the package.

    K = TypeVar("K", default=bytes)
    V = TypeVar("V", default=bytes)
else:
    from typing import TypeVar

    K, V = TypeVar("K"), TypeVar("V")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


_JAVA: Final = "org.apache.kafka.common.serialization."
# As in Java, invalid UTF-8 becomes U+FFFD.
JAVA_DESERIALIZERS: Final[dict[str, Deserializer | None]] = {
    f"{_JAVA}StringDeserializer": _text,
    f"{_JAVA}ByteArrayDeserializer": None,
    f"{_JAVA}BytesDeserializer": None,
}
_INT: Final = "lambda data: int.from_bytes(data, 'big', signed=True)"
_REPLACEMENTS: Final = {
    f"{_JAVA}ShortDeserializer": _INT,
    f"{_JAVA}IntegerDeserializer": _INT,
    f"{_JAVA}LongDeserializer": _INT,
    f"{_JAVA}FloatDeserializer": "lambda data: struct.unpack('>f', data)[0]",
    f"{_JAVA}DoubleDeserializer": "lambda data: struct.unpack('>d', data)[0]",
    f"{_JAVA}UUIDDeserializer": "lambda data: uuid.UUID(data.decode())",
}


def deserializer(settings: Settings, option: str) -> Deserializer | WithContext | None:
    """The function that converts bytes to objects; None leaves bytes as they are. Raises ConfigException for an invalid value."""
    value = settings[option]
    if value is None:
        return None
    if isinstance(value, str):
        if value == JSON:
            return from_json
        java = unshaded(value)
        if java in JAVA_DESERIALIZERS:
            return JAVA_DESERIALIZERS[java]
        if java in _REPLACEMENTS:
            raise ConfigException(f"option {option} cannot be {value!r}, a Java class: write {_REPLACEMENTS[java]}")
        if "." not in value:
            raise _config_error(option, value, "")
    found = import_plugin(option, value)
    if found is str:
        raise _config_error(option, value, ": str(b'x') is \"b'x'\", so write bytes.decode")
    if not callable(found):
        raise _config_error(option, value, "")
    return with_context(option, found) or found


def _config_error(option: str, value: Any, why: str) -> ConfigException:
    return ConfigException(f"option {option} cannot be {value!r}{why or ': it must be a function of bytes, its dotted name, or json'}")


REPR_LENGTH_MAX: Final = 100
"""`repr` shows at most this many bytes or characters of a key or value."""

Headers = Sequence[tuple[str, bytes | None]]


@exported_from("chaffinch")
class ConsumerRecord(NamedTuple, Generic[K, V]):
    """One record.

    Args:
        topic: name of the topic.
        partition: number of the partition.
        offset: offset in the partition.
        timestamp_ms: ms since 1970; -1 for none.
        timestamp_type: 0: the producer set the timestamp; 1: the broker set it at the append.
        key: bytes or None; the result of `key.deserializer` if there is one. For type checkers it is `K | None`.
        value: bytes or None, as for a tombstone; the result of `value.deserializer` if there is one. For type checkers it is `V | None`.
        headers: sequence of (name, bytes or None) pairs.
        leader_epoch: epoch of the leader that appended the record; -1 if it is not known.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: K | None
    value: V | None
    headers: Headers = ()
    leader_epoch: int = -1

    def __repr__(self) -> str:
        """As for a named tuple, without empty headers and an unknown epoch; long keys and values are cut."""
        shown = dict(zip(self._fields, self, strict=True))
        if not self.headers:
            del shown["headers"]
        if self.leader_epoch < 0:
            del shown["leader_epoch"]
        return f"ConsumerRecord({', '.join(f'{name}={_short_repr(value)}' for name, value in shown.items())})"

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition as a TopicPartition."""
        return TopicPartition(self.topic, self.partition)


def _short_repr(value: Any) -> str:
    if isinstance(value, bytes | str) and len(value) > REPR_LENGTH_MAX:
        return f"{value[:REPR_LENGTH_MAX]!r}... ({len(value)} {'bytes' if isinstance(value, bytes) else 'characters'})"
    return repr(value)


def records_of(portion: Portion) -> list[ConsumerRecord[Any, Any]]:
    """The records of one portion."""
    columns = portion.columns
    assert columns.offsets is not None, "records that were read have offsets"
    has_headers = int(columns.header_offsets[-1]) > int(columns.header_offsets[0])
    headers: Any = [columns.headers(row) for row in range(len(columns))] if has_headers else repeat(())
    return list(
        map(
            ConsumerRecord,
            repeat(portion.tp.topic),
            repeat(portion.tp.partition),
            columns.offsets.tolist(),
            columns.timestamps.tolist(),
            repeat(portion.timestamp_type),
            _values(columns.keys),
            _values(columns.values),
            headers,
            repeat(portion.leader_epoch),
        )
    )


def _values(column: ByteColumn) -> list[bytes | None]:
    first, last = int(column.offsets[0]), int(column.offsets[-1])
    if column.valid is not None and not column.valid.any():
        return [None] * column.length
    data = column.data[first:last].tobytes()
    found: list[bytes | None] = [data[start:end] for start, end in pairwise((column.offsets - first).tolist())]
    if column.valid is None:
        return found
    return [value if is_valid else None for value, is_valid in zip(found, column.valid.tolist(), strict=True)]


def records_of_all(
    portions: list[Portion],
    key: Deserializer | WithContext | None,
    value: Deserializer | WithContext | None,
    reject: Callable[[TopicPartition, int, RecordDeserializationException], None],
) -> list[ConsumerRecord[Any, Any]]:
    """The records of all portions, with deserialized keys and values.

    Each partition ends before the first record that a deserializer rejects: `reject` is called with its offset and the error.
    """
    if key is None and value is None:
        return records_of(portions[0]) if len(portions) == 1 else [record for portion in portions for record in records_of(portion)]
    found: list[ConsumerRecord[Any, Any]] = []
    rejected: set[TopicPartition] = set()
    for portion in portions:
        if portion.tp in rejected:
            continue
        records = records_of(portion)
        converted, error = _deserialize(records, key, value)
        found += converted
        if error is not None:
            rejected.add(portion.tp)
            reject(portion.tp, records[len(converted)].offset, error)
    return found


def _function(given: Deserializer | WithContext, record: ConsumerRecord[Any, Any]) -> Deserializer:
    return given.for_record(record.topic, list(record.headers)) if isinstance(given, WithContext) else given


def _deserialize(
    records: list[ConsumerRecord[Any, Any]], key: Deserializer | WithContext | None, value: Deserializer | WithContext | None
) -> tuple[list[ConsumerRecord[Any, Any]], RecordDeserializationException | None]:
    """The records with deserialized keys and values, up to the first error; and that error."""
    converted: list[ConsumerRecord[Any, Any]] = []
    for record in records:
        part = "key"
        try:
            found_key = record.key if key is None or record.key is None else _function(key, record)(record.key)
            part = "value"
            found_value = record.value if value is None or record.value is None else _function(value, record)(record.value)
        except Exception as error:
            text = f"the {part} at offset {record.offset} of {record.topic_partition} cannot be deserialized: {error!r}; seek past it"
            failure = RecordDeserializationException(text, topic_partition=record.topic_partition)
            failure.__cause__ = error
            return converted, failure
        converted.append(record._replace(key=found_key, value=found_value))
    return converted, None
