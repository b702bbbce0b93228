"""What a broker answers to a batch that it refuses, and how the producer's fates of its records are written in the tables."""

from __future__ import annotations

from typing import Any

from chaffinch.errors import ErrorCode, codes
from tests.producer.core.rig import Answer

INVALID = "InvalidRecordException no"
TIMESTAMP = "InvalidTimestampException no"
# Where several codes meet in one batch, Apache Kafka's rule: this one wins.
MIXED = codes.INVALID_TIMESTAMP


def rejected(*indices: int | tuple[int, ErrorCode], code: ErrorCode = codes.INVALID_RECORD, **more: Any) -> Answer:
    """The answer that lists these records, each with the batch's code or one of its own."""
    return Answer(code, indices, **more)
