"""What can go wrong on the wire: one class for a peer that broke the protocol, one for a message of ours that does not fit.

Expected failures (a broker's error code) are not here: they are plain ints inside responses and become exceptions in `chaffinch.errors`.
"""

from __future__ import annotations

from typing import Any


class ProtocolViolation(Exception):
    """The peer sent bytes that are no Kafka protocol; the connection must be closed, as Kafka does.

    Several frames may come with one read: `frames`, and after parsing `responses`, hold the good ones before the bad one; each of the
    latter is a client's `ReceivedResponse`.
    """

    frames: tuple[memoryview, ...] = ()
    responses: tuple[Any, ...] = ()


class MalformedMessage(ProtocolViolation):
    """A message body that cannot be decoded.

    `message_name` and `version` say as what it was read, `field` is a path such as `topics[0].partitions[2].records`,
    `position` the byte within the body (0-based) at which reading the field began or stopped.
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
    """A response answers another request than the oldest open one (Kafka answers in order on each connection)."""

    def __init__(self, expected: int | None, received: int) -> None:
        super().__init__(expected, received)
        self.expected = expected
        self.received = received

    def __str__(self) -> str:
        if self.expected is None:
            return f"response with correlation id {self.received}, but no request is open"
        return f"response with correlation id {self.received}, expected {self.expected}"


class UnencodableMessage(ValueError):
    """A message of ours that its version cannot carry; a programmer's mistake or an argument out of range.

    `field` is a path such as `topics[0].name`; `reason` names the value that was refused and what is allowed.
    """

    def __init__(self, message_name: str, version: int, field: str, reason: str) -> None:
        super().__init__(message_name, version, field, reason)
        self.message_name = message_name
        self.version = version
        self.field = field
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot encode {self.message_name} v{self.version}: {self.field}: {self.reason}"
