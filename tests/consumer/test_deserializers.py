"""Options key.deserializer and value.deserializer: functions, dotted names, and names of Java classes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from chaffinch import Consumer
from chaffinch.client.serialization import WithContext
from chaffinch.consumer.core.options import parse_options
from chaffinch.consumer.records import deserializer
from chaffinch.errors import ConfigException

JAVA = "org.apache.kafka.common.serialization."


def deserializer_of(option: Any) -> Callable[[bytes], Any] | WithContext | None:
    return deserializer(parse_options({"bootstrap.servers": "b:1", "value.deserializer": option}), "value.deserializer")


@pytest.mark.parametrize(
    ("option", "data", "found"),
    [
        (json.loads, b"[1]", [1]),
        ("json", b"[1]", [1]),
        ("json.loads", b"[1]", [1]),
        (bytes.decode, b"x", "x"),
        (f"kafkashaded.{JAVA}StringDeserializer", b"a", "a"),
        (f"{JAVA}StringDeserializer", "é".encode() + b"\xff", "é\ufffd"),
    ],
)
def test_function_or_name_deserializes(option: Callable[[bytes], object] | str, data: bytes, found: object) -> None:
    function = deserializer_of(option)
    assert callable(function)
    assert function(data) == found


@pytest.mark.parametrize("option", [None, f"{JAVA}ByteArrayDeserializer", f"{JAVA}BytesDeserializer"])
def test_byte_deserializers_return_bytes(option: str | None) -> None:
    assert deserializer_of(option) is None


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (7, "cannot be 7: it must be a function of bytes, its dotted name, or json"),
        ("jsonx", "cannot be 'jsonx': it must be a function of bytes, its dotted name, or json"),
        ("json.no_such", "it cannot be imported"),
        ("json.decoder", "must be a function of bytes"),
        ("io.confluent.kafka.serializers.KafkaAvroDeserializer", "it cannot be imported"),
        (f"{JAVA}LongDeserializer", "a Java class: write lambda data: int.from_bytes(data, 'big', signed=True)"),
        (str, "so write bytes.decode"),
    ],
)
def test_invalid_deserializer_is_rejected(option: object, text: str) -> None:
    with pytest.raises(ConfigException) as caught:
        Consumer({"bootstrap.servers": "127.0.0.1:1", "value.deserializer": option})
    assert text in str(caught.value)
    assert "option value.deserializer" in str(caught.value)
