"""What is under way for one partition: batches that were numbered, in which order they go again, and when numbering starts anew.

The rules, from Sender.java, TransactionManager.java and decision 14 of the design:
- Batches are numbered when first sent. A batch whose answer was lost goes again under its old number, so that the broker recognises it.
- While a numbered batch waits to go again, only the one with the lowest number may be sent.
- After a definitive failure the numbers behind it are of no use. The partition then holds: it starts no new batch until everything
  numbered has an answer or is given up. Then numbering restarts: under a new epoch at 0, or, in a transaction, where the failed
  batch began.
- Batches that came back without being stored (innocents, halves, batches refused for a gap in front of them) go before everything
  that waits, in their old order.
- Until the first acknowledgement under an identity, and again after ten idle minutes, one batch is in flight: a broker without state
  accepts any sequence, and would accept the second batch before the first.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable
from typing import Final

from chaffinch.identifiers import NO_PRODUCER, ProducerIdentity, TopicPartition
from chaffinch.producer.core.batches import ProducerBatch

# Batches of one partition without an answer. The rules above hold for any number; brokers recognise the last five batches.
IN_FLIGHT_BATCHES_MAX: Final = 1
BROKER_REMEMBERED_BATCHES: Final = 5
# After so long without a batch a broker may have forgotten the producer.
IDLE_MS_MAX: Final = 600_000

assert IN_FLIGHT_BATCHES_MAX <= BROKER_REMEMBERED_BATCHES


def _position(batch: ProducerBatch) -> int:
    return batch.position


class PartitionQueue:
    """One partition's numbered batches. Its owner asks `next_batch`, sends it, and reports what became of it."""

    __slots__ = (
        "_acknowledged_ms",
        "_identity",
        "_is_idempotent",
        "_limit",
        "_restart_sequence",
        "_sequence_next",
        "in_flight",
        "is_held",
        "not_before_ms",
        "retries",
        "returned",
        "topic_partition",
    )

    def __init__(self, topic_partition: TopicPartition, *, is_idempotent: bool, limit: int = IN_FLIGHT_BATCHES_MAX) -> None:
        self.topic_partition = topic_partition
        self.in_flight: list[ProducerBatch] = []
        """Sent and not answered, in the order of their sequences."""
        self.retries: list[ProducerBatch] = []
        """To be sent again under their old numbers, in the order of their sequences, which is that of their positions."""
        self.returned: list[ProducerBatch] = []
        """Surely not stored, to be numbered anew, before anything that waits in the accumulator."""
        self.is_held = False
        self.not_before_ms = 0
        self._is_idempotent = is_idempotent
        self._limit = limit
        self._identity = NO_PRODUCER
        self._sequence_next = 0
        self._restart_sequence: int | None = None
        self._acknowledged_ms: int | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way and nothing has come back."""
        return not (self.in_flight or self.retries or self.returned)

    @property
    def is_drained(self) -> bool:
        """Whether every number given has its answer or was given up."""
        return not (self.in_flight or self.retries)

    def batches(self) -> Iterable[ProducerBatch]:
        """Everything that is under way or has come back."""
        return (*self.in_flight, *self.retries, *self.returned)

    def needs_epoch(self, identity: ProducerIdentity) -> bool:
        """Whether numbering must restart here and the producer's identity is still the one that is used up."""
        return self._is_idempotent and self.is_held and self.is_drained and self._restart_sequence is None and identity == self._identity

    def wants_batch(self, now_ms: int, identity: ProducerIdentity) -> bool:
        """Whether a batch may be sent now, if there is one: the next to go again, one that came back, or a new one."""
        if now_ms < self.not_before_ms or len(self.in_flight) >= self._limit_now(now_ms, identity):
            return False
        if self.retries:
            return not self.in_flight and self.retries[0].retry_at_ms <= now_ms
        if self.is_held or (self._is_idempotent and identity != self._identity):
            return self.is_drained and not self.needs_epoch(identity)
        return True

    def _limit_now(self, now_ms: int, identity: ProducerIdentity) -> int:
        if not self._is_idempotent:
            return self._limit
        is_fresh = self._acknowledged_ms is None or identity != self._identity or now_ms - self._acknowledged_ms > IDLE_MS_MAX
        return 1 if is_fresh else self._limit

    def next_batch(
        self, now_ms: int, identity: ProducerIdentity, take_new: Callable[[], ProducerBatch | None], *, is_transactional: bool = False
    ) -> ProducerBatch | None:
        """The batch to send now, numbered and counted as in flight; None when there is none. Only while `wants_batch` says so."""
        assert self.wants_batch(now_ms, identity), f"{self.topic_partition} may not send now"
        if self.retries:
            batch = self.retries.pop(0)
        else:
            found = self.returned.pop(0) if self.returned else take_new()
            if found is None:
                return None
            batch = found
            self._begin(identity)
            if self._is_idempotent:
                batch.number(self._identity, self._sequence_next, is_transactional=is_transactional)
                self._sequence_next = batch.sequence_after
        self.in_flight.append(batch)
        return batch

    def _begin(self, identity: ProducerIdentity) -> None:
        """Before a batch gets its number: adopt a new identity, or take sequences back, when the partition has drained."""
        if identity != self._identity:
            self._identity, self._sequence_next, self._acknowledged_ms = identity, 0, None
        elif self.is_held and self._restart_sequence is not None:
            self._sequence_next = self._restart_sequence
        self.is_held, self._restart_sequence = False, None

    def acknowledged(self, batch: ProducerBatch, now_ms: int) -> None:
        """The broker has the batch."""
        self._remove(batch)
        if batch.identity == self._identity:
            self._acknowledged_ms = now_ms

    def retry(self, batch: ProducerBatch, retry_at_ms: int) -> None:
        """The batch goes again under its own number."""
        self._remove(batch)
        batch.retry_at_ms = retry_at_ms
        insort(self.retries, batch, key=_position)

    def failed(self, batch: ProducerBatch, *, takes_back: bool = False, instead: Iterable[ProducerBatch] = ()) -> None:
        """The batch is over: its numbers are used up, or, with `takes_back`, free again once the partition has drained.

        `takes_back` is for transactions, where the epoch stays, and only for batches that are surely not stored. `instead` goes in
        its place: innocents, halves, or the batch itself under a new number.
        """
        was_numbered = batch.is_numbered
        self._remove(batch)
        for other in instead:
            insort(self.returned, other, key=_position)
        if not was_numbered:
            return
        self.is_held = True
        if takes_back and batch.identity == self._identity:
            taken = self._restart_sequence
            # The lowest of several: distance from the failed batch to the next sequence decides, because sequences wrap.
            if taken is None or (self._sequence_next - batch.base_sequence) % 2**31 > (self._sequence_next - taken) % 2**31:
                self._restart_sequence = batch.base_sequence

    def drop_waiting(self) -> list[ProducerBatch]:
        """Give up what came back and what waits to go again; what is in flight stays until its answer."""
        dropped, self.returned = self.returned, []
        if self.retries:
            dropped = self.retries + dropped
            self.retries = []
            self.is_held = True
        return dropped

    def _remove(self, batch: ProducerBatch) -> None:
        for batches in (self.in_flight, self.retries, self.returned):
            for index, other in enumerate(batches):
                if other is batch:
                    del batches[index]
                    return
        raise AssertionError(f"{batch.topic_partition}: a batch that is not under way")
