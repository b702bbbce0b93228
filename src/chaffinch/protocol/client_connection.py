"""Client side of one connection, without I/O: encodes requests and decodes responses, matched by correlation id.

The first request is `api_versions_request()`. Its response fills `versions`, from which every later request takes its version.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from chaffinch.protocol.apis import APIS, Api, api_of
from chaffinch.protocol.frames import EAGER_BYTES_MAX, BufferPool, FrameAssembler, FrameBudget
from chaffinch.protocol.headers import (
    API_VERSIONS_KEY,
    finish_frame,
    read_correlation_id,
    read_response_tags,
    request_head,
)
from chaffinch.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from chaffinch.protocol.messages.produce import ProduceRequest
from chaffinch.protocol.primitives import Buffer
from chaffinch.protocol.schema import Message
from chaffinch.protocol.violations import CorrelationIdMismatch, ProtocolViolation

RESPONSE_BYTES_MAX: Final = 1 << 30
"""Largest response that a client accepts: far above `fetch.max.bytes`, far below what a broken peer could announce."""

UNSUPPORTED_VERSION: Final = 35
FEATURE_NUMBERING: Final = "chaffinch.error.numbering"
"""Feature of a broker whose error numbers are those printed in the KIPs."""

_CORRELATION_ID_MAX: Final = 0x7FFF_FFFF


@dataclass(slots=True, kw_only=True, eq=False)
class ReceivedResponse:
    """A response with its request's data. Not frozen, like ReceivedRequest."""

    correlation_id: int
    api: Api
    version: int
    message: Message


class FinalizedFeatures(NamedTuple):
    """Finalized features of the cluster (KIP-584): levels by name; a feature at level 0 is missing. The higher epoch is newer."""

    levels: Mapping[str, int]
    epoch: int


NO_FEATURES: Final = FinalizedFeatures({}, -1)
"""Features of a broker that reports none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionTable:
    """The versions that a broker announced by API key, and its features as name -> (first, last)."""

    ranges: dict[int, tuple[int, int]]
    features: dict[str, tuple[int, int]]
    finalized: FinalizedFeatures = NO_FEATURES

    @classmethod
    def of(cls, response: ApiVersionsResponse) -> ApiVersionTable:
        """From a successful response."""
        return cls(
            ranges={row.api_key: (row.min_version, row.max_version) for row in response.api_keys},
            features={row.name: (row.min_version, row.max_version) for row in response.supported_features},
            finalized=FinalizedFeatures(
                {row.name: row.max_version_level for row in response.finalized_features}, response.finalized_features_epoch
            ),
        )

    def choose(self, api: Api, version_max: int | None = None) -> int:
        """The highest version common to both sides, at most `version_max`, which may be below or above the versions used by default.

        Raises UnsupportedVersionException if there is none.
        """
        first, last = self.ranges.get(api.key, (0, -1))
        used = api.used
        if version_max is not None and used and version_max < used[0]:
            used = range(api.reach.start, version_max + 1)
        elif version_max is not None and used and version_max > used[-1]:
            used = range(used.start, min(version_max, api.reach[-1]) + 1)
        highest = min(last, used[-1] if used else -1, last if version_max is None else version_max)
        if highest < first or highest not in used:
            raise _unsupported(api, f"versions {first} to {last}" if last >= first else "no version of it")
        return highest

    def has(self, api: Api) -> bool:
        """Whether both sides have a common version of the API."""
        first, last = self.ranges.get(api.key, (0, -1))
        return bool(api.used) and max(first, api.used[0]) <= min(last, api.used[-1])


class ClientConnection:
    """One connection to a broker. `versions` is None until the broker has answered ApiVersions."""

    def __init__(
        self,
        client_id: str | None,
        software_name: str = "chaffinch",
        software_version: str = "0",
        *,
        frame_bytes_max: int = RESPONSE_BYTES_MAX,
        budget: FrameBudget | None = None,
        pool: BufferPool | None = None,
    ) -> None:
        self.client_id = client_id
        self.software_name = software_name
        self.software_version = software_version
        self.versions: ApiVersionTable | None = None
        pool = pool or BufferPool(2 * EAGER_BYTES_MAX, trusts_sizes=True)
        self._frames = FrameAssembler(frame_bytes_max, budget=budget, pool=pool)
        self._open: deque[tuple[int, Api, int]] = deque()
        self._correlation_id_next = 0
        self._api_versions_max = APIS[API_VERSIONS_KEY].used[-1]

    @property
    def open_count(self) -> int:
        """Requests without a response yet."""
        return len(self._open)

    @property
    def error_numbering(self) -> Literal["apache", "kip"]:
        """How the broker numbers its error codes."""
        return "kip" if self.versions is not None and FEATURE_NUMBERING in self.versions.features else "apache"

    def api_versions_request(self) -> ApiVersionsRequest:
        """The first request to send; also the next one after the error UNSUPPORTED_VERSION (35)."""
        return ApiVersionsRequest(client_software_name=self.software_name, client_software_version=self.software_version)

    def encode_request(self, message: Message, version: int | None = None) -> tuple[int, list[Buffer]]:
        """(correlation id, buffers to write). Without `version`, the highest common one.

        A produce request with `acks` 0 has no response. Raises UnencodableMessage, and UnsupportedVersionException if the broker lacks the
        API.
        """
        api = api_of(message)
        if version is None:
            version = self.version_of(api)
        correlation_id = self._correlation_id_next
        head = request_head(api.key, version, correlation_id, self.client_id, version >= api.flexible_since)
        parts = finish_frame(message.encode_after(head, version))
        self.take_correlation_id()  # Not earlier: a request that cannot be encoded changes nothing.
        if not (isinstance(message, ProduceRequest) and message.acks == 0):
            self._open.append((correlation_id, api, version))
        return correlation_id, parts

    def take_correlation_id(self) -> int:
        """Take the next correlation id. An id is reused only after 2^31 others."""
        correlation_id = self._correlation_id_next
        self._correlation_id_next = 0 if correlation_id == _CORRELATION_ID_MAX else correlation_id + 1
        return correlation_id

    def adopt_request(self, api: Api, version: int, correlation_id: int) -> None:
        """Register a request that was encoded elsewhere and sent after all others, with an id taken here: its response will arrive."""
        self._open.append((correlation_id, api, version))

    def version_of(self, api: Api) -> int:
        """The version that `encode_request` uses by default."""
        if api.key == API_VERSIONS_KEY:
            return self._api_versions_max
        if self.versions is None:
            raise _unsupported(api, "nothing yet: send ApiVersions first")
        return self.versions.choose(api)

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """Buffer for the transport's next bytes."""
        return self._frames.get_buffer(size_hint)

    def buffer_updated(self, count: int) -> list[ReceivedResponse]:
        """The responses completed by `count` more bytes. Their `records` are views of the receive buffer.

        Raises ProtocolViolation, or its subclass CorrelationIdMismatch; its `responses` are those completed before.
        """
        responses: list[ReceivedResponse] = []
        try:
            for frame in self._frames.buffer_updated(count):
                responses.append(self._response(frame))
        except ProtocolViolation as violation:
            try:
                for frame in violation.frames:
                    responses.append(self._response(frame))
            except ProtocolViolation as earlier:
                violation = earlier
            violation.responses = tuple(responses)
            raise violation from None
        return responses

    def receive(self, data: Buffer) -> list[ReceivedResponse]:
        """Like `buffer_updated`, for bytes in another buffer, which are copied: for tests and simulated networks."""
        responses: list[ReceivedResponse] = []
        view = memoryview(data)
        while view:
            buffer = self.get_buffer()
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            responses += self.buffer_updated(count)
            view = view[count:]
        return responses

    def close(self) -> None:
        """The connection is closed: drop unfinished requests and frames."""
        self._frames.close()
        self._open.clear()

    def _response(self, frame: memoryview) -> ReceivedResponse:
        correlation_id = read_correlation_id(frame)
        if not self._open or self._open[0][0] != correlation_id:
            raise CorrelationIdMismatch(self._open[0][0] if self._open else None, correlation_id)
        _, api, version = self._open.popleft()
        position = read_response_tags(frame, api.key, version >= api.flexible_since)
        if api.key == API_VERSIONS_KEY:
            return self._api_versions(frame, position, correlation_id, api, version)
        message = api.response.decode_from(frame, position, version)[0]
        return ReceivedResponse(correlation_id=correlation_id, api=api, version=version, message=message)

    def _api_versions(self, frame: memoryview, position: int, correlation_id: int, api: Api, version: int) -> ReceivedResponse:
        """A broker that does not know our version responds in version 0; its range, if given, decides the next attempt."""
        body = bytes(frame[position:])
        if body.startswith(UNSUPPORTED_VERSION.to_bytes(2, "big")):
            version = 0
        message, table = _announced(body, version)
        if message.error_code == 0:
            self.versions = table
        elif message.error_code == UNSUPPORTED_VERSION:
            self._api_versions_max = max(0, min(table.ranges.get(API_VERSIONS_KEY, (0, 0))[1], self._api_versions_max - 1))
        return ReceivedResponse(correlation_id=correlation_id, api=api, version=version, message=message)


@lru_cache(maxsize=8)
def _announced(body: bytes, version: int) -> tuple[ApiVersionsResponse, ApiVersionTable]:
    """Cached: all brokers of one release send the same response on every connection."""
    message = ApiVersionsResponse.decode_from(memoryview(body), 0, version)[0]
    return message, ApiVersionTable.of(message)


def _unsupported(api: Api, announced: str) -> Exception:
    # Imported here: the exception classes are needed only for errors.
    from chaffinch.errors.exceptions import UnsupportedVersionException

    ours = f"{api.used[0]} to {api.used[-1]}" if api.used else "none"
    return UnsupportedVersionException(message=f"{api.name}: the broker offers {announced}, this client uses versions {ours}")
