"""Events and effects: the interface between a shell and the broker core. Events are passed to `BrokerCore.handle` one at a time; the
effects it returns are to be carried out in order.

With `flush.policy=always`, a shell that calls `BrokerCore.apply` instead of `handle` calls `BrokerCore.sync` before it sends any response.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from chaffinch.protocol.server_connection import ReceivedRequest


@dataclass(slots=True, eq=False)
class RequestReceived:
    """A complete request was received; no response may be delayed on its connection (`BrokerCore.is_waiting`).

    `connection_id` is unique for the life of the core. `node_id`: the declared node whose listener accepted the connection. `client_host`:
    the client's address as Kafka writes it ("/127.0.0.1"). `client_software_name`: from the connection's ApiVersions request, "" before it
    (KIP-511).

    Not frozen, because creating a frozen instance takes four times as long; it must not be modified. A busy shell creates it with
    positional arguments, because keyword arguments take twice as long.
    """

    connection_id: int
    request: ReceivedRequest
    node_id: int = 0
    client_software_name: str = ""
    client_host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLost:
    """The connection is closed: its delayed response is dropped."""

    connection_id: int


@dataclass(frozen=True, slots=True)
class TimePassed:
    """`BrokerCore.next_deadline_ms` has been reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStopped:
    """Stop a declared node: cleanly, or `abruptly`, without notifying the other nodes."""

    node_id: int
    abruptly: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStarted:
    """Start a declared node again."""

    node_id: int


Event: TypeAlias = RequestReceived | ConnectionLost | TimePassed | NodeStopped | NodeStarted


@dataclass(slots=True)
class Respond:
    """Send `message` as the response to `request`. At most one per request, in the order of the connection's requests."""

    connection_id: int
    request: ReceivedRequest
    message: Any  # A response class of protocol/messages, according to the request's API.


@dataclass(frozen=True, slots=True)
class CompleteWithoutResponse:
    """The request is completed and has no response (Produce with acks=0)."""

    connection_id: int
    request: ReceivedRequest


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close the connection after the responses before this. `reason` is logged; empty for no log line."""

    connection_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """The broker failed while completing a delayed response: an internal error, which closes only this connection."""

    connection_id: int
    error: Exception


@dataclass(frozen=True, slots=True)
class ThrottleConnection:
    """Throttle the connection's responses or requests to this rate, as requested by a fault script."""

    connection_id: int
    bytes_per_second: int
    answers: bool
    requests: bool


@dataclass(frozen=True, slots=True)
class LogLine:
    """One log line, already rate-limited. `is_routine`: nothing is wrong; level INFO instead of WARNING."""

    text: str
    is_routine: bool = False


Effect: TypeAlias = Respond | CompleteWithoutResponse | CloseConnection | RequestFailed | ThrottleConnection | LogLine
