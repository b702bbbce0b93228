"""What a broker wants done: the words in which the core tells its shell. A list of them answers each event, to be carried out in order.

With `flush.policy=always` a shell that calls `BrokerCore.apply` instead of `handle` calls `BrokerCore.sync` before it sends any answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from chaffinch.protocol.server_connection import ReceivedRequest


@dataclass(slots=True)
class Respond:
    """Send `message` as the answer to `request`. At most one per request, and in the order of the connection's requests."""

    connection_id: int
    request: ReceivedRequest
    message: Any  # One of the response classes of protocol/messages; which one follows from the request's API.


@dataclass(frozen=True, slots=True)
class CompleteSilently:
    """The request is done and has no answer (Produce with acks=0)."""

    connection_id: int
    request: ReceivedRequest


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close the connection, after the answers before this. `reason` is for the log; empty if nothing is to be said."""

    connection_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The broker itself failed on a request whose answer had waited: a mistake of ours, which costs this connection and no other."""

    connection_id: int
    error: Exception


@dataclass(frozen=True, slots=True)
class SlowDown:
    """From now on the connection's answers leave, or its requests are read, at this pace: asked for by a fault script."""

    connection_id: int
    bytes_per_second: int
    answers: bool
    requests: bool


@dataclass(frozen=True, slots=True)
class Report:
    """One line for the log, already limited in rate. `is_routine`: nothing is wrong; it is of the level INFO instead of WARNING."""

    text: str
    is_routine: bool = False


Effect: TypeAlias = Respond | CompleteSilently | CloseConnection | Failed | SlowDown | Report
