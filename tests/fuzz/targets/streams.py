"""Streams of frames, cut into pieces, for both ends of a connection: the same frames come out however the bytes are cut.

The first byte says which end, the second in what sizes the bytes come, the third how many requests a client has open; then the stream.
Buffers are made a thousand times smaller, so that small streams go through all that large ones do: frames larger than a chunk, ones that
grow, chunks that are used again. Whatever a frame claims, a buffer is as large as what came allows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from chaffinch.protocol import frames
from chaffinch.protocol.apis import APIS, api_of
from chaffinch.protocol.client_connection import ClientConnection
from chaffinch.protocol.headers import finish_frame, request_head, response_head
from chaffinch.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from chaffinch.protocol.schema import Message
from chaffinch.protocol.server_connection import ServerConnection
from chaffinch.protocol.violations import ProtocolViolation
from tests.protocol.instances import sample

PARTS = (
    "chaffinch.protocol.frames",
    "chaffinch.protocol.headers",
    "chaffinch.protocol.client_connection",
    "chaffinch.protocol.server_connection",
)
SMALL = {"CHUNK_BYTES": 64, "BUSY_CHUNK_BYTES": 256, "EAGER_BYTES_MAX": 1024, "FREE_BYTES_MIN": 8}
POOL_BYTES = 2048
FRAME_BYTES_MAX = 8192
BUDGET_BYTES = 4096
CASES = [(api, version) for api in APIS.values() for version in api.served if version in (api.served[0], api.served[-1])]
ASKED = [APIS[key] for key in (36, 18, 3, 0, 18, 10)]
"""What a client has asked, each in its lowest version. The first answer may have any size."""
SIZES = (70, 300, 1100, 3000)
CONTENT = random.Random(1).randbytes(SIZES[-1])


def seeds() -> Iterator[bytes]:
    for number, (api, version) in enumerate(CASES):
        request = _request(sample(api.request, version), version)
        yield bytes([0, number * 3 % 256, 0]) + request
        yield bytes([0, number * 5 % 256, 0]) + request + request[:-1] + b"\0" + request
    for size in SIZES:
        request = _request(SaslAuthenticateRequest(auth_bytes=CONTENT[:size]), 1)
        yield bytes([0, size % 256, 0]) + request + request
        yield bytes([0, size % 256, 0]) + request + size.to_bytes(4, "big") + bytes(size)
        yield bytes([1, size % 256, 1]) + _answer(SaslAuthenticateResponse(auth_bytes=CONTENT[:size]), 0, 0)
    answers = [_answer(sample(api.response, api.used[0]), api.used[0], number) for number, api in enumerate(ASKED)]
    for count in range(1, len(answers) + 1):
        yield bytes([1, 7 * count, count]) + b"".join(answers[:count])


def _request(message: Message, version: int) -> bytes:
    api = api_of(message)
    head = request_head(api.key, version, 7, "me", version >= api.flexible_since)
    return b"".join(finish_frame(message.encode_after(head, version)))


def _answer(message: Message, version: int, number: int) -> bytes:
    api = api_of(message)
    head = response_head(api.key, number, version >= api.flexible_since)
    return b"".join(finish_frame(message.encode_after(head, version)))


def check(data: bytes) -> None:
    if len(data) < 3:
        return
    read = _requests if data[0] % 2 == 0 else _answers
    with _small_buffers():
        whole = read(data[3:], [len(data)], data[2])
        pieces = read(data[3:], _sizes(data[1]), data[2])
    assert pieces == whole, f"in pieces {pieces}, at once {whole}"


@contextmanager
def _small_buffers() -> Iterator[None]:
    before = {name: getattr(frames, name) for name in SMALL}
    try:
        for name, size in SMALL.items():
            setattr(frames, name, size)
        yield
    finally:
        for name, size in before.items():
            setattr(frames, name, size)


def _sizes(pattern: int) -> list[int]:
    """In turn: from one byte at a time to some thousand, or both."""
    return [1 + pattern % 16, 1 + (pattern // 16) ** 3]


def _requests(stream: bytes, sizes: list[int], _: int) -> list[object]:
    """What the broker makes of them, and how it ends."""
    budget = frames.FrameBudget(BUDGET_BYTES)
    connection = ServerConnection(FRAME_BYTES_MAX, budget=budget, pool=frames.BufferPool(POOL_BYTES))
    found: list[object] = []
    try:
        for count in _pieces(connection, stream, sizes):
            for frame in _frames(connection, count):
                found.append(bytes(frame))
                request = connection.request(frame)
                found.append((request.api.key, request.version, request.correlation_id, request.client_id, request.message))
            connection.end_turn()
        found.append(connection.bytes_pending)
    except ProtocolViolation as violation:
        found.append(str(violation))
    assert len(connection.open_requests) <= len(found)
    connection.close()
    assert (budget.bytes_reserved, budget.bytes_eager) == (0, 0)
    return found


def _frames(connection: ServerConnection, count: int) -> Iterator[memoryview]:
    """The frames that this many bytes completed, before the error of the last one."""
    try:
        yield from connection.buffer_updated(count)
    except ProtocolViolation as violation:
        yield from violation.frames
        raise


def _answers(stream: bytes, sizes: list[int], asked: int) -> list[object]:
    """The results of a client that has sent this many requests."""
    budget = frames.FrameBudget(BUDGET_BYTES)
    connection = ClientConnection("me", frame_bytes_max=FRAME_BYTES_MAX, budget=budget, pool=frames.BufferPool(POOL_BYTES))
    for api in ASKED[: asked % (len(ASKED) + 1)]:
        connection.encode_request(sample(api.request, api.used[0]), api.used[0])
    found: list[object] = []
    try:
        for count in _pieces(connection, stream, sizes):
            found += [(one.api.key, one.version, one.correlation_id, one.message) for one in connection.buffer_updated(count)]
        found.append(connection._frames.bytes_pending)
    except ProtocolViolation as violation:
        found += [(one.api.key, one.version, one.correlation_id, one.message) for one in violation.responses]
        found.append(str(violation))
    found += [connection.open_count, connection.versions]
    connection.close()
    assert (budget.bytes_reserved, budget.bytes_eager) == (0, 0)
    return found


def _pieces(connection: ServerConnection | ClientConnection, stream: bytes, sizes: list[int]) -> Iterator[int]:
    """Writes each piece where the connection wants it; (bytes written)."""
    position = turn = 0
    while position < len(stream):
        buffer = connection.get_buffer()
        pending = connection._frames.bytes_pending
        assert 0 < len(buffer) <= max(frames.EAGER_BYTES_MAX, frames.GROWTH * pending) + frames.CHUNK_BYTES, "a claim got room"
        count = min(len(buffer), sizes[turn % len(sizes)], len(stream) - position)
        buffer[:count] = stream[position : position + count]
        position, turn = position + count, turn + 1
        yield count
