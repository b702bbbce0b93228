"""What a consumer wants done: the words in which the core tells its shell. To be carried out in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from chaffinch.client.addresses import Address
from chaffinch.errors import KafkaException


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRequest:
    """Send a request. Its outcome comes back as Answered or Failed with this token, exactly once."""

    address: Address
    message: Any  # One of the request classes of protocol/messages.
    token: Any  # The core's own.
    timeout_ms: int
    version_max: int | None = None


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
class WakeCaller:
    """There is something for whoever waits in `poll`."""


@dataclass(frozen=True, slots=True)
class Report:
    """One line for the log: what no caller is told."""

    text: str


Effect: TypeAlias = SendRequest | CompleteCall | FailCall | WakeCaller | Report
