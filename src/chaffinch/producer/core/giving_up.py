"""Batches that end without an answer: time is up, their transaction has failed, or the producer ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from chaffinch.errors import KafkaException, Stored, TimeoutException, TransactionAbortableException
from chaffinch.producer.core.batches.accumulator import Accumulator
from chaffinch.producer.core.batches.batch import ProducerBatch
from chaffinch.producer.core.batches.in_flight import PartitionQueue
from chaffinch.producer.core.batches.partition_queues import PartitionQueues
from chaffinch.producer.core.endings import Endings
from chaffinch.producer.core.refusals.late_errors import dropped_with_transaction, expired, given_up
from chaffinch.producer.core.transactions.manager import TransactionManager
from chaffinch.producer.core.transactions.moves import State
from chaffinch.producer.core.waiting_batches import WaitingBatches
from chaffinch.producer.core.wiring import Wiring


class GivingUp:
    """`waiting` knows why batches wait, `reason_for_waiting` why nothing has been sent lately."""

    def __init__(
        self,
        wiring: Wiring,
        accumulator: Accumulator,
        queues: PartitionQueues,
        endings: Endings,
        transaction: TransactionManager | None,
        waiting: WaitingBatches,
        reason_for_waiting: Callable[[], KafkaException | None],
    ) -> None:
        self._wiring = wiring
        self._accumulator = accumulator
        self._queues = queues
        self._endings = endings
        self._transaction = transaction
        self._waiting = waiting
        self._reason_for_waiting = reason_for_waiting
        self.expired_count = 0
        """Records whose delivery timeout was over, since the start."""
        self.expired_why: KafkaException | None = None
        """What the last of them waited for, as far as anybody knew."""
        self.closed_count = 0
        """Records that close gave up, when its own time was over."""
        self.closed_why: KafkaException | None = None
        """The same for these."""

    def expire(self, now_ms: int) -> None:
        """Fail every batch whose delivery timeout is over. One whose answer is awaited keeps its numbers until the answer comes."""
        too_old_ms = now_ms - self._wiring.delivery_timeout_ms
        oldest_ms = self._accumulator.oldest_ms()
        if oldest_ms is not None and oldest_ms <= too_old_ms:
            for batch in self._accumulator.take_expired(too_old_ms):
                self._endings.fail(batch, self._expired(batch, is_awaited=False))
        for queue in self._queues.busy():
            self._expire_queue(queue, too_old_ms)

    def _expire_queue(self, queue: PartitionQueue, too_old_ms: int) -> None:
        for batch in [b for b in queue.in_flight if b.created_ms <= too_old_ms and not b.is_done]:
            error = self._expired(batch, is_awaited=True)
            self._endings.abandon(batch, error)
            if self._transaction is not None:
                self._endings.out += self._transaction.record_failed(error)
        for batch in [b for b in (*queue.retries, *queue.returned) if b.created_ms <= too_old_ms]:
            self._endings.end(batch, self._expired(batch, is_awaited=False), is_unstored=not batch.possibly_stored)

    def _expired(self, batch: ProducerBatch, *, is_awaited: bool) -> KafkaException:
        # Of a batch that never went: what all wait for, or what the one in front of it was told.
        own = self._waiting.error_of(batch) or self._reason_for_waiting()
        cause = own or self._error_of_front(batch)
        self.expired_count, self.expired_why = self.expired_count + batch.count, cause
        is_of_front = own is None and cause is not None
        error = expired(batch, self._wiring.delivery_timeout_ms, cause, is_awaited=is_awaited, is_of_front=is_of_front)
        return self._endings.in_words(error)

    def _error_of_front(self, batch: ProducerBatch) -> KafkaException | None:
        """Unless the one in front was over before this one came."""
        queue = self._queues.get(batch.topic_partition)
        if queue is None or batch.created_ms > queue.last_error_of_ms + self._wiring.delivery_timeout_ms:
            return None
        return queue.last_error

    def next_deadline_ms(self) -> int | None:
        """When the first batch expires."""
        oldest_ms = self._accumulator.oldest_ms()
        times = [] if oldest_ms is None else [oldest_ms]
        for queue in self._queues.busy():
            times += [batch.created_ms for batch in queue.batches() if not batch.is_done]
        return min(times) + self._wiring.delivery_timeout_ms if times else None

    def drop_unsent(self) -> None:
        """The transaction has failed or is being aborted: what is not under way fails with it."""
        transaction = self._transaction
        assert transaction is not None, "only a transaction's records fail together"
        gives_up = transaction.state in (State.ABORTING, State.FATAL_ERROR)
        for batch in self._take_all():
            self._endings.tell(batch, self._dropped(transaction, batch))
        for queue in self._queues.busy():
            if gives_up:
                dropped = queue.drop_waiting()
            else:
                dropped, queue.returned = queue.returned, []
            for batch in dropped:
                self._endings.tell(batch, self._dropped(transaction, batch))

    @staticmethod
    def _dropped(transaction: TransactionManager, batch: ProducerBatch) -> KafkaException:
        return dropped_with_transaction(batch, transaction.error, is_final=transaction.state is State.FATAL_ERROR)

    def close(self) -> None:
        """The time of close is up: what has no outcome fails, and its transaction with it, which must not be committed without."""
        counts, why = self._wiring.counts, self.reason()
        failed_before = counts["records_failed"]
        late = TimeoutException("the producer was closed before this record had its outcome", stored=Stored.NO)
        self.give_up(self._endings.in_words(late))
        given_up_count = counts["records_failed"] - failed_before
        if not given_up_count:
            return
        self.closed_count, self.closed_why = self.closed_count + given_up_count, why
        if self._transaction is not None:
            text = "the transaction cannot be committed: the producer was closed before all of its records had their outcome"
            self._endings.out += self._transaction.record_failed(TransactionAbortableException(text, stored=Stored.NO))

    def reason(self) -> KafkaException | None:
        """Why what is under way has no outcome yet: what some batch was told last, else what all wait for."""
        return self._waiting.reason() or self._reason_for_waiting()

    def give_up(self, error: KafkaException) -> None:
        """Fail everything that has no outcome: the producer is being closed, or nothing can be written any more."""
        for batch in self._take_all():
            self._endings.tell(batch, self._given_up(batch, error, is_awaited=False))
        for queue in self._queues.busy():
            for batch in queue.drop_waiting():
                self._endings.tell(batch, self._given_up(batch, error, is_awaited=False))
            for batch in [b for b in queue.in_flight if not b.is_done]:
                self._endings.abandon(batch, self._given_up(batch, error, is_awaited=True))

    def _given_up(self, batch: ProducerBatch, error: KafkaException, *, is_awaited: bool) -> KafkaException:
        return given_up(batch, error, self._waiting.error_of(batch), is_awaited=is_awaited)

    def _take_all(self) -> Iterator[ProducerBatch]:
        """Empty the accumulator, of batches that are not to be sent."""
        for topic_partition in self._accumulator.partitions():
            while (batch := self._accumulator.take(topic_partition, is_to_be_sent=False)) is not None:
                yield batch
