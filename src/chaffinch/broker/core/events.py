"""What passes between a shell and a broker's core: events, given to `BrokerCore.handle` one at a time, and the effects it returns for each,
to be carried out in order.

With `flush.policy=always` a shell that calls `BrokerCore.apply` instead of `handle` calls `BrokerCore.sync` before it sends any answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from chaffinch.protocol.server_connection import ReceivedRequest


@dataclass(slots=True, eq=False)
class RequestReceived:
    """A whole request is to be done; none may wait on its connection (`BrokerCore.is_waiting`). Not frozen, and made without names of
    arguments by a busy shell, only because building it takes four times and twice as long; nobody changes it.

    `connection_id` is unique for the life of the core; `node_id` is the declared node on whose listener it came; `client_host` is where
    it came from, as Kafka writes it ("/127.0.0.1");
    `client_software_name` is what the connection's ApiVersions request said ("" before it, KIP-511).
    """

    connection_id: int
    request: ReceivedRequest
    node_id: int = 0
    client_software_name: str = ""
    client_host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLost:
    """The connection is gone: what it still waits for is dropped."""

    connection_id: int


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing came, but `BrokerCore.next_deadline_ms` has been reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStopped:
    """A declared node is to stop: in order, or `abruptly`, without a word to the others."""

    node_id: int
    abruptly: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStarted:
    """A declared node is to run again."""

    node_id: int


Event: TypeAlias = RequestReceived | ConnectionLost | TimePassed | NodeStopped | NodeStarted


@dataclass(slots=True)
class Respond:
    """Send `message` as the answer to `request`. At most one per request, and in the order of the connection's requests."""

    connection_id: int
    request: ReceivedRequest
    message: Any  # One of the response classes of protocol/messages; which one follows from the request's API.


@dataclass(frozen=True, slots=True)
class CompleteWithoutResponse:
    """The request is done and has no answer (Produce with acks=0)."""

    connection_id: int
    request: ReceivedRequest


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close the connection, after the answers before this. `reason` is for the log; empty if nothing is to be said."""

    connection_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """The broker itself failed on a request whose answer had waited: a mistake of ours, which costs this connection and no other."""

    connection_id: int
    error: Exception


@dataclass(frozen=True, slots=True)
class ThrottleConnection:
    """From now on the connection's answers leave, or its requests are read, at this pace: asked for by a fault script."""

    connection_id: int
    bytes_per_second: int
    answers: bool
    requests: bool


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line for the log, already limited in rate. `is_routine`: nothing is wrong; it is of the level INFO instead of WARNING."""

    text: str
    is_routine: bool = False


Effect: TypeAlias = Respond | CompleteWithoutResponse | CloseConnection | RequestFailed | ThrottleConnection | LogLine
