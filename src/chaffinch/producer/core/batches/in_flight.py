"""What is under way for one partition: batches that were numbered, in which order they go again, and when numbering starts anew.

The rules, from Sender.java, TransactionManager.java and decision 14 of the design:
- Batches are numbered when first sent. A batch whose answer was lost goes again under its old number, so that the broker recognises it.
- While a numbered batch waits to go again, only the one with the lowest number may be sent.
- After a definitive failure the numbers behind it are of no use. The partition then holds: it starts no new batch until everything
  numbered has an answer or is given up. Then numbering restarts: where the failed batch began, or under a new epoch at 0.
- Numbers are given again only when their batch is surely not stored, and when the broker refused it for its records, not for its
  number; in a transaction for whatever reason, because the epoch cannot change there: it is used up when that is not possible.
- Batches that came back without being stored (innocents, halves, batches refused for a gap in front of them) go before everything
  that waits, in their old order.
- Until the first acknowledgement under an identity, and again after ten idle minutes, one batch is in flight: a broker without state
  accepts any sequence, and would accept the second batch before the first.
- Brokers remember the last five batches. So the oldest one without an answer is always among the last five that were numbered, those
  included that have their answer: behind a leader that hangs, the next one could take many more meanwhile.
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
# After so long without a batch a broker may have forgotten the producer.
IDLE_MS_MAX: Final = 600_000


class PredecessorState(Enum):
    """What is known of the batches with lower numbers than one: why a broker may have found a gap before it."""

    CLEAR = "all are stored"
    OPEN = "one is still under way"
    FAILED = "one is given up, and may be stored or not"
    UNSTORED = "one is surely not stored"


def _position(batch: ProducerBatch) -> int:
    return batch.position


@dataclass(slots=True, eq=False)
class PartitionQueue:
    """One partition's numbered batches. Its owner asks `next_batch`, sends it, and reports what became of it."""

    topic_partition: TopicPartition
    is_idempotent: bool = field(kw_only=True)
    limit: int = field(default=BROKER_REMEMBERED_BATCHES, kw_only=True)
    """How many may be in flight."""
    is_transactional: bool = field(default=False, kw_only=True)
    """Numbers are taken back, because within a transaction the epoch cannot change."""
    in_flight: list[ProducerBatch] = field(default_factory=list, init=False)
    """Sent and not answered, in the order of their sequences."""
    retries: list[ProducerBatch] = field(default_factory=list, init=False)
    """To be sent again under their old numbers, in the order of their sequences, which is that of their positions."""
    returned: list[ProducerBatch] = field(default_factory=list, init=False)
    """Surely not stored, to be numbered anew, before anything that waits in the accumulator."""
    is_held: bool = field(default=False, init=False)
    not_before_ms: int = field(default=0, init=False)
    last_error: KafkaException | None = field(default=None, init=False)
    """Why a batch had to go again last, since one was written: what waits behind it waits for the same reason."""
    last_error_of_ms: int = field(default=0, init=False)
    """When that batch was created."""
    _identity: ProducerIdentity = field(default=NO_PRODUCER, init=False)
    _sequence_next: int = field(default=0, init=False)
    _numbered: int = field(default=0, init=False)
    _acknowledged_ms: int | None = field(default=None, init=False)
    _new_ordinal: int = field(default=0, init=False)
    """Batches numbered before it may have gone to another topic of the same name."""
    # What follows is of the failures since numbering last began.
    _restart_sequence: int | None = field(default=None, init=False)
    _is_used_up: bool = field(default=False, init=False)
    _failed_position: int | None = field(default=None, init=False)
    _unstored_position: int | None = field(default=None, init=False)
    _acknowledged_position: int = field(default=-1, init=False)
    """Of the last batch the broker has."""

    def __post_init__(self) -> None:
        too_many = f"{self.limit} batches in flight are more than brokers remember"
        assert not self.is_idempotent or self.limit <= BROKER_REMEMBERED_BATCHES, too_many

    @property
    def is_drained(self) -> bool:
        """Whether every number given has its answer or was given up."""
        return not (self.in_flight or self.retries)

    def silent_since_ms(self, batch: ProducerBatch) -> int:
        """Since when a batch in flight, or one before it, has had no answer."""
        return max(batch.sent_ms, self._acknowledged_ms or 0)

    def batches(self) -> Iterable[ProducerBatch]:
        """Everything that is under way or has come back."""
        return (*self.in_flight, *self.retries, *self.returned)

    def needs_epoch(self, identity: ProducerIdentity) -> bool:
        """Whether numbering must restart here and the producer's identity is still the one that is used up."""
        return self._is_used_up and self.is_drained and identity == self._identity

    def accepts_batch(self, steady_ms: int, identity: ProducerIdentity) -> bool:
        """Whether a batch may be sent now, if there is one: the next to go again, one that came back, or a new one."""
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
        """The batch to send now, numbered and counted as in flight; None when there is none. Only while `accepts_batch` says so."""
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
        """Under which sequence a new batch would go now, while nothing is under way and numbering just goes on; None: it is for
        `next_batch` to say, as always without idempotence."""
        if self.in_flight or self.retries or self.returned or self.is_held or steady_ms < self.not_before_ms:
            return None
        return self._sequence_next if self.is_idempotent and identity == self._identity else None

    def complete_inline(self, futures: BatchFutures, outcome: Any, steady_ms: int) -> bool:
        """The broker has one record that went under `inline_sequence`, and has not been in flight here; its future is done, unless others
        than who fetches it are to be told: then False, and nothing is done."""
        sequence, numbered = sequence_add(self._sequence_next, 1), self._numbered + 1
        # From here on nothing is called, for Ctrl-C and other handlers come with calls: none may begin to watch the future in between, no
        # sequence that is used may be given again, and nobody be told twice.
        if futures.watched:
            return False
        self._sequence_next, self._numbered, self._acknowledged_ms, self.last_error = sequence, numbered, steady_ms, None
        futures.outcome = outcome
        return True

    def _begin(self, identity: ProducerIdentity) -> None:
        """Before a batch gets its number: adopt a new identity, or take sequences back, when the partition has drained."""
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
        """What is known of the batches with lower numbers than this one, which is in flight."""
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
        """The broker has the batch."""
        self._remove(batch, Move.END)
        self.last_error = None
        self._acknowledged_position = max(self._acknowledged_position, batch.position)
        if batch.ordinal >= self._new_ordinal:
            self._acknowledged_ms = steady_ms
        if self._restart_sequence is not None and _distance(self._restart_sequence, batch.base_sequence) < SEQUENCE_MODULUS // 2:
            # A broker without state took it although a batch before it was not stored: that one's numbers have been passed.
            self._is_used_up = True

    def skip_backoff(self, destination: tuple[Address, UUID], steady_ms: int) -> None:
        """`destination`: leader and topic. The next batch to go again was sent to another one: it need not wait."""
        if self.retries and self.retries[0].sent_to != destination:
            self.retries[0].retry_at_ms = min(self.retries[0].retry_at_ms, steady_ms)

    def producer_state_lost(self, *, is_topic_new: bool = False) -> None:
        """The topic was deleted and created again: its brokers do not know the producer, whatever the old one still answers.

        `is_topic_new`: its id was never seen before, so nothing in flight was sent to it by id."""
        self._acknowledged_ms = None
        self._new_ordinal = self._numbered
        if is_topic_new:
            for batch in (*self.in_flight, *self.retries):
                batch.is_topic_recreated = True

    def retry(self, batch: ProducerBatch, retry_at_ms: int) -> None:
        """The batch goes again under its own number."""
        self._remove(batch, Move.RETRY)
        self.last_error, self.last_error_of_ms = batch.last_error, batch.created_ms
        batch.retry_at_ms = retry_at_ms
        insort(self.retries, batch, key=_position)

    def failed(self, batch: ProducerBatch, *, is_unstored: bool = False) -> None:
        """The batch is over, and its numbers with it; or, in a transaction and if it is surely not stored, they are taken back."""
        self._leave(batch, Move.END, is_unstored=is_unstored)

    def _leave(self, batch: ProducerBatch, move: Move, *, is_unstored: bool) -> None:
        self._remove(batch, move)
        if batch.has_sequence:
            self._hold(batch, is_unstored=is_unstored)

    def replace(self, batch: ProducerBatch, children: Iterable[ProducerBatch]) -> None:
        """The broker did not want these records; others go in their place: innocents, or halves."""
        self._remove(batch, Move.END)
        if batch.has_sequence:
            self._hold(batch, is_unstored=True, is_expected=True)
        for child in children:
            self.add(child)

    def add(self, batch: ProducerBatch) -> None:
        """A batch without a number goes before everything that waits in the accumulator."""
        batch.move(Move.RETURN)
        insort(self.returned, batch, key=_position)

    def renumber(self, batch: ProducerBatch, *, is_expected: bool) -> None:
        """The batch is surely not stored, and goes again under another number. `is_expected`: its own was right, but for one before it."""
        self._remove(batch, Move.RETURN)
        self._hold(batch, is_unstored=True, is_expected=is_expected)
        self._return(batch)

    def _return(self, batch: ProducerBatch) -> None:
        batch.clear_sequence()
        insort(self.returned, batch, key=_position)

    def _hold(self, batch: ProducerBatch, *, is_unstored: bool, is_expected: bool = False) -> None:
        """Numbering will restart: below this batch, if its numbers may be given again, else under another epoch.

        `is_expected`: as far as anybody knows the broker would take another batch under its number.
        """
        self.is_held = True
        self._failed_position = _lower(self._failed_position, batch.position)
        if is_unstored:
            self._unstored_position = _lower(self._unstored_position, batch.position)
        self._take_back(batch.position)
        # What failed may be judged late, a handler being asked: a broker without state has taken what came behind it meanwhile.
        is_passed = self._acknowledged_position > batch.position
        if is_passed or not (is_unstored and (is_expected or self.is_transactional)):
            self._is_used_up = True
            return
        taken = self._restart_sequence
        # The lowest of several: distance to the next sequence decides, because sequences wrap.
        if taken is None or _distance(batch.base_sequence, self._sequence_next) > _distance(taken, self._sequence_next):
            self._restart_sequence = batch.base_sequence

    def _take_back(self, position: int) -> None:
        """Batches behind one that failed, which wait under numbers of no use and are surely not stored, need not be refused once more."""
        for other in [b for b in self.retries if b.position > position and not b.possibly_stored]:
            self._remove(other, Move.RETURN)
            self._return(other)

    def take_unstored(self) -> list[ProducerBatch]:
        """Take out everything that waits to go again and is surely not stored, in order; its numbers are not used."""
        unstored = [batch for batch in self.retries if not batch.possibly_stored]
        for batch in unstored:
            self._leave(batch, Move.PUT_BACK, is_unstored=True)
            batch.clear_sequence()
        returned, self.returned = self.returned, []
        for batch in returned:
            batch.move(Move.PUT_BACK)
        return sorted([*unstored, *returned], key=_position)

    def drop_returned(self) -> list[ProducerBatch]:
        """Give up what is to be numbered again."""
        dropped, self.returned = self.returned, []
        for batch in dropped:
            batch.move(Move.END)
        return dropped

    def drop_waiting(self) -> list[ProducerBatch]:
        """Give up what came back and what waits to go again; what is in flight stays until its answer."""
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
                batch.move(move)  # May refuse: the batch is where it was then.
                batches.remove(batch)
                return
        raise AssertionError(f"{batch.topic_partition}: a batch that is not under way")


def _lower(position: int | None, other: int) -> int:
    return other if position is None else min(position, other)


def _distance(sequence: int, later: int) -> int:
    """How many records lie from one sequence to a later one."""
    return (later - sequence) % SEQUENCE_MODULUS
