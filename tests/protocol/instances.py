"""Messages made from their field descriptions: fixed samples, random ones, and their twins in kafka-python."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from copy import copy
from functools import cache
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from chaffinch.protocol.apis import APIS
from chaffinch.protocol.primitives import Array, Bool, Field, Fixed, Float64, Int16, RecordsType, String, Struct, Uuid, Variable
from chaffinch.protocol.schema import Message
from tests.protocol import consumer_group_schemas, newer_schemas

CASES = [
    (cls, version)
    for api in APIS.values()
    for cls in (api.request, api.response)
    for version in range(cls.VERSIONS[0], cls.VERSIONS[1] + 1)
]
"""Every message in every version described."""


def name_of(case: tuple[type[Message], int]) -> str:
    """For test ids: `FetchRequest-v12`."""
    return f"{case[0].__name__}-v{case[1]}"


def class_of(kind: Struct) -> type[Message]:
    """Of what a field of messages holds."""
    assert issubclass(kind.message, Message)
    return kind.message


# -- fixed samples ----------------------------------------------------------------------------------------------------------------


class Counter:
    """Gives each field of a sample another value."""

    def __init__(self) -> None:
        self.value = 0

    def next(self) -> int:
        self.value += 1
        return self.value


def sample(cls: type[Message], version: int, counter: Counter | None = None) -> Message:
    """An instance in which every field of the version has a value of its own, and lists have two elements."""
    counter = counter or Counter()
    values = {field.name: _sample_value(field.kind, version, counter) for field in cls.FIELDS if is_standard(field, version)}
    return cls(**values)


def _sample_value(kind: Any, version: int, counter: Counter) -> Any:
    number = counter.next()
    if kind is Int16 and number == 1:
        return 0  # A leading error code: clients read an ApiVersions response with an error as version 0.
    if isinstance(kind, Array):
        return [_sample_value(kind.element, version, counter) for _ in range(2)]
    if isinstance(kind, Struct):
        return sample(class_of(kind), version, counter)
    if isinstance(kind, type):
        return sample(kind, version, counter)
    if kind is Bool:
        return True
    if kind is Uuid:
        return UUID(int=(number << 100) + number)
    if kind is String:
        return f"té{number}"
    if isinstance(kind, Variable):
        return b"records %d" % number
    return -number if kind.width > 1 else number % 128


def is_standard(field: Field, version: int) -> bool:
    """Whether Apache Kafka's version has the field too."""
    return field.exists_in(version) and field.name != "chaffinch_error_code"


# -- random instances -------------------------------------------------------------------------------------------------------------


@cache
def messages(cls: type[Message], version: int) -> st.SearchStrategy[Message]:
    """Any instance the version can carry."""
    return st.builds(cls, **{field.name: _values(field, version) for field in cls.FIELDS if field.exists_in(version)})


def _values(field: Field, version: int) -> st.SearchStrategy[Any]:
    strategy = _kind_values(field.kind, version)
    is_required = field.kind is RecordsType or (isinstance(field.kind, Struct) and not field.is_tagged_in(version))
    if field.is_nullable_in(version) or (field.default is None and not is_required):
        return st.none() | strategy
    return strategy


def _kind_values(kind: Any, version: int) -> st.SearchStrategy[Any]:
    if isinstance(kind, Array):
        return st.lists(_kind_values(kind.element, version), max_size=3)
    if isinstance(kind, Struct):
        return messages(class_of(kind), version)
    if isinstance(kind, type):
        return messages(kind, version)
    if isinstance(kind, Fixed):
        return _fixed_values(kind)
    if kind is String:
        return st.text(max_size=5) | st.integers(120, 140).map(lambda size: "x" * size)
    return st.binary(max_size=200)


def _fixed_values(kind: Fixed) -> st.SearchStrategy[Any]:
    if kind is Bool:
        return st.booleans()
    if kind is Uuid:
        return st.uuids()
    if kind is Float64:
        return st.floats(allow_nan=False)
    return st.integers(int(kind.minimum or 0), int(kind.maximum or 0))


# -- kafka-python -----------------------------------------------------------------------------------------------------------------

_KAFKA_PYTHON_NAMES = {
    ("ProduceRequest", "topics"): "topic_data",
    ("TopicProduceData", "partitions"): "partition_data",
    ("MetadataResponse", "cluster_authorized_operations"): "authorized_operations",
    ("MetadataResponseTopic", "topic_authorized_operations"): "authorized_operations",
    ("DescribeClusterResponse", "cluster_authorized_operations"): "authorized_operations",
    ("DescribedConsumerGroup", "authorized_operations"): "operations",
}
"""The first two names are Chaffinch's own, the next three kafka-python's, the last is of `consumer_group_schemas`."""

_OPERATIONS = {31}
"""How kafka-python sees authorized operations: as a set of bits, or None for this one."""


def kafka_python_class(cls: type[Message]) -> Any:
    """The class of the same name in kafka-python, or made by it for messages that it does not have."""
    for described in (consumer_group_schemas.CLASSES, newer_schemas.CLASSES):
        if cls.__name__ in described:
            return described[cls.__name__]
    for module in ("producer", "consumer", "metadata", "admin", "sasl"):
        found = getattr(importlib.import_module(f"kafka.protocol.{module}"), cls.__name__, None)
        if found is not None:
            return found
    raise LookupError(cls.__name__)


def to_kafka_python(message: Message, version: int, twin: Any = None) -> Any:
    """The same message as an object of kafka-python."""
    twin = twin or kafka_python_class(type(message))
    values = {}
    for field in type(message).FIELDS:
        value = getattr(message, field.name)
        if not is_standard(field, version):
            continue
        name = kafka_python_name(type(message), field.name)
        if field.is_tagged_in(version) and value == field.default:
            continue
        values[name] = _to_twin(field, value, version, twin, name)
    return twin(version=version, **values)


def _to_twin(field: Field, value: Any, version: int, twin: Any, name: str) -> Any:
    if name == "authorized_operations":
        return {bit for bit in range(32) if value >> bit & 1}
    if value is None or isinstance(value, str | bytes | int | float | UUID):
        return value
    if isinstance(value, memoryview):
        return bytes(value)
    inner = twin._struct.fields[name]
    if isinstance(value, Message):
        return to_kafka_python(value, version, inner.data_class)
    return [to_kafka_python(item, version, inner.data_class) if isinstance(item, Message) else item for item in value]


def from_kafka_python(cls: type[Message], twin: Any, version: int) -> Message:
    """The reverse."""
    values = {}
    for field in cls.FIELDS:
        if not is_standard(field, version):
            continue
        name = kafka_python_name(cls, field.name)
        values[field.name] = _from_twin(field, getattr(twin, name), version, name)
    return cls(**values)


def _from_twin(field: Field, value: Any, version: int, name: str) -> Any:
    kind = field.kind
    if name == "authorized_operations":
        number = sum(1 << bit for bit in (_OPERATIONS if value is None else value))
        return number - (1 << 32) if number >> 31 else number
    if value is None:
        return copy(field.default) if field.is_tagged_in(version) else None
    if isinstance(kind, Struct):
        return from_kafka_python(class_of(kind), value, version)
    if isinstance(kind, Array) and isinstance(kind.element, type):
        element = kind.element
        assert issubclass(element, Message)
        return [from_kafka_python(element, item, version) for item in value]
    return list(value) if isinstance(kind, Array) else value


def kafka_python_name(cls: type[Message], name: str) -> str:
    return _KAFKA_PYTHON_NAMES.get((cls.__name__, name), name)


def leaves(message: Any) -> Iterator[Any]:
    """Every structure within a message, itself first."""
    if isinstance(message, Message):
        yield message
        for field in type(message).FIELDS:
            yield from leaves(getattr(message, field.name))
    elif isinstance(message, list):
        for item in message:
            yield from leaves(item)
