"""Request and response headers, encoded by hand: every frame has one, and they have three and two versions.

Request header: api key int16, api version int16, correlation id int32; from version 1 the client id as a nullable string (never compact, so
that any broker can read it); from version 2 tagged fields. Response header: correlation id int32; from version 1 tagged fields. Flexible
versions of an API use 2 and 1, others 1 and 0, except that the ApiVersions response always has header 0 (KIP-482, KIP-511). Version 0 of
the request header was only for ControlledShutdown, which is not served.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from chaffinch.protocol.decoder import skip_tagged
from chaffinch.protocol.violations import MalformedMessage, UnencodableMessage

API_VERSIONS_KEY: Final = 18

_REQUEST: Final = Struct(">hhi")
_INT16: Final = Struct(">h")
_FRAMED_REQUEST: Final = Struct(">ihhih")
_INT32: Final = Struct(">i")
_FRAMED_RESPONSE: Final = Struct(">ii")

REQUEST_BYTES_MIN: Final = _REQUEST.size
"""Minimum size of a request. Smaller frames are invalid, and would need far more memory than their bytes while they wait."""


def request_head(key: int, version: int, correlation_id: int, client_id: str | None, is_flexible: bool) -> bytearray:
    """The first bytes of a request: space for the frame's size, then the header. `finish_frame` writes the size."""
    encoded = b"" if client_id is None else client_id.encode()
    if len(encoded) > 0x7FFF:
        raise UnencodableMessage("RequestHeader", 1 + is_flexible, "client_id", f"{len(encoded)} bytes of UTF-8, limit 32767")
    head = bytearray(_FRAMED_REQUEST.pack(0, key, version, correlation_id, -1 if client_id is None else len(encoded)))
    head += encoded
    if is_flexible:
        head.append(0)
    return head


def response_head(key: int, correlation_id: int, is_flexible: bool) -> bytearray:
    """The first bytes of a response: space for the frame's size, then the header."""
    head = bytearray(_FRAMED_RESPONSE.pack(0, correlation_id))
    if is_flexible and key != API_VERSIONS_KEY:
        head.append(0)
    return head


def finish_frame(parts: list[bytes | bytearray | memoryview]) -> list[bytes | bytearray | memoryview]:
    """Write the frame's size into its first four bytes, reserved by `request_head` or `response_head`."""
    head = parts[0]
    assert isinstance(head, bytearray), "the first buffer is the head"
    _INT32.pack_into(head, 0, sum(map(len, parts)) - 4)
    return parts


def read_request_prefix(frame: memoryview) -> tuple[int, int, int]:
    """(api key, api version, correlation id), in the same place for every API."""
    if len(frame) < 8:
        raise MalformedMessage("RequestHeader", 1, "correlation_id", 0, f"8 bytes needed, {len(frame)} left")
    prefix: tuple[int, int, int] = _REQUEST.unpack_from(frame)
    return prefix


def read_client_id(frame: memoryview, is_flexible: bool) -> tuple[str | None, int]:
    """(client id, position of the body). Invalid UTF-8 in the client id is replaced, as in Apache Kafka."""
    header_version = 1 + is_flexible
    if len(frame) < 10:
        raise MalformedMessage("RequestHeader", header_version, "client_id", 8, f"2 bytes needed, {len(frame) - 8} left")
    (size,) = _INT16.unpack_from(frame, 8)
    position = 10 + max(0, size)
    if size < -1 or position > len(frame):
        raise MalformedMessage("RequestHeader", header_version, "client_id", 10, f"{size} bytes announced, {len(frame) - 10} left")
    try:
        client_id = None if size < 0 else str(frame[10:position], "utf-8", "replace")
        if is_flexible:
            position = skip_tagged(frame, position, len(frame))[0] if frame[position] else position + 1
    except (IndexError, ValueError) as failure:
        raise MalformedMessage("RequestHeader", header_version, "client_id or tagged fields", position, _reason(failure)) from None
    return client_id, position


def read_correlation_id(frame: memoryview) -> int:
    """The correlation id of a response, in the same place for every API."""
    if len(frame) < 4:
        raise MalformedMessage("ResponseHeader", 0, "correlation_id", 0, f"4 bytes needed, {len(frame)} left")
    correlation_id: int = _INT32.unpack_from(frame)[0]
    return correlation_id


def read_response_tags(frame: memoryview, key: int, is_flexible: bool) -> int:
    """Position of a response's body."""
    if not is_flexible or key == API_VERSIONS_KEY:
        return 4
    try:
        return skip_tagged(frame, 4, len(frame))[0] if frame[4] else 5
    except (IndexError, ValueError) as failure:
        raise MalformedMessage("ResponseHeader", 1, "tagged fields", 4, _reason(failure)) from None


def _reason(failure: Exception) -> str:
    return "the frame ends within it" if isinstance(failure, IndexError) else str(failure)
