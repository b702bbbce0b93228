"""Effects that producer and consumer cores have in common: instructions of a core to its shell. Each core has more of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chaffinch.client.addresses import Address
from chaffinch.errors import KafkaException


@dataclass(slots=True, kw_only=True)
class SendRequest:
    """Send a request. Its outcome is one event with this token: ResponseReceived, RequestWritten or RequestFailed."""

    address: Address
    message: Any  # One of the request classes of protocol/messages.
    token: Any  # Chosen by the core.
    timeout_ms: int
    version_max: int | None = None
    expects_response: bool = True


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the connection to this address. Its requests end as RequestFailed."""

    address: Address
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteCall:
    """Complete a waiting call with a result."""

    call: Any
    result: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailCall:
    """Fail a waiting call, because its result is impossible or late."""

    call: Any
    error: KafkaException


@dataclass(frozen=True, slots=True)
class Report:
    """Log one line, about an event that belongs to no single call."""

    text: str
