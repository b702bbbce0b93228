"""Broker side of one connection, without I/O: cuts bytes into frames, decodes requests, encodes responses.

The shell lends `get_buffer()` to its transport, calls `buffer_updated(n)`, decodes a frame with `request` when it is processed, passes that
to the broker and writes the result of `encode_response`. On ProtocolViolation it closes the connection once earlier requests are answered,
as Kafka does; Kafka's clients reconnect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from chaffinch.protocol import produce_fast_path
from chaffinch.protocol.apis import APIS, Api
from chaffinch.protocol.frames import FRAME_BYTES_MAX, BufferPool, FrameAssembler, FrameBudget
from chaffinch.protocol.headers import API_VERSIONS_KEY, REQUEST_BYTES_MIN, finish_frame, read_client_id, read_request_prefix, response_head
from chaffinch.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from chaffinch.protocol.messages.produce import ProduceRequest, ProduceResponse
from chaffinch.protocol.primitives import Buffer
from chaffinch.protocol.schema import Message
from chaffinch.protocol.violations import ProtocolViolation
from chaffinch.records.file_slice import Part, loaded

UNSUPPORTED_VERSION: Final = 35
DECODED_FACTOR: Final = 40
"""A decoded request takes at most about this many times its encoded size. Lists of empty names reach it; a fetch of topics with ordinary
names takes five times its size, and eighteen times more while its response is delayed."""
_PRODUCE: Final = APIS[produce_fast_path.KEY]


@dataclass(slots=True, eq=False)
class ReceivedRequest:
    """A request with the data for its response. Treat as immutable; not frozen, because creating a frozen instance takes four times as
    long.

    `unsupported_version` is the requested ApiVersions version if it is not served: then `version` is 0, the broker responds normally and
    `encode_response` adds the error. `expects_response` is False for a produce request with `acks` 0.
    """

    api: Api
    version: int
    correlation_id: int
    client_id: str | None
    message: Message
    unsupported_version: int | None = None
    expects_response: bool = True


def decoded_bytes_max(request: ReceivedRequest, frame_bytes: int) -> int:
    """Approximate upper bound of the memory that a decoded request of `frame_bytes` adds; its records stay in the receive buffer."""
    if isinstance(request.message, ProduceRequest):
        frame_bytes -= sum(len(part.records or b"") for topic in request.message.topics for part in topic.partitions)
    return DECODED_FACTOR * frame_bytes


class ServerConnection:
    """One client's connection. `client_software_name` and `client_software_version` come from its ApiVersions request (KIP-511), and are
    empty before it and for older clients.
    """

    def __init__(
        self, frame_bytes_max: int = FRAME_BYTES_MAX, *, budget: FrameBudget | None = None, pool: BufferPool | None = None
    ) -> None:
        self.client_software_name = ""
        self.client_software_version = ""
        self._frames = FrameAssembler(frame_bytes_max, frame_bytes_min=REQUEST_BYTES_MIN, budget=budget, pool=pool)
        self.get_buffer = self._frames.get_buffer
        """Buffer for the transport's next bytes: (size hint, which is ignored) -> buffer."""
        self.buffer_updated = self._frames.buffer_updated
        """The frames completed by more bytes, each for `request`: (count) -> views of the receive buffer, which they keep alive. Raises
        ProtocolViolation for sizes out of bounds; its `frames` are those completed before."""
        self.end_turn = self._frames.end_turn
        """Called when the transport holds no buffer, and may not need one for a long time."""
        self._produce = produce_fast_path.RequestReader()
        self.open_requests: deque[ReceivedRequest] = deque()
        """Requests without a response, in order. Read-only: `encode_response` and `skip_response` remove them."""
        self._held: dict[int, list[Buffer]] = {}  # Responses waiting for earlier ones, by the request's id().

    @property
    def frame_bytes_max(self) -> int:
        """Largest request accepted. It may be changed: clients that are not authenticated have a smaller limit."""
        return self._frames.frame_bytes_max

    @frame_bytes_max.setter
    def frame_bytes_max(self, size: int) -> None:
        self._frames.frame_bytes_max = size

    @property
    def may_have_more(self) -> bool:
        """Whether the last read filled the buffer, so that more bytes may be waiting."""
        return self._frames.is_filled

    @property
    def bytes_pending(self) -> int:
        """Received bytes of an incomplete request."""
        return self._frames.bytes_pending

    def receive(self, data: Buffer) -> list[ReceivedRequest]:
        """The requests in bytes of another buffer, which are copied: for tests and simulated networks.

        Raises ProtocolViolation, like `buffer_updated` and `request`.
        """
        return list(map(self.request, self.frames_in(data)))

    def frames_in(self, data: Buffer) -> list[memoryview]:
        """Like `receive`, without decoding the requests."""
        frames: list[memoryview] = []
        view = memoryview(data)
        while view:
            buffer = self.get_buffer()
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            frames += self.buffer_updated(count)
            view = view[count:]
        return frames

    def encode_response(self, request: ReceivedRequest, message: Message) -> list[Buffer]:
        """The buffers to write now: responses are sent in the order of their requests, as clients expect (Kafka processes one at a
        time).

        Empty while an earlier request has no response; then this response is sent together with that one.
        """
        return loaded(self.response_parts(request, message))

    def response_parts(self, request: ReceivedRequest, message: Message) -> Sequence[Part]:
        """Like `encode_response`, for immediate sending: file slices are not loaded."""
        if isinstance(message, ProduceResponse):
            frame = produce_fast_path.write_response(message, request.correlation_id, request.version)
            if frame is not None:
                return self._in_order(request, [frame])
        api, version = request.api, request.version
        if isinstance(message, ApiVersionsResponse):
            if request.unsupported_version is not None:
                message = message.replace(error_code=UNSUPPORTED_VERSION)
            if message.error_code == UNSUPPORTED_VERSION:
                version = 0  # The only version that every client can read.
        head = response_head(api.key, request.correlation_id, version >= api.flexible_since)
        return self._in_order(request, finish_frame(message.encode_after(head, version)))

    def skip_response(self, request: ReceivedRequest) -> list[Buffer]:
        """Record that `request` gets no response. Returns the responses that waited for it."""
        return loaded(self._in_order(request, []))

    def close(self) -> None:
        """The connection is closed: drop unfinished requests and frames."""
        self._frames.close()
        self.open_requests.clear()
        self._held.clear()

    def _in_order(self, request: ReceivedRequest, parts: Sequence[Part]) -> Sequence[Part]:
        waiting = self.open_requests
        if waiting and waiting[0] is request and not self._held:
            waiting.popleft()
            return parts
        if not any(known is request for known in self.open_requests):
            return parts
        self._held[id(request)] = loaded(parts)  # Loaded, because the file may change before it is their turn.
        ready: list[Part] = []
        while self.open_requests and id(self.open_requests[0]) in self._held:
            ready += self._held.pop(id(self.open_requests.popleft()))
        return ready

    def request(self, frame: memoryview) -> ReceivedRequest:
        """Decode a frame, in the order of arrival. Its `records` are views of the frame.

        Call it only when the request is processed: it may take `DECODED_FACTOR` times the memory of its bytes. Raises ProtocolViolation for
        invalid bytes and for APIs or versions that are not served.
        """
        plain = self._produce.read(frame)
        if plain is not None:
            expects_response = plain[3].acks != 0
            request = ReceivedRequest(_PRODUCE, *plain, None, expects_response)
            if expects_response:
                self.open_requests.append(request)
            return request
        key, version, correlation_id = read_request_prefix(frame)
        api = APIS.get(key)
        if api is None or not api.served:
            raise ProtocolViolation(f"API key {key} is not served (version {version}, correlation id {correlation_id})")
        if version not in api.served and key != API_VERSIONS_KEY:
            raise ProtocolViolation(f"{api.name} v{version} is not served, only versions {api.served[0]} to {api.served[-1]}")
        client_id, position = read_client_id(frame, version >= api.flexible_since)
        if version in api.served:
            message = api.request.decode_from(frame, position, version)[0]
            request = ReceivedRequest(api=api, version=version, correlation_id=correlation_id, client_id=client_id, message=message)
        else:
            request = ReceivedRequest(
                api=api,
                version=0,
                correlation_id=correlation_id,
                client_id=client_id,
                message=ApiVersionsRequest(),
                unsupported_version=version,
            )
        self._note(request)
        return request

    def _note(self, request: ReceivedRequest) -> None:
        message = request.message
        if isinstance(message, ProduceRequest):
            request.expects_response = message.acks != 0
        elif isinstance(message, ApiVersionsRequest) and message.client_software_name:
            self.client_software_name = message.client_software_name
            self.client_software_version = message.client_software_version
        if request.expects_response:
            self.open_requests.append(request)
