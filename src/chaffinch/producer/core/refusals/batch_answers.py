"""What `culprits.judge` decides by: a broker's answer about one batch, and what the producer knows about the batch then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from chaffinch.protocol.messages.produce import BatchIndexAndErrorMessage, PartitionProduceResponse
from chaffinch.records.byte_columns import ByteColumn


@dataclass(frozen=True, slots=True)
class RecordErrors:
    """The culprits that an answer lists (KIP-467), as columns: a batch may have a hundred, and most of them are only counted.

    `indices` within the batch, ascending and each once, the words about each, and each one's own code, by its number; None where there
    is none.
    """

    indices: Sequence[int]
    messages: Sequence[str | None]
    numbers: Sequence[int | None]

    @classmethod
    def of(cls, entries: Sequence[BatchIndexAndErrorMessage]) -> RecordErrors:
        """What is listed. Of two entries about one record the last one counts."""
        last = {entry.batch_index: entry for entry in entries}
        indices = sorted(last)
        ordered = [last[index] for index in indices]
        messages = [entry.batch_index_error_message for entry in ordered]
        return cls(indices, messages, [entry.chaffinch_error_code for entry in ordered])

    def code(self, at: int) -> ErrorCode | None:
        """The own code of one of them; None where it has none, or success: then the batch's code is its own."""
        number = self.numbers[at]
        # A single record has no sequence of its own: 45 next to an index is always INVALID_COMPACTION_KEY.
        return codes.by_number(number, "kip", has_culprits=True) if number else None

    def __len__(self) -> int:
        return len(self.indices)


NOBODY: Final = RecordErrors((), (), ())


@dataclass(slots=True, kw_only=True)
class BatchAnswer:
    """What a broker said about one batch: the code that stands for all, and the records that are to blame, ascending."""

    code: ErrorCode
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = -1
    blamed: RecordErrors = NOBODY
    message: str | None = None

    @property
    def is_written(self) -> bool:
        """Whether the broker has the batch."""
        return handling_of(self.code) is Handling.COMPLETE


def read_answer(response: PartitionProduceResponse, numbering: Numbering) -> BatchAnswer:
    """A partition's part of a Produce answer, in the words of the error table."""
    blamed = RecordErrors.of(response.record_errors) if response.record_errors else NOBODY
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
