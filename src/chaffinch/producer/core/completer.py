"""BatchCompleter: gives each record its one outcome, frees its memory, and fails its transaction with it.

Batches end with a response (`complete`, `end` and `fail_records`, called by `produce_response_handler.py`), or without one: they expire
(`expire_batches`, `delivery.timeout.ms`), the transaction has failed (`drop_unsent`), or the producer is closed (`close`, `give_up`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from chaffinch.errors import Group, KafkaException, Stored, TimeoutException, TransactionAbortableException, group_of
from chaffinch.errors.copies import copy_for_raise
from chaffinch.errors.handling import ADVICE_IF_ABORTED, ADVICE_IF_CLOSED
from chaffinch.producer.core.batches.batch import BatchState, Move, ProducerBatch
from chaffinch.producer.core.batches.in_flight import PartitionQueue
from chaffinch.producer.core.batches.outstanding import Outstanding
from chaffinch.producer.core.callers import Callers
from chaffinch.producer.core.context import ProducerContext
from chaffinch.producer.core.effects import CompleteBatch, FailRecords, WakeCallers
from chaffinch.producer.core.refusals.errors import as_abortable, dropped_with_transaction_error, expiry_error, given_up_error
from chaffinch.producer.core.refusals.wait_causes import WaitCauses
from chaffinch.producer.core.transactions.moves import State

Errors: TypeAlias = Mapping[int, KafkaException]
"""Each record's own error, by its index in the batch."""
Indices: TypeAlias = frozenset[int]
NO_ERRORS: Final[Errors] = {}
NOTHING_DROPPED: Final[Indices] = frozenset()


class BatchCompleter:
    """The only writer of outcomes."""

    def __init__(self, context: ProducerContext, outstanding: Outstanding, callers: Callers, wait_causes: WaitCauses) -> None:
        self._context = context
        self._outstanding = outstanding
        self._callers = callers
        self._wait_causes = wait_causes
        self.expired_count = 0
        """Number of records that have expired (`delivery.timeout.ms`) since the start."""
        self.expired_cause: KafkaException | None = None
        """Cause of the wait of the last expired record, if known."""
        self.closed_count = 0
        """Number of records that were given up at close's deadline."""
        self.closed_cause: KafkaException | None = None
        """Cause of their wait, if known."""

    # With a response.

    def complete(self, batch: ProducerBatch, base_offset: int, log_append_time_ms: int) -> None:
        """Every record is written."""
        self._context.counts["batches_written"] += 1
        self._context.counts["records_written"] += batch.count
        self.release(batch.memory_bytes)
        self._context.out.append(CompleteBatch(batch=batch, base_offset=base_offset, log_append_time_ms=log_append_time_ms))

    def end(
        self,
        batch: ProducerBatch,
        error: KafkaException,
        errors: Errors = NO_ERRORS,
        dropped: Indices = NOTHING_DROPPED,
        *,
        is_unstored: bool,
    ) -> None:
        """End a batch in flight, to be retried, or returned: every record fails, unless it has its outcome already."""
        was_abandoned = batch.is_abandoned
        self._outstanding.queue(batch.topic_partition).failed(batch, is_unstored=is_unstored)
        if not was_abandoned:
            self.fail(batch, error, errors, dropped)

    def fail(self, batch: ProducerBatch, error: KafkaException, errors: Errors = NO_ERRORS, dropped: Indices = NOTHING_DROPPED) -> None:
        """Fail every record: those in `errors` with their own error, the others with `error`. Their transaction fails, too."""
        if self._context.transaction is not None:
            error = self._context.transaction.explained(error)
        self._fail_all(batch, error, errors, dropped)
        self.fail_transaction(errors[min(errors)] if errors else error)

    def fail_records(self, batch: ProducerBatch, errors: Errors, dropped: Indices = NOTHING_DROPPED) -> None:
        """Fail only the records in `errors`, and drop those in `dropped`. The other records continue in new batches."""
        self._context.counts["records_failed"] += len(errors)
        self._context.counts["records_dropped"] += len(dropped)
        self._context.out.append(FailRecords(batch=batch, error=None, errors=errors, dropped=dropped))

    def fail_transaction(self, error: KafkaException) -> None:
        """Fail the transaction, if there is one, because of a record's error: it cannot be committed."""
        if self._context.transaction is not None:
            self._context.out += self._context.transaction.record_failed(error)

    def release(self, memory_bytes: int) -> None:
        """Free `memory_bytes` of `buffer.memory`, and wake the callers that wait for memory."""
        self._outstanding.accumulator.release(memory_bytes)
        if self._callers.memory_waiters:
            self._context.out.append(WakeCallers())

    def as_record_error(self, error: KafkaException) -> KafkaException:
        """The error for records: in a transaction an abortable one (decision 30), or the error that made the producer unusable."""
        transaction = self._context.transaction
        if transaction is None:
            return error
        if transaction.state is not State.FATAL_ERROR or transaction.error is None:
            return as_abortable(error)
        fatal = copy_for_raise(transaction.error)
        fatal.topic_partition, fatal.stored = error.topic_partition, error.stored
        return fatal

    def _fail_all(
        self, batch: ProducerBatch, error: KafkaException, errors: Errors = NO_ERRORS, dropped: Indices = NOTHING_DROPPED
    ) -> None:
        """Fail every record, without failing the transaction."""
        if batch.state is BatchState.WAITING:  # It is in no queue.
            batch.move(Move.END)
        self._context.counts["records_failed"] += batch.count - len(dropped)
        self._context.counts["records_dropped"] += len(dropped)
        self.release(batch.memory_bytes)
        self._context.out.append(FailRecords(batch=batch, error=self._with_advice(error), errors=errors, dropped=dropped))

    def _with_advice(self, error: KafkaException) -> KafkaException:
        """Copy the error with other advice if its transaction is being aborted already, or the producer is being closed."""
        transaction = self._context.transaction
        if transaction is None or group_of(error) is not Group.TRANSACTION_ABORTABLE:
            return error
        is_closing = self._callers.close_deadline_ms is not None or transaction.callers.is_closing
        if not is_closing and transaction.state is not State.ABORTING:
            return error
        advised = copy_for_raise(error)
        advised.advised = ADVICE_IF_CLOSED if is_closing else ADVICE_IF_ABORTED
        return advised

    # Without a response: the delivery timeout.

    def expire_batches(self, steady_ms: int) -> None:
        """Fail every batch that is older than `delivery.timeout.ms`. A batch in flight keeps its sequence numbers until the response."""
        too_old_ms = steady_ms - self._context.delivery_timeout_ms
        accumulator = self._outstanding.accumulator
        oldest_ms = accumulator.oldest_ms()
        if oldest_ms is not None and oldest_ms <= too_old_ms:
            for batch in accumulator.take_expired(too_old_ms):
                self.fail(batch, self._count_expired(batch, is_awaited=False))
        for queue in self._outstanding.busy():
            self._expire_queue(queue, too_old_ms)

    def _expire_queue(self, queue: PartitionQueue, too_old_ms: int) -> None:
        for batch in [b for b in queue.in_flight if b.created_ms <= too_old_ms and not b.is_abandoned]:
            error = self._count_expired(batch, is_awaited=True)
            batch.move(Move.ABANDON)
            self._fail_all(batch, error)
            self.fail_transaction(error)
        for batch in [b for b in (*queue.retries, *queue.returned) if b.created_ms <= too_old_ms]:
            self.end(batch, self._count_expired(batch, is_awaited=False), is_unstored=not batch.possibly_stored)

    def _count_expired(self, batch: ProducerBatch, *, is_awaited: bool) -> KafkaException:
        """Count the records of an expired batch, and make their error. `is_awaited`: a request is in flight."""
        # For a batch that was never sent: the cause that holds up all batches, or the last error of the preceding batch.
        own = self._wait_causes.error_of(batch) or self._wait_causes.general_cause()
        cause = own or self._error_of_predecessor(batch)
        self.expired_count, self.expired_cause = self.expired_count + batch.count, cause
        is_of_predecessor = own is None and cause is not None
        error = expiry_error(batch, self._context.delivery_timeout_ms, cause, is_awaited=is_awaited, is_of_predecessor=is_of_predecessor)
        return self.as_record_error(error)

    def _error_of_predecessor(self, batch: ProducerBatch) -> KafkaException | None:
        """The last error of the preceding batch, unless that batch expired before this one was created."""
        queue = self._outstanding.known_queue(batch.topic_partition)
        if queue is None or batch.created_ms > queue.last_error_of_ms + self._context.delivery_timeout_ms:
            return None
        return queue.last_error

    def next_deadline_ms(self) -> int | None:
        """When the next batch expires."""
        oldest_ms = self._outstanding.oldest_ms()
        return None if oldest_ms is None else oldest_ms + self._context.delivery_timeout_ms

    # Without a response: the transaction has failed, or the producer is closed.

    def drop_unsent(self) -> None:
        """Fail the batches that are not in flight, because the transaction has failed or is being aborted."""
        transaction = self._context.transaction
        assert transaction is not None, "only a transaction's records fail together"
        gives_up, is_final = transaction.state in (State.ABORTING, State.FATAL_ERROR), transaction.state is State.FATAL_ERROR
        for batch in self._take_all():
            self._fail_all(batch, dropped_with_transaction_error(batch, transaction.error, is_final=is_final))
        for queue in self._outstanding.busy():
            for batch in queue.drop_waiting() if gives_up else queue.drop_returned():
                self._fail_all(batch, dropped_with_transaction_error(batch, transaction.error, is_final=is_final))

    def close(self) -> None:
        """Close's deadline has passed: fail all records without an outcome, and their transaction, which must not commit without them."""
        counts, why = self._context.counts, self._wait_causes.cause()
        failed_before = counts["records_failed"]
        late = TimeoutException("the producer was closed before this record had its outcome", stored=Stored.NO)
        self.give_up(self.as_record_error(late))
        given_up_count = counts["records_failed"] - failed_before
        if given_up_count:
            self.closed_count, self.closed_cause = self.closed_count + given_up_count, why
            text = "the transaction cannot be committed: the producer was closed before all of its records had their outcome"
            self.fail_transaction(TransactionAbortableException(text, stored=Stored.NO))

    def give_up(self, error: KafkaException) -> None:
        """Fail all records without an outcome: the producer is being closed, or cannot write any more."""
        for batch in self._take_all():
            self._give_up(batch, error, is_awaited=False)
        for queue in self._outstanding.busy():
            for batch in queue.drop_waiting():
                self._give_up(batch, error, is_awaited=False)
            for batch in [b for b in queue.in_flight if not b.is_abandoned]:
                batch.move(Move.ABANDON)
                self._give_up(batch, error, is_awaited=True)

    def _give_up(self, batch: ProducerBatch, error: KafkaException, *, is_awaited: bool) -> None:
        self._fail_all(batch, given_up_error(batch, error, self._wait_causes.error_of(batch), is_awaited=is_awaited))

    def _take_all(self) -> Iterator[ProducerBatch]:
        """Take all batches from the accumulator; they are not sent."""
        accumulator = self._outstanding.accumulator
        for topic_partition in accumulator.partitions():
            while (batch := accumulator.take(topic_partition, is_to_be_sent=False)) is not None:
                yield batch
