"""A batch on its way: its state and the moves between states, its bytes, its numbers, its history, and which of whose records are in it.

`in_flight.py` keeps the batches of a partition by state and makes the moves; `produce_response_handler.py` and `completer.py` decide which.

The records' owner is opaque here: a receipt, and the rows of it that this batch holds, in order. A batch that loses culprits or is
split keeps the rows right, so that whoever waits hears about each row exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final
from uuid import UUID

import numpy as np
import numpy.typing as npt

from chaffinch.client.addresses import Address
from chaffinch.errors import KafkaException
from chaffinch.identifiers import NO_PRODUCER, NO_SEQUENCE, ProducerIdentity, TopicPartition, sequence_add
from chaffinch.producer.records import Headers
from chaffinch.records import batch as record_batch
from chaffinch.records.byte_columns import ByteColumn, Bytes
from chaffinch.records.columns import RecordColumns

Rows = npt.NDArray[np.int64]

KEY_BYTES_SHOWN: Final = 60
"""So much of a culprit's key stands in its error."""
KEY_BYTES_KEPT: Final = KEY_BYTES_SHOWN + 1
"""With one more, to tell that there is more."""


class BatchFutures(list[Any]):
    """Of the records of one batch, in their order. The rest is the shell's: `outcome`, what it has said of all of them at once; `watched`,
    the indices of those that it tells one by one, some of them twice; `callbacks`, whom it calls, by index; `completed_count`, how many it
    has told
    before the others: the culprits."""

    __slots__ = ("callbacks", "completed_count", "outcome", "watched")

    def __init__(self) -> None:
        super().__init__()
        self.outcome: Any = None
        self.watched: list[int] = []
        self.callbacks: dict[int, Any] = {}
        self.completed_count = 0


@dataclass(slots=True, eq=False, kw_only=True)
class NewRecord:
    """One record of `send` on its way into a batch. `future`, `callback` and `original` are the shell's own."""

    topic: str
    partition: int | None
    """The one that its caller named."""
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers = ()
    size: int
    """Bytes that it takes in a batch at most, uncompressed."""
    future: Any
    callback: Any = None
    original: Any = None
    """Makes the record as its owner handed it over."""


def all_shown_keys(keys: Sequence[bytes | None]) -> tuple[Rows, ByteColumn]:
    """`ProducerBatch.shown_keys` of a batch that will never be encoded: of all its records, as much of each key as an error shows."""
    return np.arange(len(keys)), ByteColumn.of([None if key is None else key[:KEY_BYTES_KEPT] for key in keys])


class BatchState(Enum):
    """Where a batch is between `send` and its outcome."""

    WAITING = "waits for its first request"
    IN_FLIGHT = "sent, without an answer that decides"
    RETRYING = "to be sent again under its number"
    RETURNED = "to be sent under another number"
    ABANDONED = "its records have their outcome, its number waits for the answer"
    OVER = "has its outcome, or others were made of it"

    __hash__ = object.__hash__  # An enum's own is a call of Python's, and each batch makes several moves.


class Move(Enum):
    """What happens to a batch."""

    SEND = "a request leaves"
    RETRY = "refused for now, or no answer"
    RETURN = "surely not stored, and its number is of no use"
    PUT_BACK = "its topic was created again"
    ABANDON = "its time is up before its answer is in"
    END = "written, failed, dropped, divided, or answered after it was abandoned"

    __hash__ = object.__hash__


MOVES: Final[Mapping[tuple[BatchState, Move], BatchState]] = {
    (BatchState.WAITING, Move.SEND): BatchState.IN_FLIGHT,
    # A half or an innocent of another batch; or its topic is unknown, as if a broker had refused it for that.
    (BatchState.WAITING, Move.RETURN): BatchState.RETURNED,
    (BatchState.WAITING, Move.END): BatchState.OVER,
    (BatchState.IN_FLIGHT, Move.RETRY): BatchState.RETRYING,
    (BatchState.IN_FLIGHT, Move.RETURN): BatchState.RETURNED,
    (BatchState.IN_FLIGHT, Move.ABANDON): BatchState.ABANDONED,
    (BatchState.IN_FLIGHT, Move.END): BatchState.OVER,
    (BatchState.RETRYING, Move.SEND): BatchState.IN_FLIGHT,
    # A batch before it failed: the broker would refuse its number.
    (BatchState.RETRYING, Move.RETURN): BatchState.RETURNED,
    (BatchState.RETRYING, Move.PUT_BACK): BatchState.WAITING,
    (BatchState.RETRYING, Move.END): BatchState.OVER,
    (BatchState.RETURNED, Move.SEND): BatchState.IN_FLIGHT,
    (BatchState.RETURNED, Move.PUT_BACK): BatchState.WAITING,
    (BatchState.RETURNED, Move.END): BatchState.OVER,
    (BatchState.ABANDONED, Move.END): BatchState.OVER,
}
"""The state after each move. Any other pair is a mistake of the core."""


@dataclass(slots=True, eq=False, kw_only=True)
class ProducerBatch:
    """One record batch for one partition. Times are on the core's clock, in ms."""

    topic_partition: TopicPartition
    outcome_sink: Any  # The shell's own: whoever waits for the records.
    rows: Rows
    """Which of the receipt's records these are, in the order of the batch."""
    timestamps: npt.NDArray[np.int64]
    data: bytearray
    """The encoded batch; identity and sequence are written into it when it is numbered."""
    created_ms: int
    position: int
    """Place of its first record in everything appended to the partition: batches that go back are put in this order."""
    memory_bytes: int
    """What it holds of `buffer.memory` until its outcome is known."""
    identity: ProducerIdentity = NO_PRODUCER
    base_sequence: int = NO_SEQUENCE
    ordinal: int = 0
    """How many batches of its partition were numbered before it."""
    attempts: int = 0
    """How often it was sent and a retriable answer, or none, came back."""
    separations: int = 0
    """How often culprits were taken out of it."""
    possibly_stored: bool = False
    """An earlier attempt may have been written: a time-out, a lost connection, or code 7 or 20 (decision 13)."""
    last_error: KafkaException | None = None
    key_valid: Bytes | None = None
    """Of a table: 0 for each record without a key; None: none lacks one, or nobody looked."""
    handed_over_ms: int | None = None
    """Of a table: when its caller had handed over all of its records."""
    sent_ms: int = 0
    """When it was last sent."""
    unknown_since_ms: int | None = None
    """When its topic or partition was first said to be unknown."""
    refused_since_ms: int | None = None
    """When it first had to go again: a broker refused it for now, or did not answer, or could not be reached."""
    retry_at_ms: int = 0
    sent_to: tuple[Address, UUID] | None = None
    """The leader and the topic to which it went last: when there is another one now, it need not wait."""
    is_topic_recreated: bool = False
    """Since it was last sent its topic was deleted and created again."""
    chosen: bool | npt.NDArray[np.bool_] = False
    """Whether the producer chose the partition: of all records, or of each. Such records may go to another partition."""
    state: BatchState = BatchState.WAITING
    shown_keys: tuple[Rows, ByteColumn] | None = None
    """Keys of records, by index, that were asked for; of a batch without bytes, which is never sent, there are no others."""

    @property
    def count(self) -> int:
        return len(self.rows)

    @property
    def size(self) -> int:
        """Encoded bytes."""
        return len(self.data)

    @property
    def has_sequence(self) -> bool:
        return self.base_sequence != NO_SEQUENCE

    @property
    def sequence_after(self) -> int:
        """The sequence that follows its last record."""
        return sequence_add(self.base_sequence, self.count)

    def number(self, identity: ProducerIdentity, base_sequence: int, ordinal: int, *, is_transactional: bool) -> None:
        """Write producer and sequence into the bytes; from now on a repetition is recognised by the broker."""
        self.identity, self.base_sequence, self.ordinal = identity, base_sequence, ordinal
        record_batch.patch_producer(self.data, 0, identity, base_sequence, is_transactional=is_transactional)

    def decode(self) -> RecordColumns:
        """Its records."""
        return record_batch.decode(self.data)

    def keys_of(self, indices: Rows) -> ByteColumn:
        """The keys of the records at `indices` (ascending), as much of each as an error shows."""
        # Kept, because they are asked for up to three times: what an answer means, and each culprit's error, depend on them.
        if self.shown_keys is None or not np.array_equal(self.shown_keys[0], indices):
            self.shown_keys = indices, record_batch.keys_at(self.data, indices, KEY_BYTES_KEPT)
        return self.shown_keys[1]

    def without(self, indices: Rows) -> ProducerBatch | None:
        """A new batch of the records that are not at `indices` (each once), not numbered yet; None when none is left.

        It may take over the bytes: this batch is over, and nobody reads its records any more.
        """
        data, self.data = record_batch.remove_records_in_place(self.data, indices), bytearray()
        if data is None:
            return None
        stays = np.ones(self.count, bool)
        stays[indices] = False
        return self._child(stays, data, self.position)

    def halves(self) -> list[ProducerBatch]:
        """Two new batches with its first and second half, not numbered yet; one if it has one record."""
        children, start = [], 0
        for data in record_batch.split_in_half(self.data):
            # Brokers give offsets: what a client sends begins at 0, and Kafka refuses anything else as INVALID_RECORD.
            record_batch.patch_offset(data, 0, 0, -1)
            stop = start + record_batch.read_header(data).count
            children.append(self._child(slice(start, stop), data, self.position + start))
            start = stop
        return children

    @property
    def is_abandoned(self) -> bool:
        """Whether its records have their outcome, and it only occupies its sequence numbers until the answer is in."""
        return self.state is BatchState.ABANDONED

    def move(self, move: Move) -> None:
        """Make a move of the table."""
        try:
            self.state = MOVES[self.state, move]
        except KeyError:
            text = f"{self.topic_partition}: no move {move.name} for a batch that is {self.state.name}"
            raise AssertionError(text) from None

    def mark_retried(self, steady_ms: int) -> None:
        """It has to be sent again."""
        if self.refused_since_ms is None:
            self.refused_since_ms = steady_ms

    def clear_sequence(self) -> None:
        """It is surely not stored, and will be numbered anew."""
        self.identity, self.base_sequence = NO_PRODUCER, NO_SEQUENCE
        self.possibly_stored = self.is_topic_recreated = False

    def part(self, mask: npt.NDArray[np.bool_], data: bytearray, topic_partition: TopicPartition) -> ProducerBatch:
        """A new batch of the records in `mask`, encoded as `data`, for another partition; not numbered yet."""
        return replace(self._child(mask, data, self.position), topic_partition=topic_partition)

    def _child(self, chosen: slice | npt.NDArray[np.bool_], data: bytearray, position: int) -> ProducerBatch:
        rows, timestamps = self.rows[chosen], self.timestamps[chosen]
        memory_bytes = self.memory_bytes * len(rows) // max(1, self.count)
        child = replace(self, rows=rows, timestamps=timestamps, data=data, position=position, memory_bytes=memory_bytes, shown_keys=None)
        child.key_valid = None if self.key_valid is None else self.key_valid[chosen]
        child.chosen = self.chosen if isinstance(self.chosen, bool) else self.chosen[chosen]
        child.clear_sequence()
        child.retry_at_ms, child.state = 0, BatchState.WAITING
        return child
