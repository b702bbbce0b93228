"""Headers, byte by byte."""

from __future__ import annotations

import pytest

from chaffinch.protocol.headers import (
    finish_frame,
    read_client_id,
    read_correlation_id,
    read_request_prefix,
    read_response_tags,
    request_head,
    response_head,
)
from chaffinch.protocol.violations import MalformedMessage, UnencodableMessage


@pytest.mark.parametrize(
    ("client_id", "is_flexible", "header"),
    [
        ("me", False, "0003 0009 00000005 0002 6d65"),
        ("me", True, "0003 0009 00000005 0002 6d65 00"),
        (None, False, "0003 0009 00000005 ffff"),
        (None, True, "0003 0009 00000005 ffff 00"),
        ("", True, "0003 0009 00000005 0000 00"),
    ],
)
def test_request_headers_both_ways(client_id: str | None, is_flexible: bool, header: str) -> None:
    encoded = bytes.fromhex(header)
    (frame,) = finish_frame([request_head(3, 9, 5, client_id, is_flexible)])
    assert frame == len(encoded).to_bytes(4, "big") + encoded
    body = memoryview(encoded + b"body")
    assert read_request_prefix(body) == (3, 9, 5)
    assert read_client_id(body, is_flexible) == (client_id, len(encoded))


@pytest.mark.parametrize(
    ("key", "is_flexible", "header"), [(3, False, "00000005"), (3, True, "00000005 00"), (18, True, "00000005"), (18, False, "00000005")]
)
def test_response_headers_both_ways(key: int, is_flexible: bool, header: str) -> None:
    """KIP-511: the ApiVersions response keeps header version 0."""
    encoded = bytes.fromhex(header)
    head = response_head(key, 5, is_flexible)
    assert head[4:] == encoded
    assert read_correlation_id(memoryview(encoded)) == 5
    assert read_response_tags(memoryview(encoded + b"body"), key, is_flexible) == len(encoded)


def test_unknown_header_tags_are_skipped() -> None:
    assert read_client_id(memoryview(bytes.fromhex("0003 0009 00000005 ffff 01 09 02 6162")), True) == (None, 15)
    assert read_response_tags(memoryview(bytes.fromhex("00000005 01 09 02 6162")), 3, True) == 9


@pytest.mark.parametrize("is_flexible", [False, True])
def test_client_id_not_in_utf_8_is_read_with_replacements(is_flexible: bool) -> None:
    """As Java's `new String(bytes, UTF_8)` reads it: it is a name for logs and groups, and no reason to be refused."""
    header = bytes.fromhex("0003 0009 00000005 0004 6dfffe65") + b"\0" * is_flexible
    assert read_client_id(memoryview(header), is_flexible) == ("m\ufffd\ufffde", len(header))


def test_frame_size_counts_all_buffers() -> None:
    parts = finish_frame([response_head(3, 5, False), b"abc", memoryview(b"de")])
    assert parts[0][:4] == b"\0\0\0\x09"


@pytest.mark.parametrize(
    ("header", "is_flexible", "reason"),
    [
        ("0003 0009 000000", False, "correlation_id at byte 0: 8 bytes needed, 7 left"),
        ("0003 0009 00000005 00", False, "client_id at byte 8: 2 bytes needed, 1 left"),
        ("0003 0009 00000005 0003 6162", False, "client_id at byte 10: 3 bytes announced, 2 left"),
        ("0003 0009 00000005 fffe", False, "client_id at byte 10: -2 bytes announced, 0 left"),
        ("0003 0009 00000005 ffff", True, "the frame ends within it"),
        ("0003 0009 00000005 ffff 01 01 7f", True, "tag 1 of 127 bytes announced, 0 left"),
    ],
)
def test_malformed_request_headers(header: str, is_flexible: bool, reason: str) -> None:
    frame = memoryview(bytes.fromhex(header))
    with pytest.raises(MalformedMessage, match="RequestHeader") as caught:
        _ = read_request_prefix(frame), read_client_id(frame, is_flexible)
    assert reason in str(caught.value)


def test_malformed_response_headers() -> None:
    with pytest.raises(MalformedMessage, match="4 bytes needed, 3 left"):
        read_correlation_id(memoryview(b"abc"))
    with pytest.raises(MalformedMessage, match="ends within"):
        read_response_tags(memoryview(b"abcd"), 3, True)


def test_client_id_above_32767_bytes_is_refused() -> None:
    with pytest.raises(UnencodableMessage, match="32768 bytes of UTF-8, limit 32767"):
        request_head(3, 9, 5, "x" * 32768, True)
