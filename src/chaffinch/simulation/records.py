"""One record of a world: what it is, and what is wrong with it on purpose."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import TopicPartition


class Fault(Enum):
    """Why a record is bad, with the code that must be its own."""

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
    """One record that a producer is to send. `fault` None: it is good."""

    number: int
    topic_partition: TopicPartition
    key: bytes | None
    value: bytes
    timestamp_ms: int
    fault: Fault | None = None
