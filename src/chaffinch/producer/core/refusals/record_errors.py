"""Errors of single records: the record, its key, the cause, and, for a culprit, the outcome of the other records.

They are made on access: a table with one bad row in a hundred has many culprits, and most of them are only counted.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from chaffinch.errors import ApiException, Culprit, ErrorCode, KafkaException, Stored, codes, exception_for
from chaffinch.errors.copies import with_message
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core.batches.batch import KEY_BYTES_SHOWN, ProducerBatch, Rows
from chaffinch.producer.core.refusals.batch_responses import BatchResponse, Situation
from chaffinch.records.byte_columns import ByteColumn
from chaffinch.records.errors import RecordsError

API: Final = "Produce"


class LazyErrors(Mapping[int, ApiException]):
    """An error for each of some records of a batch, by index, ascending."""

    def __init__(self, indices: Sequence[int]) -> None:
        self._at = {index: at for at, index in enumerate(indices)}
        self._made: dict[int, ApiException] = {}

    def __iter__(self) -> Iterator[int]:
        return iter(self._at)

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, index: object) -> bool:
        return index in self._at

    def __getitem__(self, index: int) -> ApiException:
        made = self._made.get(index)
        if made is None:
            made = self._made[index] = self._error(self._at[index])
        return made

    @abstractmethod
    def _error(self, at: int) -> ApiException:
        """Make the error at a position of `indices`."""


class CulpritErrors(LazyErrors):
    """The error of each culprit; all of them are records of the batch."""

    def __init__(self, response: BatchResponse, situation: Situation) -> None:
        record_errors = response.record_errors
        super().__init__(record_errors.indices)
        self._response = response
        # The keys, not the batch: it must not live as long as its errors.
        self._keys = situation.keys_of(np.array(record_errors.indices, np.int64))
        self._topic_partition = situation.topic_partition
        self._count = situation.count
        self._possibly_stored = situation.possibly_stored
        self._cause = situation.last_error if situation.possibly_stored else None
        others = situation.count - len(record_errors)
        self._fate_text = _fate_of_others(others, situation) if others else ""

    def refused_with(self, code: ErrorCode) -> list[int]:
        """The indices of those that were refused with this code."""
        record_errors, others = self._response.record_errors, self._response.code
        return [index for index, at in self._at.items() if (record_errors.code(at) or others) is code]

    def message_of(self, index: int) -> str:
        """The broker's message about one of them."""
        return culprit_of(self._response, self._at[index]).message

    def _error(self, at: int) -> ApiException:
        culprit = culprit_of(self._response, at)
        key = _key_beside(culprit.code, self._keys.value(at))
        return exception_for(
            culprit.code,
            message=f"{self._named(culprit)}{key and f' ({key})'}{self._fate_text}",
            topic_partition=self._topic_partition,
            culprits=(culprit,),
            stored=Stored.POSSIBLY if self._possibly_stored else Stored.NO,
            api=API,
            cause=self._cause,
        )

    def _named(self, culprit: Culprit) -> str:
        """The broker's message, with the record's index unless the message contains it."""
        if culprit.message.startswith(f"record {culprit.batch_index} "):
            return culprit.message
        return f"record {culprit.batch_index} of {self._count} rejected: {culprit.message}"


class ScreenedErrors(LazyErrors):
    """The errors of rows without a key that were not sent, because the broker had just refused such rows."""

    def __init__(self, indices: Sequence[int], rows: Rows, topic_partition: TopicPartition, refused: str) -> None:
        """`rows`: rows of the table, of which those at `indices` failed. `refused`: when the broker refused others, and its message."""
        super().__init__(indices)
        self._rows = rows[indices] if len(indices) < len(rows) else rows
        self._topic_partition = topic_partition
        self._refused = refused

    def _error(self, at: int) -> ApiException:
        topic, partition = self._topic_partition
        return exception_for(
            codes.INVALID_COMPACTION_KEY,
            message=f"row {self._rows[at]} for {topic}-{partition} was not sent, because it has no key and {self._refused}",
            topic_partition=self._topic_partition,
            stored=Stored.NO,
            api=API,
        )


class ErrorPerRecord:
    """One error for many records of a batch: each call makes a new copy with the record's index and key."""

    def __init__(self, batch: ProducerBatch, error: KafkaException) -> None:
        # The keys, not the batch: it must not live as long as its errors.
        self._keys = _keys_of(batch)
        self._count = batch.count
        self._error = error

    def __call__(self, index: int) -> KafkaException:
        whose = f"record {index} of the {self._count} in its batch" if self._count > 1 else "the only record of its batch"
        key = "" if self._keys is None else _key_beside(self._error.code, self._keys.value(index))
        return with_message(self._error, f"{self._error.message} ({whose}{key and f', {key}'})")


def _keys_of(batch: ProducerBatch) -> ByteColumn | None:
    """All keys; None if they cannot be read, which needs memory for a compressed batch: the records must fail in any case."""
    try:
        return batch.keys_of(np.arange(batch.count))
    except (RecordsError, MemoryError):
        return None


def culprit_of(response: BatchResponse, at: int) -> Culprit:
    """A culprit, with the batch's code and message if it has none of its own."""
    record_errors = response.record_errors
    code = record_errors.code(at) or response.code
    return Culprit(record_errors.indices[at], code, record_errors.messages[at] or response.message or code.text)


def stored(code: ErrorCode, situation: Situation) -> Stored:
    """Whether the refused batch may be stored."""
    return Stored.POSSIBLY if situation.possibly_stored else code.stored


def _fate_of_others(others: int, situation: Situation) -> str:
    subject = _others(others)
    if situation.possibly_stored:
        return f"; an earlier attempt may have been stored, so {subject} cannot be sent again"
    if situation.in_transaction:
        return f"; {subject} abort{'' if others > 1 else 's'} with the transaction"
    return f"{_others_go(others)} again"


def _others(count: int) -> str:
    return f"the other {count} records" if count > 1 else "the other record"


def _others_go(count: int) -> str:
    return f"; {_others(count)} {'are' if count > 1 else 'is'} sent"


def _key_beside(code: ErrorCode, key: bytes | None) -> str:
    """A record's key for an error text; empty if the text already says that there is none."""
    return "" if key is None and code is codes.INVALID_COMPACTION_KEY else key_text(key)


def key_text(key: bytes | None) -> str:
    """A record's key, for an error text."""
    if key is None:
        return "no key"
    return "key " + repr(key[:KEY_BYTES_SHOWN])[1:] + ("..." if len(key) > KEY_BYTES_SHOWN else "")
