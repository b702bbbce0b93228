"""What a broker said about one batch, in the words of the error table, and what is known about the batch at that moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import lt
from typing import Final

import numpy as np
import numpy.typing as npt

from chaffinch.errors import ErrorCode, KafkaException, codes
from chaffinch.errors.codes import Numbering
from chaffinch.identifiers import NO_OFFSET, TopicPartition
from chaffinch.producer.core.batches.in_flight import Front
from chaffinch.producer.core.exception_handler import HandlerSaid, Question
from chaffinch.producer.core.refusals.topic_facts import UNKNOWN, TopicFacts
from chaffinch.protocol.messages.produce import BatchIndexAndErrorMessage, PartitionProduceResponse
from chaffinch.protocol.record_errors import RecordErrors
from chaffinch.records.byte_columns import ByteColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class Blamed:
    """What `record_errors` says, as columns: the indices within the batch, ascending and each once, the broker's words about each, and each
    one's own code where the broker gave one. Not an object each: most culprits are only counted."""

    indices: Sequence[int]
    messages: Sequence[str | None]
    codes: Sequence[ErrorCode | None]

    def __len__(self) -> int:
        return len(self.indices)

    @classmethod
    def plainly(cls, indices: Sequence[int]) -> Blamed:
        """Without a word about each."""
        nothing = [None] * len(indices)
        return cls(indices=indices, messages=nothing, codes=nothing)


NOBODY: Final = Blamed.plainly(())


@dataclass(slots=True, kw_only=True)
class BatchAnswer:
    """What a broker said about one batch."""

    code: ErrorCode
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = -1
    blamed: Blamed = NOBODY
    message: str | None = None


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


def read_answer(response: PartitionProduceResponse, numbering: Numbering) -> BatchAnswer:
    """A partition's part of a Produce answer, in the words of the error table."""
    blamed = NOBODY if not response.record_errors else _read_blamed(response.record_errors)
    return BatchAnswer(
        code=codes.by_number(response.error_code, numbering, has_culprits=bool(blamed), message=response.error_message),
        base_offset=response.base_offset,
        log_append_time_ms=response.log_append_time_ms,
        blamed=blamed,
        message=response.error_message,
    )


def _read_blamed(entries: Sequence[BatchIndexAndErrorMessage]) -> Blamed:
    """Of one that is named twice the last word counts."""
    errors = RecordErrors.of(entries)
    if not all(map(lt, errors.indices, errors.indices[1:])):
        by_index = {entry.batch_index: entry for entry in entries}
        errors = RecordErrors.of([by_index[index] for index in sorted(by_index)])
    # A single record has no sequence of its own: 45 beside an index is always INVALID_COMPACTION_KEY.
    # No error of its own is success: who is blamed is so with the batch's.
    known = {number: codes.by_number(number, "kip", has_culprits=True) if number else None for number in set(errors.numbers)}
    return Blamed(indices=errors.indices, messages=errors.messages, codes=[known[number] for number in errors.numbers])
