"""What a producer wants done: the words in which the core tells its shell. To be carried out in order; one per batch, never per record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from chaffinch.client.addresses import Address
from chaffinch.errors import ApiException, KafkaException
from chaffinch.producer.core.batches import ProducerBatch
from chaffinch.producer.core.exception_handler import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRequest:
    """Send a request. Its outcome comes back as Answered, Written or Failed with this token, exactly once."""

    address: Address
    message: Any  # One of the request classes of protocol/messages.
    token: Any  # The core's own.
    timeout_ms: int
    version_max: int | None = None
    expects_answer: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteBatch:
    """All records of the batch are written. `base_offset` -1: nobody said where. `log_append_time_ms` -1: they keep their timestamps."""

    batch: ProducerBatch
    base_offset: int
    log_append_time_ms: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FailRecords:
    """Records of the batch failed: each index in `errors` with its own error, every other one with `error`, unless that is None
    (then the others go on in new batches). Those at the indices in `dropped` were dropped by an exception handler."""

    batch: ProducerBatch
    error: KafkaException | None
    errors: Mapping[int, KafkaException]
    dropped: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class AskHandler:
    """Ask the exception handler about the records at these indices, each with its error; the answer comes as HandlerAnswered."""

    batch: ProducerBatch
    question: Question
    errors: Mapping[int, ApiException]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteCall:
    """What a caller waited for has happened."""

    call: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class FailCall:
    """What a caller waited for will not happen, or not in time."""

    call: Any
    error: KafkaException


@dataclass(frozen=True, slots=True)
class WakeCallers:
    """Metadata has come or memory is free: whoever waits in `send` looks again."""


@dataclass(frozen=True, slots=True)
class Report:
    """One line for the log: what no single caller is told."""

    text: str


Effect: TypeAlias = SendRequest | CompleteBatch | FailRecords | AskHandler | CompleteCall | FailCall | WakeCallers | Report
