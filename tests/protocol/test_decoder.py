"""Decoder: lengths are checked before use, and errors name the field and the position."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from chaffinch.protocol.decoder import NUMBERS_PER_STRUCTURE, REQUEST_STRUCTURES_MAX, STRUCTURES_MAX, skip_tagged
from chaffinch.protocol.headers import read_client_id, read_response_tags
from chaffinch.protocol.messages.api_versions import ApiVersionsResponse
from chaffinch.protocol.messages.create_topics import CreateTopicsRequest
from chaffinch.protocol.messages.fetch import FetchRequest, FetchResponse
from chaffinch.protocol.messages.metadata import MetadataRequest, MetadataResponse
from chaffinch.protocol.messages.offset_fetch import OffsetFetchRequest
from chaffinch.protocol.messages.produce import ProduceRequest, ProduceResponse
from chaffinch.protocol.primitives import Array, Bytes, Float64, Int32, String, Struct, Uuid, uvarint
from chaffinch.protocol.schema import Message, wire
from chaffinch.protocol.violations import MalformedMessage
from tests.protocol.instances import CASES, name_of, sample
from tests.support.traced_memory import traced

PRODUCE_9 = "00 ffff 00001000 02 07 6f7264657273 02 00000003"
"""A Produce request v9 up to the records of `orders-3`."""


@pytest.mark.parametrize(
    ("cls", "version", "encoded", "field", "position", "reason"),
    [
        pytest.param(ProduceRequest, 9, "", "transactional_id", 0, "a length is cut off, 0 left", id="nothing"),
        pytest.param(ProduceRequest, 9, "00 ffff", "acks", 1, "6 bytes needed, 2 left", id="fixed run cut off"),
        pytest.param(
            ProduceRequest, 9, PRODUCE_9 + "05 616263", "topics[0].partitions[0].records", 21, "4 bytes announced, 3 left", id="records"
        ),
        pytest.param(
            ProduceRequest, 9, "00 ffff 00001000 03 07", "topics", 8, "2 elements of at least 3 bytes announced, 1 bytes left", id="array"
        ),
        pytest.param(ProduceRequest, 9, "00 ffff 00001000 00", "topics", 8, "length -1, but null is not allowed", id="null array, compact"),
        pytest.param(ProduceRequest, 7, "ffff ffff 00001000 ffffffff", "topics", 12, "length -1, but null is not allowed", id="null array"),
        pytest.param(ProduceRequest, 7, "fffe ffff 00001000", "transactional_id", 2, "negative length -2", id="negative length"),
        pytest.param(ProduceRequest, 7, "0001 ff ffff", "transactional_id", 2, "'utf-8' codec can't decode", id="not UTF-8"),
        pytest.param(ProduceRequest, 9, "ffffffffff01", "transactional_id", 0, "varint is longer than 5 bytes", id="long varint"),
        pytest.param(ProduceRequest, 9, "ffffffff7f", "transactional_id", 0, "varint 34359738367 does not fit 32 bits", id="large varint"),
        pytest.param(ProduceRequest, 9, "ffffffff0f", "transactional_id", 5, "4294967294 bytes announced, 0 left", id="largest varint"),
        pytest.param(ProduceRequest, 9, "00 ffff 00001000 01 05", "tagged fields", 8, "5 tagged fields announced, 0 bytes left", id="tags"),
        pytest.param(
            ProduceRequest,
            9,
            "00 ffff 00001000 01 01 05 09 00",
            "tagged fields",
            8,
            "tag 5 of 9 bytes announced, 1 left",
            id="unknown tag",
        ),
        pytest.param(
            ApiVersionsResponse, 3, "0000 01 00000000 01 01 01 00", "finalized_features_epoch", 10, "8 bytes needed", id="tag too short"
        ),
        pytest.param(
            ApiVersionsResponse,
            3,
            "0000 01 00000000 01 01 09 000000000000000000",
            "finalized_features_epoch",
            18,
            "tag 1 announced 9 bytes, its value ends at byte 18 instead of 19",
            id="tag too long",
        ),
        pytest.param(
            FetchRequest,
            12,
            "ffffffff 00000000 00000000 00000000 00 00000000 00000000 02 02 74 02 0000",
            "topics[0].partitions",
            29,
            "1 elements of at least 33 bytes announced, 2 bytes left",
            id="inner",
        ),
        pytest.param(MetadataRequest, 12, "02 00", "topics", 1, "1 elements of at least 18 bytes announced, 1 bytes left", id="uuid"),
    ],
)
def test_errors_name_field_position_and_reason(
    cls: type[Message], version: int, encoded: str, field: str, position: int, reason: str
) -> None:
    with pytest.raises(MalformedMessage) as caught:
        cls.decode(bytes.fromhex(encoded), version)
    error = caught.value
    assert (error.message_name, error.version, error.field, error.position) == (cls.__name__, version, field, position)
    assert reason in error.reason
    assert str(error).startswith(f"malformed {cls.__name__} v{version}: {error.field} at byte {error.position}: ")


@pytest.mark.parametrize(("cls", "version"), CASES, ids=map(name_of, CASES))
def test_every_proper_prefix_is_refused(cls: type[Message], version: int) -> None:
    encoded = b"".join(sample(cls, version).encode(version))
    for size in range(len(encoded)):
        with pytest.raises(MalformedMessage):
            cls.decode(encoded[:size], version)


def test_unknown_tags_are_skipped() -> None:
    plain = bytes.fromhex("00 ffff 00001000 01 00")
    tagged = bytes.fromhex("00 ffff 00001000 01 02 05 03 616263 8101 00")
    assert ProduceRequest.decode_from(memoryview(tagged), 0, 9) == (ProduceRequest.decode(plain, 9), len(tagged))


def test_skip_tagged_returns_the_end_position() -> None:
    data = memoryview(bytes.fromhex("ff 01 05 02 6162 ff"))
    assert skip_tagged(data, 1, len(data), 9) == (6, 8)


def test_records_are_views_of_the_buffer() -> None:
    buffer = bytearray.fromhex(PRODUCE_9 + "04 616263 00 00 00")
    records = ProduceRequest.decode(buffer, 9).topics[0].partitions[0].records
    assert isinstance(records, memoryview)
    buffer[-4] = ord("C")
    assert bytes(records) == b"abC"


def test_absent_and_empty_records_differ() -> None:
    for encoded, records in (("00", None), ("01", b"")):
        request = ProduceRequest.decode(bytes.fromhex(PRODUCE_9 + encoded + "00 00 00"), 9)
        assert request.topics[0].partitions[0].records == records


def test_a_large_claim_costs_no_memory() -> None:
    claims: list[tuple[type[Message], int, str]] = [
        (FetchResponse, 11, "00000000 0000 00000000 7fffffff"),
        (CreateTopicsRequest, 3, "7fffffff" + "00" * 64),
        (ProduceResponse, 9, "ffffffff0f" + "00" * 64),
    ]
    for cls, version, encoded in claims:
        data = bytes.fromhex(encoded)
        cls.decode(b"".join(cls().encode(version)), version)  # Compiled before it is measured.
        with traced() as taken, pytest.raises(MalformedMessage, match="elements of at least"):
            cls.decode(data, version)
        assert taken.peak < 100_000


def test_structures_of_one_message_are_limited() -> None:
    count = STRUCTURES_MAX + 1
    data = b"\0\0" + count.to_bytes(4, "big") + b"\0" * (6 * count)
    with pytest.raises(MalformedMessage, match="too many structures"):
        ApiVersionsResponse.decode(data, 0)


@pytest.mark.parametrize("count", [REQUEST_STRUCTURES_MAX, REQUEST_STRUCTURES_MAX + 1])
def test_structures_of_one_request_are_limited(count: int) -> None:
    """They cost a broker's one thread some ten microseconds each."""
    data = count.to_bytes(4, "big") + b"\0\1t" * count
    if count <= REQUEST_STRUCTURES_MAX:
        assert len(MetadataRequest.decode(data, 1).topics or ()) == count
    else:
        with pytest.raises(MalformedMessage, match="too many structures"):
            MetadataRequest.decode(data, 1)


@pytest.mark.parametrize(
    ("cls", "version", "before", "count_max"),
    [
        (OffsetFetchRequest, 1, "0001 67 00000001 0001 74", REQUEST_STRUCTURES_MAX),
        (MetadataResponse, 0, "00000000 00000001 0000 0001 74 00000001 0000 00000000 00000000", NUMBERS_PER_STRUCTURE * STRUCTURES_MAX),
    ],
    ids=["request", "answer"],
)
def test_numbers_of_one_message_are_limited(cls: type[Message], version: int, before: str, count_max: int) -> None:
    """A list of numbers takes ten times its bytes in memory."""
    count = count_max + NUMBERS_PER_STRUCTURE
    with pytest.raises(MalformedMessage):
        cls.decode(b"", version)  # Compiled before memory is measured.
    data = bytes.fromhex(before) + count.to_bytes(4, "big") + b"\0" * (4 * count)
    with traced() as taken, pytest.raises(MalformedMessage, match="too many structures"):
        cls.decode(data, version)
    assert taken.peak < 100_000


@pytest.mark.parametrize(
    ("cls", "version", "before"),
    [(ProduceRequest, 9, "00 ffff 00001000 01"), (ApiVersionsResponse, 3, "0000 01 00000000")],
    ids=["no tag known", "some known"],
)
def test_tagged_fields_of_one_message_are_limited(cls: type[Message], version: int, before: str) -> None:
    """Each takes two bytes on the wire and a microsecond: a frame of them alone would stop a broker for minutes."""
    count = STRUCTURES_MAX + 1
    with pytest.raises(MalformedMessage, match="too many structures"):
        cls.decode(bytes.fromhex(before) + uvarint(count) + b"\x09\0" * count, version)


def test_tagged_fields_of_all_structures_are_counted_together() -> None:
    count = REQUEST_STRUCTURES_MAX * 2 // 3
    topic = bytes.fromhex("02 74 01") + uvarint(count) + b"\x09\0" * count
    with pytest.raises(MalformedMessage, match=r"topics.1..tagged fields at byte .* too many structures"):
        ProduceRequest.decode(bytes.fromhex("00 ffff 00001000 03") + 2 * topic + b"\0", 9)


@pytest.mark.parametrize(
    ("read", "before"),
    [(lambda frame: read_client_id(frame, True), b"\0" * 8 + b"\xff\xff"), (lambda frame: read_response_tags(frame, 0, True), b"\0" * 4)],
    ids=["request", "response"],
)
def test_tagged_fields_of_a_header_are_limited(read: Callable[[memoryview], object], before: bytes) -> None:
    count = STRUCTURES_MAX + 1
    with pytest.raises(MalformedMessage, match="too many structures"):
        read(memoryview(before + uvarint(count) + b"\x09\0" * count))


class Position(Message):
    """A nested structure."""

    x: int = wire(Int32)


class Rare(Message, api_key=98, versions=(0, 1), flexible_since=1):
    """Kinds of fields that no message has yet."""

    plain: Position | None = wire(Position)
    nullable: Position | None = wire(Struct(Position), nullable_since=0)
    ids: list[object] = wire(Array(Uuid))
    names: list[str] | None = wire(Array(String), nullable_since=0)
    blob: bytes = wire(Bytes)
    share: float = wire(Float64)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("nullable", [None, Position(x=2)])
def test_nested_structures_and_lists_of_simple_types(version: int, nullable: Position | None) -> None:
    message = Rare(plain=Position(x=1), nullable=nullable, ids=[UUID(int=3)], names=["a", "b"], blob=b"abc", share=0.25)
    assert Rare.decode(b"".join(message.encode(version)), version) == message
