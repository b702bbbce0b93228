"""What `culprits.judge` decides by: a broker's answer about one batch, and what the producer knows about the batch then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from chaffinch.errors import ErrorCode, KafkaException, codes
from chaffinch.errors.codes import Numbering
from chaffinch.errors.handling import Handling, handling_of
from chaffinch.identifiers import NO_OFFSET, TopicPartition
from chaffinch.producer.core.batches.in_flight import Front
from chaffinch.producer.core.exception_handler import HandlerSaid, Question
from chaffinch.producer.core.refusals.topic_facts import UNKNOWN, TopicFacts
from chaffinch.protocol.messages.produce import PartitionProduceResponse
from chaffinch.protocol.record_errors import RecordErrors
from chaffinch.records.byte_columns import ByteColumn

NOBODY: Final = RecordErrors((), (), ())


@dataclass(slots=True, kw_only=True)
class BatchAnswer:
    """What a broker said about one batch: the code that stands for all, and the records that are to blame, ascending."""

    code: ErrorCode
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = -1
    blamed: RecordErrors = field(default_factory=lambda: NOBODY)
    message: str | None = None

    @property
    def is_written(self) -> bool:
        """Whether the broker has the batch."""
        return handling_of(self.code) is Handling.COMPLETE


def read_answer(response: PartitionProduceResponse, numbering: Numbering) -> BatchAnswer:
    """A partition's part of a Produce answer, in the words of the error table."""
    blamed = RecordErrors.of(response.record_errors).ascending() if response.record_errors else NOBODY
    return BatchAnswer(
        code=codes.by_number(response.error_code, numbering, has_culprits=bool(blamed), message=response.error_message),
        base_offset=response.base_offset,
        log_append_time_ms=response.log_append_time_ms,
        blamed=blamed,
        message=response.error_message,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is known about the batch when the answer comes."""

    topic_partition: TopicPartition
    count: int
    keys_of: Callable[[npt.NDArray[np.int64]], ByteColumn]
    """The keys of records of the batch, whose indices ascend, as much of each as an error shows: reads the batch."""
    possibly_stored: bool = False
    in_transaction: bool = False
    is_idempotent: bool = True
    front: Front = Front.CLEAR
    """What became of the batches with lower numbers."""
    may_retry: bool = True
    """Neither the attempts nor the delivery timeout are used up."""
    rounds: int = 0
    facts: TopicFacts = UNKNOWN
    last_error: KafkaException | None = None
    questions: frozenset[Question] = frozenset()
    """What an exception handler is asked."""
    said: HandlerSaid | None = None
    """What it answered; None: it was not asked yet."""
    is_unknown_too_long: bool = False
    """The topic is unknown for longer than `retry.unknown.topic.partition.ms`."""
