"""Idempotent send queue of one partition: sequence numbers, batches in flight, the order of retries, and restarts of the sequence.

The rules, from Sender.java, TransactionManager.java and decision 14 of the design:
- A batch gets its sequence numbers when it is first sent. A batch without a response is retried under the same numbers, so that the broker
  recognises a duplicate.
- While batches wait for a retry, only the one with the lowest sequence may be sent.
- After a final failure the later sequence numbers are useless. The partition then holds: it starts no new batch until every numbered batch
  has a response or is given up. Then the sequence restarts: at the failed batch's base sequence, or under a new epoch at 0.
- Sequence numbers are reused only if their batch is certainly not stored, and the broker refused it for its records, not for its sequence.
  In a transaction they are reused whatever the reason, because the epoch cannot change there; if that is impossible, the epoch is used up.
- Returned batches that are not stored (innocents, halves, batches refused for an earlier gap) are sent before all unsent batches,
  in their old order.
- Until the first acknowledgement under an identity, and again after ten idle minutes, only one batch is in flight: a broker without
  producer state accepts any sequence, and would accept the second batch before the first.
- Brokers remember the last five batches of a producer. So the oldest batch without a response is always among the last five numbered ones,
  including those that have a response: while one leader hangs, its successor could otherwise accept many more.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final
from uuid import UUID

from chaffinch.client.addresses import Address
from chaffinch.errors import KafkaException
from chaffinch.identifiers import NO_PRODUCER, SEQUENCE_MODULUS, ProducerIdentity, TopicPartition, sequence_add
from chaffinch.producer.core.batches.batch import BatchFutures, Move, ProducerBatch
from chaffinch.producer.core.options import IDEMPOTENT_IN_FLIGHT_MAX

BROKER_REMEMBERED_BATCHES: Final = IDEMPOTENT_IN_FLIGHT_MAX
# A broker may have forgotten the producer after this long without a batch.
IDLE_MS_MAX: Final = 600_000


class PredecessorState(Enum):
    """State of the batches with lower sequence numbers: the possible cause of a gap that a broker reports."""

    CLEAR = "all are stored"
    OPEN = "one is still under way"
    FAILED = "one was given up, and may or may not be stored"
    UNSTORED = "one is certainly not stored"


def _position(batch: ProducerBatch) -> int:
    return batch.position


@dataclass(slots=True, eq=False)
class PartitionQueue:
    """The numbered batches of one partition. The caller takes `next_batch`, sends it, and reports its outcome."""

    topic_partition: TopicPartition
    is_idempotent: bool = field(kw_only=True)
    limit: int = field(default=BROKER_REMEMBERED_BATCHES, kw_only=True)
    """Maximum number of batches in flight."""
    is_transactional: bool = field(default=False, kw_only=True)
    """Sequence numbers are reused, because the epoch cannot change within a transaction."""
    in_flight: list[ProducerBatch] = field(default_factory=list, init=False)
    """Sent, without a response, in the order of their sequences."""
    retries: list[ProducerBatch] = field(default_factory=list, init=False)
    """To be sent again under their old sequence numbers, in that order, which is also the order of their positions."""
    returned: list[ProducerBatch] = field(default_factory=list, init=False)
    """Certainly not stored: they get new sequence numbers and are sent before the batches in the accumulator."""
    is_held: bool = field(default=False, init=False)
    not_before_ms: int = field(default=0, init=False)
    last_error: KafkaException | None = field(default=None, init=False)
    """Cause of the last retry since a batch was written: the batches after it wait for the same reason."""
    last_error_of_ms: int = field(default=0, init=False)
    """When that batch was created."""
    _identity: ProducerIdentity = field(default=NO_PRODUCER, init=False)
    _sequence_next: int = field(default=0, init=False)
    _numbered: int = field(default=0, init=False)
    _acknowledged_ms: int | None = field(default=None, init=False)
    _new_ordinal: int = field(default=0, init=False)
    """Batches with a lower ordinal may have been sent to an earlier topic of the same name."""
    # The rest describes failures since the sequence last restarted.
    _restart_sequence: int | None = field(default=None, init=False)
    _is_used_up: bool = field(default=False, init=False)
    _failed_position: int | None = field(default=None, init=False)
    _unstored_position: int | None = field(default=None, init=False)
    _acknowledged_position: int = field(default=-1, init=False)
    """Position of the last batch that the broker has acknowledged."""

    def __post_init__(self) -> None:
        too_many = f"{self.limit} batches in flight are more than brokers remember"
        assert not self.is_idempotent or self.limit <= BROKER_REMEMBERED_BATCHES, too_many

    @property
    def is_drained(self) -> bool:
        """Whether every numbered batch has a response or was given up."""
        return not (self.in_flight or self.retries)

    def silent_since_ms(self, batch: ProducerBatch) -> int:
        """The time from which a batch in flight, or an earlier one, has had no response."""
        return max(batch.sent_ms, self._acknowledged_ms or 0)

    def batches(self) -> Iterable[ProducerBatch]:
        """All batches in flight, to be retried, or returned."""
        return (*self.in_flight, *self.retries, *self.returned)

    def needs_epoch(self, identity: ProducerIdentity) -> bool:
        """Whether the sequence must restart under a new epoch, and `identity` is still the used-up one."""
        return self._is_used_up and self.is_drained and identity == self._identity

    def accepts_batch(self, steady_ms: int, identity: ProducerIdentity) -> bool:
        """Whether a batch may be sent now, if there is one: the next retry, a returned batch, or a new one."""
        if steady_ms < self.not_before_ms:
            return False
        if self.retries:
            return not self.in_flight and self.retries[0].retry_at_ms <= steady_ms
        if self.is_held or (self.is_idempotent and identity != self._identity):
            return self.is_drained and not self.needs_epoch(identity)
        return not self._is_full(steady_ms)

    def _is_full(self, steady_ms: int) -> bool:
        if not self.in_flight or not self.is_idempotent:
            return len(self.in_flight) >= self.limit
        is_fresh = self._acknowledged_ms is None or steady_ms - self._acknowledged_ms > IDLE_MS_MAX
        return is_fresh or self._numbered - self.in_flight[0].ordinal >= self.limit

    def next_batch(self, steady_ms: int, identity: ProducerIdentity, take_new: Callable[[], ProducerBatch | None]) -> ProducerBatch | None:
        """Take the batch to send now, with sequence numbers and in flight; None if there is none. Requires `accepts_batch`."""
        assert self.accepts_batch(steady_ms, identity), f"{self.topic_partition} may not send now"
        if self.retries:
            batch = self.retries.pop(0)
        else:
            found = self.returned.pop(0) if self.returned else take_new()
            if found is None:
                return None
            batch = found
            self._begin(identity)
            if self.is_idempotent:
                batch.number(self._identity, self._sequence_next, self._numbered, is_transactional=self.is_transactional)
                self._sequence_next = batch.sequence_after
                self._numbered += 1
        batch.is_topic_recreated = False
        batch.move(Move.SEND)
        self.in_flight.append(batch)
        return batch

    def inline_sequence(self, steady_ms: int, identity: ProducerIdentity) -> int | None:
        """The sequence number of a record that is sent inline now. None if a batch is under way or the sequence does not simply continue:
        then `next_batch` decides, as always without idempotence.
        """
        if self.in_flight or self.retries or self.returned or self.is_held or steady_ms < self.not_before_ms:
            return None
        return self._sequence_next if self.is_idempotent and identity == self._identity else None

    def complete_inline(self, futures: BatchFutures, outcome: Any, steady_ms: int) -> bool:
        """Complete a record that was sent inline under `inline_sequence`, and advance the sequence. It was never in flight here.

        Returns False, and changes nothing, if other threads watch its future.
        """
        sequence, numbered = sequence_add(self._sequence_next, 1), self._numbered + 1
        # There is no call from here on, because signal handlers run during calls: no thread may start to watch the future in between, no
        # used sequence number may be reused, and no callback may run twice.
        if futures.watched:
            return False
        self._sequence_next, self._numbered, self._acknowledged_ms, self.last_error = sequence, numbered, steady_ms, None
        futures.outcome = outcome
        return True

    def _begin(self, identity: ProducerIdentity) -> None:
        """Before a batch gets its sequence numbers: adopt a new identity, or restart the sequence, once the partition has drained."""
        if identity != self._identity:
            self._identity, self._sequence_next, self._acknowledged_ms = identity, 0, None
        elif self.is_held:
            assert self._restart_sequence is not None, f"{self.topic_partition} restarts nowhere"
            self._sequence_next = self._restart_sequence
        else:
            return
        self.is_held, self._is_used_up, self._restart_sequence = False, False, None
        self._failed_position = self._unstored_position = None
        self._acknowledged_position = -1

    def predecessor_state(self, batch: ProducerBatch) -> PredecessorState:
        """State of the batches with lower sequence numbers than this one, which is in flight."""
        if self._unstored_position is not None and self._unstored_position < batch.position:
            return PredecessorState.UNSTORED
        if any(other.position < batch.position for other in (*self.in_flight, *self.retries)):
            return PredecessorState.OPEN
        return (
            PredecessorState.FAILED
            if self._failed_position is not None and self._failed_position < batch.position
            else PredecessorState.CLEAR
        )

    def acknowledged(self, batch: ProducerBatch, steady_ms: int) -> None:
        """The broker has stored the batch."""
        self._remove(batch, Move.END)
        self.last_error = None
        self._acknowledged_position = max(self._acknowledged_position, batch.position)
        if batch.ordinal >= self._new_ordinal:
            self._acknowledged_ms = steady_ms
        if self._restart_sequence is not None and _distance(self._restart_sequence, batch.base_sequence) < SEQUENCE_MODULUS // 2:
            # A broker without producer state accepted it although an earlier batch is not stored: those sequence numbers are lost.
            self._is_used_up = True

    def skip_backoff(self, destination: tuple[Address, UUID], steady_ms: int) -> None:
        """Skip the backoff of the next retry if its last attempt went to a leader or topic other than `destination`."""
        if self.retries and self.retries[0].sent_to != destination:
            self.retries[0].retry_at_ms = min(self.retries[0].retry_at_ms, steady_ms)

    def producer_state_lost(self, *, is_topic_new: bool = False) -> None:
        """The topic was deleted and created again: its leaders have no producer state, whatever the old ones still respond.

        `is_topic_new`: its id was never seen before, so no batch in flight was sent to it by id.
        """
        self._acknowledged_ms = None
        self._new_ordinal = self._numbered
        if is_topic_new:
            for batch in (*self.in_flight, *self.retries):
                batch.is_topic_recreated = True

    def retry(self, batch: ProducerBatch, retry_at_ms: int) -> None:
        """Retry the batch under its own sequence numbers."""
        self._remove(batch, Move.RETRY)
        self.last_error, self.last_error_of_ms = batch.last_error, batch.created_ms
        batch.retry_at_ms = retry_at_ms
        insort(self.retries, batch, key=_position)

    def failed(self, batch: ProducerBatch, *, is_unstored: bool = False) -> None:
        """End a failed batch. Its sequence numbers are lost, or reused in a transaction if it is certainly not stored."""
        self._leave(batch, Move.END, is_unstored=is_unstored)

    def _leave(self, batch: ProducerBatch, move: Move, *, is_unstored: bool) -> None:
        self._remove(batch, move)
        if batch.has_sequence:
            self._hold(batch, is_unstored=is_unstored)

    def replace(self, batch: ProducerBatch, children: Iterable[ProducerBatch]) -> None:
        """Replace a refused batch with others: its innocents, or its halves."""
        self._remove(batch, Move.END)
        if batch.has_sequence:
            self._hold(batch, is_unstored=True, is_expected=True)
        for child in children:
            self.add(child)

    def add(self, batch: ProducerBatch) -> None:
        """Add a batch without sequence numbers, to be sent before the batches in the accumulator."""
        batch.move(Move.RETURN)
        insort(self.returned, batch, key=_position)

    def renumber(self, batch: ProducerBatch, *, is_expected: bool) -> None:
        """Retry a batch that is certainly not stored under new sequence numbers. `is_expected`: as for `_hold`."""
        self._remove(batch, Move.RETURN)
        self._hold(batch, is_unstored=True, is_expected=is_expected)
        self._return(batch)

    def _return(self, batch: ProducerBatch) -> None:
        batch.clear_sequence()
        insort(self.returned, batch, key=_position)

    def _hold(self, batch: ProducerBatch, *, is_unstored: bool, is_expected: bool = False) -> None:
        """Hold the partition until the sequence restarts: at this batch if its numbers may be reused, otherwise under another epoch.

        `is_expected`: as far as is known, the broker would accept another batch under these sequence numbers.
        """
        self.is_held = True
        self._failed_position = _lower(self._failed_position, batch.position)
        if is_unstored:
            self._unstored_position = _lower(self._unstored_position, batch.position)
        self._take_back(batch.position)
        # The decision may come late, after a call of the exception handler. A broker without state may have accepted later batches by then.
        is_passed = self._acknowledged_position > batch.position
        if is_passed or not (is_unstored and (is_expected or self.is_transactional)):
            self._is_used_up = True
            return
        taken = self._restart_sequence
        # The lowest of several, by the distance to the next sequence, because sequence numbers wrap.
        if taken is None or _distance(batch.base_sequence, self._sequence_next) > _distance(taken, self._sequence_next):
            self._restart_sequence = batch.base_sequence

    def _take_back(self, position: int) -> None:
        """Return the later batches that wait for a retry and are certainly not stored: their sequence numbers would be refused."""
        for other in [b for b in self.retries if b.position > position and not b.possibly_stored]:
            self._remove(other, Move.RETURN)
            self._return(other)

    def take_unstored(self) -> list[ProducerBatch]:
        """Remove all batches that wait to be sent again and are certainly not stored, in order. Their sequence numbers are released."""
        unstored = [batch for batch in self.retries if not batch.possibly_stored]
        for batch in unstored:
            self._leave(batch, Move.PUT_BACK, is_unstored=True)
            batch.clear_sequence()
        returned, self.returned = self.returned, []
        for batch in returned:
            batch.move(Move.PUT_BACK)
        return sorted([*unstored, *returned], key=_position)

    def drop_returned(self) -> list[ProducerBatch]:
        """Give up the returned batches."""
        dropped, self.returned = self.returned, []
        for batch in dropped:
            batch.move(Move.END)
        return dropped

    def drop_waiting(self) -> list[ProducerBatch]:
        """Give up the returned batches and the retries. Batches in flight stay until their response."""
        numbered, self.retries = self.retries, []
        for batch in numbered:
            batch.move(Move.END)
        returned = self.drop_returned()
        for batch in numbered:
            self._hold(batch, is_unstored=not batch.possibly_stored)
        return [*numbered, *returned]

    def _remove(self, batch: ProducerBatch, move: Move) -> None:
        for batches in (self.in_flight, self.retries, self.returned):
            if batch in batches:
                batch.move(move)  # May raise: then the batch stays where it is.
                batches.remove(batch)
                return
        raise AssertionError(f"{batch.topic_partition}: a batch that is not under way")


def _lower(position: int | None, other: int) -> int:
    return other if position is None else min(position, other)


def _distance(sequence: int, later: int) -> int:
    """Number of records from one sequence to a later one."""
    return (later - sequence) % SEQUENCE_MODULUS
