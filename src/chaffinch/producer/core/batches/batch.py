"""ProducerBatch: one record batch from `send` to its outcome. State machine, encoded bytes, sequence numbers, attempts, and its records.

`in_flight.py` keeps the batches of a partition by state and changes their states as `produce_response_handler.py` and `completer.py`
decide.

The owner of the records is opaque here: `outcome_sink`, and the rows of it that this batch holds, in order. A batch that loses culprits
or is split updates its rows, so that each row gets exactly one outcome.
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
"""An error shows at most this many bytes of a culprit's key."""
KEY_BYTES_KEPT: Final = KEY_BYTES_SHOWN + 1
"""One byte more than is shown, so that a longer key can be recognised."""


class BatchFutures(list[Any]):
    """The futures of the records of one batch, in order. The attributes belong to the shell.

    - `outcome`: makes the result of every future by its index; None until the batch is written.
    - `watched`: indices of the futures that are completed one by one, because a thread waits for them or has added a callback.
      An index may occur twice.
    - `callbacks`: `on_delivery` callbacks by index.
    - `completed_count`: how many futures were completed before the others: those of the culprits.
    """

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
    """The partition that the caller named, if any."""
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers = ()
    size: int
    """Upper bound of its bytes in a batch, uncompressed."""
    future: Any
    callback: Any = None
    original: Any = None
    """Makes the ProducerRecord as the caller handed it over."""


def all_shown_keys(keys: Sequence[bytes | None]) -> tuple[Rows, ByteColumn]:
    """`ProducerBatch.shown_keys` for a batch that will never be encoded: each key, cut to the length that an error shows."""
    return np.arange(len(keys)), ByteColumn.of([None if key is None else key[:KEY_BYTES_KEPT] for key in keys])


class BatchState(Enum):
    """State of a batch between `send` and its outcome."""

    WAITING = "waits for its first request"
    IN_FLIGHT = "sent, without a response that decides its outcome"
    RETRYING = "to be sent again with the same sequence numbers"
    RETURNED = "to be sent again with new sequence numbers"
    ABANDONED = "its records have their outcome, its sequence numbers are in use until the response"
    OVER = "has its outcome, or was replaced by other batches"

    __hash__ = object.__hash__  # Enum's own __hash__ is a Python call, and each batch makes several moves.


class Move(Enum):
    """An event that changes the state of a batch."""

    SEND = "a request was sent"
    RETRY = "a retriable error, or no response"
    RETURN = "certainly not stored, and its sequence numbers cannot be used"
    PUT_BACK = "its topic was created again"
    ABANDON = "it expired, or the producer was closed, before the response"
    END = "written, failed, dropped, split, or abandoned and then responded to"

    __hash__ = object.__hash__


MOVES: Final[Mapping[tuple[BatchState, Move], BatchState]] = {
    (BatchState.WAITING, Move.SEND): BatchState.IN_FLIGHT,
    # A half of a split batch, or innocents of a refused one; or its topic became unknown before it was sent.
    (BatchState.WAITING, Move.RETURN): BatchState.RETURNED,
    (BatchState.WAITING, Move.END): BatchState.OVER,
    (BatchState.IN_FLIGHT, Move.RETRY): BatchState.RETRYING,
    (BatchState.IN_FLIGHT, Move.RETURN): BatchState.RETURNED,
    (BatchState.IN_FLIGHT, Move.ABANDON): BatchState.ABANDONED,
    (BatchState.IN_FLIGHT, Move.END): BatchState.OVER,
    (BatchState.RETRYING, Move.SEND): BatchState.IN_FLIGHT,
    # An earlier batch failed: the broker would refuse the sequence numbers.
    (BatchState.RETRYING, Move.RETURN): BatchState.RETURNED,
    (BatchState.RETRYING, Move.PUT_BACK): BatchState.WAITING,
    (BatchState.RETRYING, Move.END): BatchState.OVER,
    (BatchState.RETURNED, Move.SEND): BatchState.IN_FLIGHT,
    (BatchState.RETURNED, Move.PUT_BACK): BatchState.WAITING,
    (BatchState.RETURNED, Move.END): BatchState.OVER,
    (BatchState.ABANDONED, Move.END): BatchState.OVER,
}
"""The state after each move. Any other pair is a bug in the core."""


@dataclass(slots=True, eq=False, kw_only=True)
class ProducerBatch:
    """One record batch for one partition. Times are in ms on the steady clock."""

    topic_partition: TopicPartition
    outcome_sink: Any  # Owned by the shell: BatchFutures of `send`, or the TableOutcome of `send_table`.
    rows: Rows
    """Indices of these records in the sink, in the order of the batch."""
    timestamps: npt.NDArray[np.int64]
    data: bytearray
    """The encoded batch. Producer id, epoch and base sequence are written into it when it is first sent."""
    created_ms: int
    position: int
    """Position of its first record among all records appended to the partition: returned batches are sorted by it."""
    memory_bytes: int
    """Bytes of `buffer.memory` that it holds until its outcome is known."""
    identity: ProducerIdentity = NO_PRODUCER
    base_sequence: int = NO_SEQUENCE
    ordinal: int = 0
    """How many batches of its partition were numbered before it."""
    attempts: int = 0
    """Number of attempts that got a retriable error or no response."""
    removals: int = 0
    """Number of times that culprits were removed from it."""
    possibly_stored: bool = False
    """An earlier attempt may have been written: it timed out, lost its connection, or got code 7 or 20 (decision 13)."""
    last_error: KafkaException | None = None
    key_valid: Bytes | None = None
    """For tables: 0 for each record without a key. None: every record has a key, or it was not checked."""
    handed_over_ms: int | None = None
    """For tables: when the caller had handed over all rows of the piece."""
    sent_ms: int = 0
    """When it was last sent."""
    unknown_since_ms: int | None = None
    """When its topic or partition was first reported as unknown."""
    refused_since_ms: int | None = None
    """When it first had to be retried: a retriable error, no response, or an unreachable broker."""
    retry_at_ms: int = 0
    sent_to: tuple[Address, UUID] | None = None
    """Leader and topic id of the last attempt. If either has changed, a retry skips its backoff."""
    is_topic_recreated: bool = False
    """Its topic was deleted and created again since it was last sent."""
    chosen: bool | npt.NDArray[np.bool_] = False
    """Whether the producer chose the partition, for all records or for each. Such records may move to another partition."""
    state: BatchState = BatchState.WAITING
    shown_keys: tuple[Rows, ByteColumn] | None = None
    """Cached keys of records, by index. A batch that is never sent has no bytes, and only these keys."""

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
        """The sequence number after its last record."""
        return sequence_add(self.base_sequence, self.count)

    def number(self, identity: ProducerIdentity, base_sequence: int, ordinal: int, *, is_transactional: bool) -> None:
        """Write producer id, epoch and base sequence into the bytes. From now on the broker recognises a duplicate."""
        self.identity, self.base_sequence, self.ordinal = identity, base_sequence, ordinal
        record_batch.patch_producer(self.data, 0, identity, base_sequence, is_transactional=is_transactional)

    def decode(self) -> RecordColumns:
        """Decode its records."""
        return record_batch.decode(self.data)

    def keys_of(self, indices: Rows) -> ByteColumn:
        """The keys of the records at `indices` (ascending), cut to the length that an error shows."""
        # Cached, because they are needed up to three times: to interpret a response, and for the error of each culprit.
        if self.shown_keys is None or not np.array_equal(self.shown_keys[0], indices):
            self.shown_keys = indices, record_batch.keys_at(self.data, indices, KEY_BYTES_KEPT)
        return self.shown_keys[1]

    def without(self, indices: Rows) -> ProducerBatch | None:
        """A new batch without the records at `indices`, the culprits (each once), and without sequence numbers; None if no record is left.

        It may take over the bytes: this batch has ended, and its records are not read again.
        """
        data, self.data = record_batch.remove_records_in_place(self.data, indices), bytearray()
        if data is None:
            return None
        stays = np.ones(self.count, bool)
        stays[indices] = False
        return self._child(stays, data, self.position)

    def halves(self) -> list[ProducerBatch]:
        """Two new batches with its first and second half, without sequence numbers; a single one if it has one record."""
        children, start = [], 0
        for data in record_batch.split_in_half(self.data):
            # Brokers assign offsets. A client's batch starts at offset 0; Kafka refuses any other value as INVALID_RECORD.
            record_batch.patch_offset(data, 0, 0, -1)
            stop = start + record_batch.read_header(data).count
            children.append(self._child(slice(start, stop), data, self.position + start))
            start = stop
        return children

    @property
    def is_abandoned(self) -> bool:
        """Whether its records have their outcome, and it only occupies its sequence numbers until the response arrives."""
        return self.state is BatchState.ABANDONED

    def move(self, move: Move) -> None:
        """Change the state as the table says."""
        try:
            self.state = MOVES[self.state, move]
        except KeyError:
            text = f"{self.topic_partition}: no move {move.name} for a batch that is {self.state.name}"
            raise AssertionError(text) from None

    def mark_retried(self, steady_ms: int) -> None:
        """Record that it has to be sent again."""
        if self.refused_since_ms is None:
            self.refused_since_ms = steady_ms

    def clear_sequence(self) -> None:
        """Remove its sequence numbers: it is certainly not stored, and gets new ones when it is sent again."""
        self.identity, self.base_sequence = NO_PRODUCER, NO_SEQUENCE
        self.possibly_stored = self.is_topic_recreated = False

    def part(self, mask: npt.NDArray[np.bool_], data: bytearray, topic_partition: TopicPartition) -> ProducerBatch:
        """A new batch of the records in `mask`, encoded as `data`, for another partition; without sequence numbers."""
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
