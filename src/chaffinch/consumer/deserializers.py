"""What makes objects of keys and values: functions, or names of them: dotted, or those of Java's classes that do the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from chaffinch.client.named import named
from chaffinch.errors import ConfigException
from chaffinch.settings import Settings, unshaded

Deserializer = Callable[[bytes], Any]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


_JAVA: Final = "org.apache.kafka.common.serialization."
# As in Java what is no UTF-8 becomes U+FFFD.
JAVA_DESERIALIZERS: Final[dict[str, Deserializer | None]] = {
    f"{_JAVA}StringDeserializer": _text,
    f"{_JAVA}ByteArrayDeserializer": None,
    f"{_JAVA}BytesDeserializer": None,
}
_WHOLE: Final = "lambda data: int.from_bytes(data, 'big', signed=True)"
_INSTEAD: Final = {
    f"{_JAVA}ShortDeserializer": _WHOLE,
    f"{_JAVA}IntegerDeserializer": _WHOLE,
    f"{_JAVA}LongDeserializer": _WHOLE,
    f"{_JAVA}FloatDeserializer": "lambda data: struct.unpack('>f', data)[0]",
    f"{_JAVA}DoubleDeserializer": "lambda data: struct.unpack('>d', data)[0]",
    f"{_JAVA}UUIDDeserializer": "lambda data: uuid.UUID(data.decode())",
}


def deserializer(settings: Settings, option: str) -> Deserializer | None:
    """The function that makes objects of bytes; None: they stay bytes. ConfigException for what is none."""
    given = settings[option]
    if given is None:
        return None
    if isinstance(given, str):
        java = unshaded(given)
        if java in JAVA_DESERIALIZERS:
            return JAVA_DESERIALIZERS[java]
        if java in _INSTEAD:
            raise ConfigException(f"option {option} cannot be {given!r}, a class of Java: write {_INSTEAD[java]}")
        if "." not in given:
            raise _refusal(option, given, "")
    found = named(option, given)
    if found is str:
        raise _refusal(option, given, ": str(b'x') is \"b'x'\", so write bytes.decode")
    if not callable(found):
        raise _refusal(option, given, "")
    return found  # type: ignore[no-any-return]


def _refusal(option: str, given: Any, why: str) -> ConfigException:
    return ConfigException(f"option {option} cannot be {given!r}{why or ': it must be a function of bytes, or its dotted name'}")
