"""Streams of frames, cut into pieces, for both ends of a connection: the same frames come out however the bytes are cut.

The first byte says which end, the second in what sizes the bytes come, the third how many requests a client has open; then the stream.
Buffers are made a thousand times smaller, so that small streams go through all that large ones do: frames larger than a chunk, ones that
grow, chunks that are used again. Whatever a frame claims, a buffer is as large as what came allows.
"""

from __future__ import annotations

from collections.abc import Iterator

from chaffinch.protocol import frames
from chaffinch.protocol.apis import APIS
from chaffinch.protocol.client_connection import ClientConnection
from chaffinch.protocol.headers import finish_frame, request_head, response_head
from chaffinch.protocol.server_connection import ServerConnection
from chaffinch.protocol.violations import ProtocolViolation
from tests.protocol.instances import sample

PARTS = (
    "chaffinch.protocol.frames",
    "chaffinch.protocol.headers",
    "chaffinch.protocol.client_connection",
    "chaffinch.protocol.server_connection",
)
CHUNK_BYTES, BUSY_CHUNK_BYTES, EAGER_BYTES_MAX, ROOM_BYTES_MIN = 64, 256, 1024, 8
FRAME_BYTES_MAX = 8192
BUDGET_BYTES = 4096
CASES = [(api, version) for api in APIS.values() for version in api.served if version in (api.served[0], api.served[-1])]
ASKED = [APIS[key] for key in (18, 3, 0, 18, 36, 10)]
"""What a client has asked: one ApiVersions and more, each in its lowest version."""


def seeds() -> Iterator[bytes]:
    for number, (api, version) in enumerate(CASES):
        request = _request(api, version, number)
        yield bytes([0, number * 3 % 256, 0]) + request
        yield bytes([0, number * 5 % 256, 0]) + request + request[:-1] + b"\0" + request
    for size in (4, 70, 300, 2000):
        yield bytes([0, 9, 0]) + _request(*CASES[0], 1) + size.to_bytes(4, "big") + bytes(size)
    for count in range(1, len(ASKED) + 1):
        stream = b"".join(_answer(ASKED[index], index) for index in range(count))
        yield bytes([1, 7 * count, count]) + stream


def _request(api: object, version: int, number: int) -> bytes:
    head = request_head(api.key, version, number, "me", version >= api.flexible_since)  # type: ignore[attr-defined]
    return b"".join(finish_frame(sample(api.request, version).encode_after(head, version)))  # type: ignore[attr-defined]


def _answer(api: object, number: int) -> bytes:
    version = api.used[0]  # type: ignore[attr-defined]
    head = response_head(api.key, number, version >= api.flexible_since)  # type: ignore[attr-defined]
    return b"".join(finish_frame(sample(api.response, version).encode_after(head, version)))  # type: ignore[attr-defined]


def check(data: bytes) -> None:
    if len(data) < 3:
        return
    read = _requests if data[0] % 2 == 0 else _answers
    _make_small()
    whole = read(data[3:], [len(data)], data[2])
    assert read(data[3:], _sizes(data[1]), data[2]) == whole


def _make_small() -> None:
    for name in ("CHUNK_BYTES", "BUSY_CHUNK_BYTES", "EAGER_BYTES_MAX", "ROOM_BYTES_MIN"):
        setattr(frames, name, globals()[name])


def _sizes(pattern: int) -> list[int]:
    """In turn: from one byte at a time to some hundred, or both."""
    return [1 + pattern % 16, 1 + (pattern // 16) ** 3]


def _requests(stream: bytes, sizes: list[int], _: int) -> list[object]:
    """What the broker makes of them, and how it ends."""
    budget = frames.FrameBudget(BUDGET_BYTES)
    connection = ServerConnection(FRAME_BYTES_MAX, budget=budget, pool=frames.BufferPool(2 * EAGER_BYTES_MAX))
    found: list[object] = []
    try:
        for count in _pieces(connection, stream, sizes):
            for frame in _frames(connection, count):
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
    """Those that so many bytes completed, before what is wrong with the last one is said."""
    try:
        yield from connection.buffer_updated(count)
    except ProtocolViolation as violation:
        yield from violation.frames
        raise


def _answers(stream: bytes, sizes: list[int], asked: int) -> list[object]:
    """What a client makes of them that has asked so many times."""
    budget = frames.FrameBudget(BUDGET_BYTES)
    connection = ClientConnection("me", frame_bytes_max=FRAME_BYTES_MAX, budget=budget, pool=frames.BufferPool(2 * EAGER_BYTES_MAX))
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
        assert 0 < len(buffer) <= max(EAGER_BYTES_MAX, frames.GROWTH * pending) + CHUNK_BYTES, "a claim got room"
        count = min(len(buffer), sizes[turn % len(sizes)], len(stream) - position)
        buffer[:count] = stream[position : position + count]
        position, turn = position + count, turn + 1
        yield count
