"""A record of a world, and its deliberate fault, if any."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum
from typing import Final

from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import TopicPartition

NUMBER_DIGITS: Final = 9


class Fault(Enum):
    """Why a record is bad, with the error code it must fail with."""

    NULL_KEY = "null key"
    FUTURE = "timestamp in the future"
    TOO_LARGE = "too large"

    @property
    def codes(self) -> frozenset[ErrorCode]:
        return _CODES[self]


_CODES: Final[dict[Fault, frozenset[ErrorCode]]] = {
    Fault.NULL_KEY: frozenset({codes.INVALID_COMPACTION_KEY}),
    Fault.FUTURE: frozenset({codes.INVALID_TIMESTAMP}),
    Fault.TOO_LARGE: frozenset({codes.MESSAGE_TOO_LARGE}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record to send. `fault` is None for a good record."""

    number: int
    topic_partition: TopicPartition
    key: bytes | None
    value: bytes
    timestamp_ms: int
    fault: Fault | None = None


def value_of(number: int, size: int) -> bytes:
    """A record value of at least `size` bytes: its number, then incompressible padding."""
    head = b"%0*d|" % (NUMBER_DIGITS, number)
    return head + hashlib.shake_128(head).digest(max(0, size - len(head)))


def number_of(value: bytes | None) -> int:
    """The number in a record's value. Raises ValueError if there is none."""
    digits, bar, _ = (value or b"")[: NUMBER_DIGITS + 1].partition(b"|")
    if bar != b"|":
        raise ValueError(f"not a record of this world: {value!r:.60}")
    return int(digits)
