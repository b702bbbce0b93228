"""Plugins of the options: exception handler, partitioner and serializers, given as an object or as a dotted name to import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from chaffinch.client.plugins import import_plugin
from chaffinch.client.serialization import JSON, WithContext, to_json, with_context
from chaffinch.errors import ConfigException
from chaffinch.producer.core.exception_handler import ProducerExceptionHandler
from chaffinch.producer.core.partitioner import MURMUR2, ROUND_ROBIN, Rule
from chaffinch.producer.records import Headers
from chaffinch.settings import Settings, unshaded

HANDLER: Final = "custom.exception.handler.class"
PARTITIONER: Final = "partitioner"
TRACE_HEADERS: Final = "trace.headers"
OPENTELEMETRY: Final = "opentelemetry"
DROP_LARGE: Final = "drop.invalid.large.records"
Serializer = Callable[[Any], bytes | str | None]

# The effect of these two is built in for str and bytes, so an options file shared with Java may name them.
JAVA_SERIALIZERS: Final = frozenset(f"org.apache.kafka.common.serialization.{name}Serializer" for name in ("String", "ByteArray"))


PARTITION_RULES: Final = {
    MURMUR2: MURMUR2,
    ROUND_ROBIN: ROUND_ROBIN,
    "org.apache.kafka.clients.producer.RoundRobinPartitioner": ROUND_ROBIN,
}


def exception_handler(settings: Settings) -> ProducerExceptionHandler:
    """The exception handler of the options, after its `configure`. Raises ConfigException if the value is not one."""
    found = import_plugin(HANDLER, settings[HANDLER]) or ProducerExceptionHandler
    if isinstance(found, type) and issubclass(found, ProducerExceptionHandler):
        kind = found
        try:
            found = kind()
        except (Exception, SystemExit) as failure:
            raise ConfigException(f"option {HANDLER}: {kind.__qualname__}() raised {failure!r}") from failure
    if not isinstance(found, ProducerExceptionHandler):
        what = "a ProducerExceptionHandler, its class, or its dotted name"
        raise ConfigException(f"option {HANDLER} cannot be {settings[HANDLER]!r}: it must be {what}")
    found.drops_large_records = settings[DROP_LARGE]
    try:
        found.configure(dict(settings))
    except (Exception, SystemExit) as failure:
        raise ConfigException(f"option {HANDLER}: configure of {type(found).__qualname__} raised {failure!r}") from failure
    return found


def serializer(settings: Settings, option: str) -> Serializer | WithContext | None:
    """The serializer of keys or values; None: they are bytes or str already."""
    given = settings[option]
    if given == JSON:
        return to_json
    found = None if isinstance(given, str) and unshaded(given) in JAVA_SERIALIZERS else import_plugin(option, given)
    if found is not None and not callable(found):
        raise ConfigException(f"option {option} cannot be {given!r}: it must be a function of one value, its dotted name, or {JSON}")
    return found if found is None else with_context(option, found) or found


def trace_headers(settings: Settings) -> Callable[[], Headers] | None:
    """The function of the option `trace.headers`. Raises ConfigException if it cannot be imported."""
    given = settings[TRACE_HEADERS]
    if given != OPENTELEMETRY:
        found: Callable[[], Headers] | None = import_plugin(TRACE_HEADERS, given)
        if found is not None and not callable(found):
            what = f"{OPENTELEMETRY}, a function without arguments that returns (name, bytes) pairs, or its dotted name"
            raise ConfigException(f"option {TRACE_HEADERS} cannot be {given!r}: it must be {what}")
        return found
    try:
        from opentelemetry.propagate import inject
    except ImportError as failure:
        raise ConfigException(f"option {TRACE_HEADERS}={OPENTELEMETRY} needs a package: pip install opentelemetry-api") from failure

    def current_context() -> Headers:
        """Headers of the current span, such as `traceparent`."""
        carrier: dict[str, str] = {}
        inject(carrier)
        return [(name, text.encode()) for name, text in carrier.items()]

    return current_context


def partition_rule(settings: Settings) -> Rule | str:
    """The partitioner of the options: a built-in name, or a function."""
    given = settings[PARTITIONER]
    if isinstance(given, str) and unshaded(given) in PARTITION_RULES:
        return PARTITION_RULES[unshaded(given)]
    found: Rule | str = import_plugin(PARTITIONER, given) if not isinstance(given, str) or "." in given else given
    if isinstance(found, type) or not callable(found):
        what = f"{MURMUR2}, {ROUND_ROBIN}, or a function of topic, key, value and number of partitions, or its dotted name"
        raise ConfigException(f"option {PARTITIONER} cannot be {given!r}: it must be {what}")
    return found
