"""Protocol errors: one class for a peer that violates the protocol, one for a message that cannot be encoded.

Expected errors (a broker's error code) are not here: they are plain ints in responses and become exceptions in `chaffinch.errors`.
"""

from __future__ import annotations

from typing import Any


class ProtocolViolation(Exception):
    """The peer sent bytes that violate the Kafka protocol; the connection must be closed, as Kafka does.

    One read may bring several frames: `frames`, and after parsing `responses`, are the valid ones before the bad one; each response is a
    client's `ReceivedResponse`.
    """

    frames: tuple[memoryview, ...] = ()
    responses: tuple[Any, ...] = ()


class MalformedMessage(ProtocolViolation):
    """A message body that cannot be decoded.

    `message_name` and `version` are what it was decoded as, `field` is a path such as `topics[0].partitions[2].records`, `position` the
    byte within the body (0-based) at which reading the field began or stopped.
    """

    def __init__(self, message_name: str, version: int, field: str, position: int, reason: str) -> None:
        super().__init__(message_name, version, field, position, reason)
        self.message_name = message_name
        self.version = version
        self.field = field
        self.position = position
        self.reason = reason

    def __str__(self) -> str:
        return f"malformed {self.message_name} v{self.version}: {self.field} at byte {self.position}: {self.reason}"


class CorrelationIdMismatch(ProtocolViolation):
    """A response to a request other than the oldest open one (Kafka responds in order on each connection)."""

    def __init__(self, expected: int | None, received: int) -> None:
        super().__init__(expected, received)
        self.expected = expected
        self.received = received

    def __str__(self) -> str:
        if self.expected is None:
            return f"response with correlation id {self.received}, but no request is open"
        return f"response with correlation id {self.received}, expected {self.expected}"


class UnencodableMessage(ValueError):
    """A message that its version cannot encode: a bug, or an argument out of range.

    `field` is a path such as `topics[0].name`; `reason` is the refused value and what is allowed.
    """

    def __init__(self, message_name: str, version: int, field: str, reason: str) -> None:
        super().__init__(message_name, version, field, reason)
        self.message_name = message_name
        self.version = version
        self.field = field
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot encode {self.message_name} v{self.version}: {self.field}: {self.reason}"
