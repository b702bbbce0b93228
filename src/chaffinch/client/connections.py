"""Connection to one broker, without its socket: ApiVersions, login, requests in flight with their timeouts, bytes in and out.

The first request on a connection is ApiVersions (KIP-511, with the software name `chaffinch`), followed by the login if one is configured.
Requests handed over earlier wait until then. A login with a limited lifetime is renewed before the next request.

Brokers answer the requests of a connection in order. If one times out, the connection is stuck: it is closed, as in Java's NetworkClient,
and every request in flight fails with it.

A failed request reports whether any of its bytes was handed to the network. Only then may the broker have acted on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chaffinch.client.addresses import Address
from chaffinch.errors import (
    ApiException,
    AuthenticationException,
    IllegalSaslStateException,
    NetworkException,
    Stored,
    TimeoutException,
    UnsupportedCompressionTypeException,
    UnsupportedVersionException,
)
from chaffinch.errors.codes import Numbering
from chaffinch.protocol.apis import api_of
from chaffinch.protocol.client_connection import NO_FEATURES, ClientConnection, FinalizedFeatures, ReceivedResponse
from chaffinch.protocol.messages.produce import ProduceRequest
from chaffinch.protocol.schema import Message
from chaffinch.protocol.violations import ProtocolViolation, UnencodableMessage
from chaffinch.records.file_slice import loaded
from chaffinch.version import VERSION

if TYPE_CHECKING:
    from chaffinch.client.authentication import Login

# sendmsg takes at most IOV_MAX buffers, 1024 on Linux; fewer are just as fast.
BUFFERS_PER_WRITE_MAX: Final = 256
# Tokens of the connection's own requests. ApiVersions has the request timeout like any request.
NEGOTIATION_TOKEN: Final = object()
LOGIN_TOKEN: Final = object()
# ApiVersions is sent in Chaffinch's newest version, in the broker's newest, and finally in version 0.
NEGOTIATIONS_MAX: Final = 3
# Version of Produce (KIP-110). Apache Kafka before 2.1 rejects batches with zstd with UNKNOWN_SERVER_ERROR.
FIRST_VERSION_WITH_ZSTD: Final = 7
# A listener with TLS or SASL closes connections of clients that use neither, without a response.
_ENDED_BY_BROKER: Final = frozenset({"closed by the broker", "reset by the broker"})


@dataclass(slots=True, kw_only=True)
class ResponseReceived:
    """The response to a request has arrived. `numbering`: the numbering of error codes that this broker uses."""

    address: Address
    token: Any  # As given with the request.
    message: Any  # The response class of protocol/messages that belongs to the request.
    numbering: Numbering = "apache"
    version: int | None = None
    """The version in which the request was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestWritten:
    """A request that has no response (Produce with acks=0) was completely handed to the network."""

    address: Address
    token: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed:
    """A request will get no response. `was_sent`: bytes of it were handed to the network, so the broker may have acted on it."""

    address: Address
    token: Any
    reason: str
    was_sent: bool
    version: int | None = None
    """The version in which the request was encoded; None if it was not."""
    is_timeout: bool = False
    is_unsupported: bool = False
    """The broker is reachable but supports no common version of this API: do not retry."""
    error: AuthenticationException | UnsupportedCompressionTypeException | None = None
    """A failed authentication, or a compression type that the broker cannot read: do not retry."""

    def exception(self, api: str | None = None) -> ApiException:
        """The exception; its `stored` is whether the broker may have acted on the request."""
        text = f"{self.address}: {self.reason}"
        if self.error is not None:
            return self.error
        if self.is_unsupported:
            return UnsupportedVersionException(text, stored=Stored.NO, api=api)
        kind = TimeoutException if self.is_timeout else NetworkException
        return kind(text, stored=Stored.POSSIBLY if self.was_sent else Stored.NO, api=api)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """The connection is open and its versions are negotiated."""

    address: Address
    features: FinalizedFeatures = NO_FEATURES


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnected:
    """The connection was lost or could not be made. Its requests have failed in earlier events."""

    address: Address
    reason: str
    error: AuthenticationException | None = None
    had_response: bool = False
    """Whether the connection had received a response. If not, the listener probably expects another security protocol."""


ConnectionEvent = ResponseReceived | RequestWritten | RequestFailed | Connected | Disconnected


@dataclass(slots=True)
class _Request:
    token: Any
    message: Message
    deadline_ms: int
    expects_response: bool
    version_max: int | None
    version: int | None = None
    """The version in which it is encoded; None while it waits."""
    starts_at: int = -1
    """Position of its first byte in the stream of bytes written; -1 while it waits."""
    ends_at: int = -1


class BrokerConnection:
    """The sans-I/O part of a connection. Its owner calls `opened`, moves bytes, and finally calls `lost`. Calls return events."""

    def __init__(self, address: Address, *, client_id: str, request_timeout_ms: int, make_login: Callable[[], Login] | None = None) -> None:
        self.address = address
        self.client_id = client_id
        self.request_timeout_ms = request_timeout_ms
        self.is_negotiated = False
        self.violation: str | None = None
        """Set when the peer violated the protocol: the connection must be closed."""
        self.refusal: AuthenticationException | None = None
        """Set when the login failed: the connection must be closed."""
        self._protocol = ClientConnection(client_id, software_version=VERSION)
        self._waiting: deque[_Request] = deque()
        self._in_flight: dict[int, _Request] = {}
        self._without_response: deque[_Request] = deque()
        self._outgoing: deque[memoryview] = deque()
        self._queued_bytes = 0
        self._sent_bytes = 0
        self._negotiations = 0
        self._had_response = False
        self._make_login = make_login
        self._login: Login | None = None
        self._session_ends_ms: int | None = None

    @property
    def numbering(self) -> Numbering:
        """The numbering of error codes, which the broker announces as a feature."""
        return self._protocol.error_numbering

    @property
    def is_unusable(self) -> bool:
        """Whether it must be closed, because of a protocol violation or a failed login."""
        return self.violation is not None or self.refusal is not None

    @property
    def in_flight_count(self) -> int:
        """Requests without an outcome, including those that wait for ApiVersions and login."""
        return len(self._waiting) + len(self._in_flight) + len(self._without_response)

    @property
    def needs_write(self) -> bool:
        return bool(self._outgoing)

    @property
    def deadline_ms(self) -> int | None:
        """The earliest deadline of the requests in flight; None if there are none."""
        requests = [*self._in_flight.values(), *self._waiting, *self._without_response]
        return min([request.deadline_ms for request in requests]) if requests else None

    def opened(self, steady_ms: int) -> None:
        """The socket is connected: send ApiVersions."""
        self._negotiations += 1
        request = self._protocol.api_versions_request()
        self._encode(_Request(NEGOTIATION_TOKEN, request, steady_ms + self.request_timeout_ms, True, None))

    def send(
        self,
        message: Message,
        token: Any,
        steady_ms: int,
        *,
        timeout_ms: int | None = None,
        version_max: int | None = None,
        expects_response: bool = True,
    ) -> list[ConnectionEvent]:
        """Send a request, after ApiVersions and login if they are not done. A request that cannot be encoded fails immediately."""
        deadline_ms = steady_ms + (self.request_timeout_ms if timeout_ms is None else timeout_ms)
        request = _Request(token, message, deadline_ms, expects_response, version_max)
        if self._session_ends_ms is not None and steady_ms >= self._session_ends_ms:
            self._log_in(steady_ms)
        if not self.is_negotiated:
            self._waiting.append(request)
            return []
        return self._encode(request)

    def _encode(self, request: _Request) -> list[ConnectionEvent]:
        try:
            request.version = self._version(request)
            if request.version < FIRST_VERSION_WITH_ZSTD and isinstance(request.message, ProduceRequest):
                _refuse_zstd(request.message, self.address)
            correlation_id, buffers = self._protocol.encode_request(request.message, request.version)
        except (UnencodableMessage, UnsupportedVersionException) as error:
            return [RequestFailed(address=self.address, token=request.token, reason=str(error), was_sent=False, is_unsupported=True)]
        except UnsupportedCompressionTypeException as error:
            return [RequestFailed(address=self.address, token=request.token, reason=error.message, was_sent=False, error=error)]
        request.starts_at = self._queued_bytes
        for buffer in buffers:
            if len(buffer):
                self._outgoing.append(memoryview(buffer))
                self._queued_bytes += len(buffer)
        request.ends_at = self._queued_bytes
        if request.expects_response:
            self._in_flight[correlation_id] = request
        else:
            self._without_response.append(request)
        return []

    def _version(self, request: _Request) -> int:
        versions, api = self._protocol.versions, api_of(request.message)
        if request.version_max is None or versions is None:
            return self._protocol.version_of(api)
        return versions.choose(api, request.version_max)

    @property
    def is_idle(self) -> bool:
        """Whether requests can be sent, none is in flight, and the login never expires."""
        return self.is_negotiated and self._session_ends_ms is None and not (self._outgoing or self.in_flight_count or self.is_unusable)

    def version_for(self, message: Message, version_max: int | None) -> int:
        """The version in which a request would be sent. Raises UnsupportedVersionException."""
        return self._version(_Request(None, message, 0, True, version_max))

    def take_correlation_id(self) -> int:
        """Correlation id for a request that another thread writes while the connection is idle. `adopt` takes over its response."""
        return self._protocol.take_correlation_id()

    def adopt(
        self, message: Message, token: Any, *, frame: bytes, written: int, correlation_id: int, version: int, deadline_ms: int
    ) -> None:
        """Take over a request of which another thread has written the first `written` bytes of its frame."""
        request = _Request(token, message, deadline_ms, True, None, version, self._queued_bytes)
        self._queued_bytes += len(frame)
        self._sent_bytes += written
        request.ends_at = self._queued_bytes
        if written < len(frame):
            self._outgoing.append(memoryview(frame)[written:])
        self._protocol.adopt_request(api_of(message), version, correlation_id)
        self._in_flight[correlation_id] = request

    def buffers(self) -> list[memoryview]:
        """The next bytes to write, in order. Call `written` with the number of bytes written."""
        if len(self._outgoing) <= BUFFERS_PER_WRITE_MAX:
            return list(self._outgoing)
        return [self._outgoing[i] for i in range(BUFFERS_PER_WRITE_MAX)]

    def written(self, count: int) -> list[ConnectionEvent]:
        """`count` bytes of `buffers()` were written. Requests without a response are complete when all their bytes are written."""
        self._sent_bytes += count
        while count:
            first = self._outgoing[0]
            if first.nbytes > count:
                self._outgoing[0] = first[count:]
                break
            count -= first.nbytes
            self._outgoing.popleft()
        events: list[ConnectionEvent] = []
        while self._without_response and self._without_response[0].ends_at <= self._sent_bytes:
            events.append(RequestWritten(address=self.address, token=self._without_response.popleft().token))
        return events

    def get_buffer(self) -> memoryview:
        """The buffer for the next bytes. Call `received` with the number of bytes received."""
        return self._protocol.get_buffer()

    def received(self, count: int, steady_ms: int) -> list[ConnectionEvent]:
        """`count` bytes were received. If `violation` is set afterwards, close the connection."""
        try:
            responses: Sequence[ReceivedResponse] = self._protocol.buffer_updated(count)
        except ProtocolViolation as violation:
            responses = violation.responses
            self.violation = f"the response is not in the Kafka protocol: {violation}"
        events: list[ConnectionEvent] = []
        for response in responses:
            request = self._in_flight.pop(response.correlation_id)
            if request.token is NEGOTIATION_TOKEN:
                self._negotiate(response.message, steady_ms, events)
            elif request.token is LOGIN_TOKEN:
                self._continue_login(response.message, steady_ms, events)
            else:
                self._had_response = True
                events.append(
                    ResponseReceived(
                        address=self.address,
                        token=request.token,
                        message=response.message,
                        numbering=self.numbering,
                        version=response.version,
                    )
                )
        return events

    def take(self, data: bytes, steady_ms: int) -> list[ConnectionEvent]:
        """Like `received`, for bytes that were read into another buffer."""
        events: list[ConnectionEvent] = []
        left = memoryview(data)
        while left and not self.is_unusable:
            buffer = self.get_buffer()
            count = min(len(buffer), len(left))
            buffer[:count] = left[:count]
            events += self.received(count, steady_ms)
            left = left[count:]
        return events

    def _negotiate(self, response: Message, steady_ms: int, events: list[ConnectionEvent]) -> None:
        if self._protocol.versions is not None:
            if self._make_login is None:
                self._become_ready(events)
            else:
                self._log_in(steady_ms)
        elif self._negotiations < NEGOTIATIONS_MAX:
            self.opened(steady_ms)  # The response names the versions of ApiVersions that the broker supports.
        else:
            self.violation = f"the broker rejects ApiVersions: {response}"

    def _log_in(self, steady_ms: int) -> None:
        """Start a login; requests wait until it is complete."""
        assert self._make_login is not None
        self.is_negotiated, self._session_ends_ms = False, None
        self._login = self._make_login()
        self._send_login(self._login.first(), steady_ms)

    def _continue_login(self, response: Message, steady_ms: int, events: list[ConnectionEvent]) -> None:
        assert self._login is not None
        try:
            message = self._login.next(response)
        except AuthenticationException as error:
            self.refusal = type(error)(f"{self.address}: {error.message}")
            return
        if message is not None:
            self._send_login(message, steady_ms)
            return
        self._session_ends_ms = steady_ms + self._login.session_ms if self._login.session_ms else None
        self._login = None
        self._become_ready(events)

    def _send_login(self, message: Message, steady_ms: int) -> None:
        if self._encode(_Request(LOGIN_TOKEN, message, steady_ms + self.request_timeout_ms, True, None)):
            self.refusal = IllegalSaslStateException(f"{self.address}: the broker does not support SaslHandshake, so no login is possible")

    def _become_ready(self, events: list[ConnectionEvent]) -> None:
        self.is_negotiated = True
        assert self._protocol.versions is not None, "ApiVersions precedes every login"
        events.append(Connected(address=self.address, features=self._protocol.versions.finalized))
        while self._waiting:
            events.extend(self._encode(self._waiting.popleft()))

    def is_stuck(self, steady_ms: int) -> bool:
        """Whether a request has exceeded its timeout; then the connection must be closed."""
        deadline_ms = self.deadline_ms
        return deadline_ms is not None and deadline_ms <= steady_ms

    def lost(self, reason: str, *, steady_ms: int | None = None, error: AuthenticationException | None = None) -> list[ConnectionEvent]:
        """The connection was lost: all its requests fail, in the order in which they were sent."""
        if not self._had_response and reason in _ENDED_BY_BROKER:
            reason += (
                " before its first response: its listener may require TLS, a certificate or a login (security.protocol), or none of these,"
                " or may not be a Kafka broker"
            )
        requests = [*self._in_flight.values(), *self._without_response, *self._waiting]
        self._in_flight.clear()
        self._without_response.clear()
        self._waiting.clear()
        self._outgoing.clear()
        self._protocol.close()
        events: list[ConnectionEvent] = [
            RequestFailed(
                address=self.address,
                token=request.token,
                reason=reason,
                was_sent=0 <= request.starts_at < self._sent_bytes,
                version=request.version,
                is_timeout=steady_ms is not None and request.deadline_ms <= steady_ms,
                error=error,
            )
            for request in requests
            if request.token is not NEGOTIATION_TOKEN and request.token is not LOGIN_TOKEN
        ]
        return [*events, Disconnected(address=self.address, reason=reason, error=error, had_response=self._had_response)]


def _refuse_zstd(message: ProduceRequest, address: Address) -> None:
    """Raise UnsupportedCompressionTypeException for a batch with zstd, as Java's client does for old brokers (ProduceRequest.java)."""
    for topic in message.topics:
        for partition in topic.partitions:
            records = partition.records
            (head,) = loaded(records[:1] if isinstance(records, list) else [records or b""])
            if head and _is_zstd(memoryview(head)):
                raise UnsupportedCompressionTypeException(
                    f"{address}: the broker does not support compression.type zstd (it requires Apache Kafka 2.1):"
                    " choose lz4, snappy, gzip or none",
                    api="Produce",
                )


def _is_zstd(head: memoryview) -> bool:
    """Whether a batch of format 2 has the codec zstd, in the second of its two attribute bytes."""
    # Imported here because commands that send no records start faster without it.
    from chaffinch.records.batch_header import ATTRIBUTE_COMPRESSION, CHECKED_POSITION, MAGIC, MAGIC_POSITION
    from chaffinch.records.compression import Compression

    if len(head) < CHECKED_POSITION + 2 or head[MAGIC_POSITION] != MAGIC:
        return False
    return head[CHECKED_POSITION + 1] & ATTRIBUTE_COMPRESSION == Compression.ZSTD
