"""Any bytes either parse or raise the one documented error, in bounded memory."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from chaffinch.protocol.apis import APIS
from chaffinch.protocol.client_connection import ClientConnection
from chaffinch.protocol.schema import Message
from chaffinch.protocol.server_connection import ServerConnection
from chaffinch.protocol.violations import MalformedMessage, ProtocolViolation
from tests.protocol.instances import CASES, messages, name_of, sample
from tests.support.traced_memory import traced

FUZZ = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))

HEADERS = [
    api.key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\1\xff\xff" + b"\0" * (version >= api.flexible_since)
    for api in APIS.values()
    for version in api.served
]
"""Good beginnings, so that bodies are reached."""


@FUZZ
@given(
    st.lists(st.binary(max_size=60) | st.tuples(st.sampled_from(HEADERS), st.binary(max_size=60)).map(b"".join), max_size=4),
    st.binary(max_size=9),
)
@example([b""], b"")
def test_server_connection_takes_any_stream(bodies: list[bytes], rest: bytes) -> None:
    stream = b"".join(len(body).to_bytes(4, "big") + body for body in bodies) + rest
    with contextlib.suppress(ProtocolViolation):
        for request in ServerConnection(1 << 20).receive(stream):
            assert request.version in request.api.served


@FUZZ
@given(st.binary(max_size=100))
def test_server_connection_takes_any_bytes(stream: bytes) -> None:
    with contextlib.suppress(ProtocolViolation):
        ServerConnection(1 << 20).receive(stream)


@FUZZ
@given(st.sampled_from([case for case in CASES if case[0].__name__.endswith("Response")]), st.binary(max_size=100))
def test_client_connection_takes_any_response(case: tuple[type[Message], int], body: bytes) -> None:
    client = ClientConnection("me")
    client.encode_request(APIS[case[0].API_KEY].request(acks=1) if case[0].API_KEY == 0 else APIS[case[0].API_KEY].request(), case[1])
    frame = b"\0\0\0\0" + body
    with contextlib.suppress(ProtocolViolation):
        client.receive(len(frame).to_bytes(4, "big") + frame)


@pytest.mark.parametrize(("cls", "version"), CASES, ids=map(name_of, CASES))
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_changed_bytes_parse_or_are_refused(cls: type[Message], version: int, data: st.DataObject) -> None:
    """A valid message with some bytes changed, which gets deeper than noise."""
    encoded = bytearray(b"".join(sample(cls, version).encode(version)))
    changes = data.draw(
        st.lists(st.tuples(st.integers(0, max(0, len(encoded) - 1)), st.sampled_from([0, 1, 2, 127, 128, 255])), max_size=4)
    )
    for position, byte in changes:
        if encoded:
            encoded[position] = byte
    with contextlib.suppress(MalformedMessage):
        message = cls.decode(encoded, version)
        again = cls.decode(b"".join(message.encode(version)), version)
        assert again == message


@pytest.mark.parametrize("filler", [0, 1, 2, 127, 255])
@pytest.mark.parametrize(("cls", "version"), [case for case in CASES if case[1] == case[0].VERSIONS[1]], ids=lambda value: str(value))
def test_memory_is_bounded_by_the_frame(cls: type[Message], version: int, filler: int) -> None:
    """The worst bodies are structures that are almost empty: the limit says how many bytes of memory one byte may cost."""
    data = bytes([filler]) * 20_000
    for start in range(0, 64, 3):
        candidate = bytes(start) + b"\xff\x9f\x01" + data
        with traced() as taken, contextlib.suppress(MalformedMessage):
            cls.decode(candidate, version)
        assert taken.peak < 150 * len(candidate) + 500_000


@FUZZ
@given(st.sampled_from(CASES), st.data())
def test_truncated_messages_are_refused(case: tuple[type[Message], int], data: st.DataObject) -> None:
    cls, version = case
    encoded = b"".join(data.draw(messages(cls, version)).encode(version))
    size = data.draw(st.integers(0, len(encoded)))
    if size < len(encoded):
        with pytest.raises(MalformedMessage):
            cls.decode(encoded[:size], version)
