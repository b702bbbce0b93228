"""Bodies of requests and answers, of every API in every version: the first two bytes say which, the rest is the body.

What is decoded can be encoded, and comes out the same; all else is MalformedMessage. What the broker reads of the same bytes in a frame is
what the codec reads: the common case of Produce has a reader of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from chaffinch.protocol.apis import APIS
from chaffinch.protocol.headers import request_head
from chaffinch.protocol.schema import Message
from chaffinch.protocol.server_connection import ServerConnection
from chaffinch.protocol.violations import MalformedMessage, ProtocolViolation
from tests.protocol.instances import CASES, leaves, sample

PARTS = ("chaffinch.protocol",)


def seeds() -> Iterator[bytes]:
    for number, (cls, version) in enumerate(CASES):
        start = number.to_bytes(2, "big")
        yield start + b"".join(sample(cls, version).encode(version))


def check(data: bytes) -> None:
    cls, version = CASES[int.from_bytes(data[:2], "big") % len(CASES)]
    body = data[2:]
    message, malformed, end = None, None, 0
    try:
        message, end = cls.decode_from(memoryview(body), 0, version)
    except MalformedMessage as error:
        malformed = error
    if message is None:
        assert malformed is not None
        assert 0 <= malformed.position <= len(body), malformed
        assert str(malformed)
    else:
        assert 0 <= end <= len(body)
        encoded = b"".join(message.encode(version))
        again = cls.decode(encoded, version)
        assert again == message or _has_nan(message), (message, again)
        assert b"".join(again.encode(version)) == encoded
    api = APIS[cls.API_KEY]
    if cls is api.request and version in api.served:
        _check_frame(bytes(request_head(api.key, version, 7, "me", version >= api.flexible_since)[4:]) + body, message)


def _check_frame(frame: bytes, expected: Message | None) -> None:
    try:
        request = ServerConnection().request(memoryview(frame))
    except ProtocolViolation:
        assert expected is None
    else:
        assert request.message == expected
        assert (request.correlation_id, request.client_id) == (7, "me")


def _has_nan(message: Message) -> bool:
    """Which equals nothing, itself included."""
    values = (getattr(leaf, field.name) for leaf in leaves(message) for field in type(leaf).FIELDS)
    return any(isinstance(value, float) and value != value for value in values)
