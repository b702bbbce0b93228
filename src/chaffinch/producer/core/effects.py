"""Effects: instructions from the producer's core to its shell, executed in order; one per batch, never one per record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from chaffinch.client.effects import CompleteCall as CompleteCall
from chaffinch.client.effects import FailCall as FailCall
from chaffinch.client.effects import Report as Report
from chaffinch.client.effects import SendRequest as SendRequest
from chaffinch.errors import ApiException, KafkaException
from chaffinch.producer.core.batches.batch import ProducerBatch
from chaffinch.producer.core.exception_handler import Question


@dataclass(slots=True, kw_only=True)
class CompleteBatch:
    """All records of the batch are written. `base_offset` -1: unknown. `log_append_time_ms` -1: the records keep their timestamps."""

    batch: ProducerBatch
    base_offset: int
    log_append_time_ms: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FailRecords:
    """Records of the batch failed: those in `errors` each with its own error, the others with `error`.

    If `error` is None, the others continue in new batches. Records at the indices in `dropped` were dropped by an exception handler.
    """

    batch: ProducerBatch
    error: KafkaException | None
    errors: Mapping[int, KafkaException]
    dropped: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class AskHandler:
    """Call the exception handler for the records at these indices, each with its error; HandlerDecided returns the decision."""

    batch: ProducerBatch
    question: Question
    errors: Mapping[int, ApiException]


@dataclass(frozen=True, slots=True)
class WakeCallers:
    """Wake the callers blocked in `send`: metadata or memory may be available, or their transaction has failed."""


Effect: TypeAlias = SendRequest | CompleteBatch | FailRecords | AskHandler | CompleteCall | FailCall | WakeCallers | Report
