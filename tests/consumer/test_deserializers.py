"""What the two options take: functions, dotted names, and the names of Java's classes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from chaffinch import Consumer
from chaffinch.consumer.core.options import parse_options
from chaffinch.consumer.records import deserializer
from chaffinch.errors import ConfigException

JAVA = "org.apache.kafka.common.serialization."


def made_of(given: Any) -> Callable[[bytes], Any] | None:
    return deserializer(parse_options({"bootstrap.servers": "b:1", "value.deserializer": given}), "value.deserializer")


@pytest.mark.parametrize(
    ("given", "data", "found"),
    [
        (json.loads, b"[1]", [1]),
        ("json.loads", b"[1]", [1]),
        (bytes.decode, b"x", "x"),
        (f"kafkashaded.{JAVA}StringDeserializer", b"a", "a"),
        (f"{JAVA}StringDeserializer", "é".encode() + b"\xff", "é\ufffd"),
    ],
)
def test_what_is_a_function(given: Callable[[bytes], object] | str, data: bytes, found: object) -> None:
    function = made_of(given)
    assert function is not None
    assert function(data) == found


@pytest.mark.parametrize("given", [None, f"{JAVA}ByteArrayDeserializer", f"{JAVA}BytesDeserializer"])
def test_what_leaves_bytes_alone(given: str | None) -> None:
    assert made_of(given) is None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (7, "cannot be 7: it must be a function of bytes, or its dotted name"),
        ("json", "cannot be 'json': it must be a function of bytes, or its dotted name"),
        ("json.no_such", "it cannot be imported"),
        ("json.decoder", "must be a function of bytes"),
        ("io.confluent.kafka.serializers.KafkaAvroDeserializer", "it cannot be imported"),
        (f"{JAVA}LongDeserializer", "a class of Java: write lambda data: int.from_bytes(data, 'big', signed=True)"),
        (str, "so write bytes.decode"),
    ],
)
def test_what_is_none(given: object, says: str) -> None:
    with pytest.raises(ConfigException) as caught:
        Consumer({"bootstrap.servers": "127.0.0.1:1", "value.deserializer": given})
    assert says in str(caught.value)
    assert "option value.deserializer" in str(caught.value)
