"""What a producer wants done: the words in which the core tells its shell. To be carried out in order; one per batch, never per record."""

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
    """Ask the exception handler about the records at these indices, each with its error; the answer comes as HandlerDecided."""

    batch: ProducerBatch
    question: Question
    errors: Mapping[int, ApiException]


@dataclass(frozen=True, slots=True)
class WakeCallers:
    """What somebody in `send` waits for may be there (metadata, memory), or in vain (a transaction that fails): he looks again."""


Effect: TypeAlias = SendRequest | CompleteBatch | FailRecords | AskHandler | CompleteCall | FailCall | WakeCallers | Report
