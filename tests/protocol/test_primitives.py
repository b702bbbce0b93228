"""Unsigned varints (KIP-482) and the ranges of integer types."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaffinch.protocol import primitives
from chaffinch.protocol.messages.metadata import MetadataRequestTopic
from chaffinch.protocol.primitives import Array, Struct, read_uvarint, uvarint


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (300, "ac02"), (16383, "ff7f"), (16384, "808001"), (0xFFFF_FFFF, "ffffffff0f")],
)
def test_uvarint_bytes(value: int, encoded: str) -> None:
    assert uvarint(value).hex() == encoded
    assert read_uvarint(b"ab" + bytes.fromhex(encoded), 2) == (value, 2 + len(encoded) // 2)


@given(st.integers(0, 0xFFFF_FFFF), st.binary(max_size=3))
def test_uvarint_round_trip(value: int, after: bytes) -> None:
    encoded = uvarint(value)
    assert read_uvarint(encoded + after, 0) == (value, len(encoded))


@pytest.mark.parametrize(
    ("encoded", "error"), [("", IndexError), ("80", IndexError), ("808080808000", ValueError), ("ffffffff1f", ValueError)]
)
def test_invalid_uvarint_is_refused(encoded: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        read_uvarint(bytes.fromhex(encoded), 0)


@pytest.mark.parametrize(
    ("kind", "minimum", "maximum"),
    [
        ("Int8", -128, 127),
        ("Int16", -32768, 32767),
        ("Int32", -(1 << 31), (1 << 31) - 1),
        ("Int64", -(1 << 63), (1 << 63) - 1),
    ],
)
def test_integer_ranges(kind: str, minimum: int, maximum: int) -> None:
    described = getattr(primitives, kind)
    assert (described.minimum, described.maximum) == (minimum, maximum)


def test_names_are_those_of_message_descriptions() -> None:
    assert Array(primitives.Int32).name == "[]int32"
    assert Array(MetadataRequestTopic).name == "[]MetadataRequestTopic"
    assert Struct(MetadataRequestTopic).name == "MetadataRequestTopic"
