"""What every core of a client wants done, in the words in which it tells its shell; each core has more of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chaffinch.client.addresses import Address
from chaffinch.errors import KafkaException


@dataclass(slots=True, kw_only=True)
class SendRequest:
    """Send a request. Its outcome comes back as ResponseReceived, Written or Failed with this token, exactly once."""

    address: Address
    message: Any  # One of the request classes of protocol/messages.
    token: Any  # The core's own.
    timeout_ms: int
    version_max: int | None = None
    expects_response: bool = True


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the connection to this address. Its requests come back as Failed."""

    address: Address
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteCall:
    """What a caller waited for has happened."""

    call: Any
    result: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailCall:
    """What a caller waited for will not happen, or not in time."""

    call: Any
    error: KafkaException


@dataclass(frozen=True, slots=True)
class Report:
    """One line for the log: what no single caller is told."""

    text: str
