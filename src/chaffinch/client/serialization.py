"""JSON, and serializers and deserializers of confluent-kafka, which are called with topic, field and headers of a record.

Internal; may change without notice.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, Literal

from chaffinch.client.plugins import callable_name
from chaffinch.errors import ConfigException

JSON: Final = "json"
_BASES: Final = frozenset({"confluent_kafka.serialization.Serializer", "confluent_kafka.serialization.Deserializer"})

Field = Literal["key", "value"]
Headers = list[tuple[str, str | bytes | None]]


def to_json(value: Any) -> bytes:
    """JSON in UTF-8, without spaces. Raises TypeError for other objects than those of `json`, and ValueError for NaN and infinities."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def from_json(data: bytes) -> Any:
    """The value of a JSON text. Raises ValueError for other bytes."""
    return json.loads(data)


class WithContext:
    """A serializer or deserializer of confluent-kafka."""

    def __init__(self, function: Callable[..., Any], field: Field) -> None:
        from confluent_kafka.serialization import MessageField, SerializationContext

        self._function = function
        self._field = MessageField.KEY if field == "key" else MessageField.VALUE
        self._context_of = SerializationContext

    def for_record(self, topic: str, headers: Headers) -> Callable[[Any], Any]:
        """The function for the key or value of one record. A serializer may add to `headers`."""
        context = self._context_of(topic, self._field, headers)

        def call(value: Any) -> Any:
            return self._function(value, context)

        call.__qualname__ = callable_name(self._function)
        return call


def with_context(option: str, function: Callable[..., Any]) -> WithContext | None:
    """The object for a function of confluent-kafka; None for a function of one value. Raises ConfigException for one of asyncio."""
    # Its module is loaded if there is such an object; otherwise confluent-kafka need not be installed.
    if not any(f"{kind.__module__}.{kind.__qualname__}" in _BASES for kind in type(function).__mro__):
        return None
    name = type(function).__qualname__
    if name.startswith("Async"):
        plain = name.removeprefix("Async")
        raise ConfigException(f"option {option} cannot be an {name}: its results have to be awaited, give a {plain}")
    return WithContext(function, "key" if option.startswith("key.") else "value")
