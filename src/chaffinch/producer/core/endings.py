"""How a batch ends: each of its records is told its outcome, once; its memory is free again; its transaction hears of a failure."""

from __future__ import annotations

from collections.abc import Mapping

from chaffinch.errors import Group, KafkaException, group_of
from chaffinch.errors.again import again
from chaffinch.errors.handling import ADVICE_IF_ABORTED, ADVICE_IF_CLOSED
from chaffinch.producer.core.batches.accumulator import Accumulator
from chaffinch.producer.core.batches.batch import ProducerBatch
from chaffinch.producer.core.batches.partition_queues import PartitionQueues
from chaffinch.producer.core.callers import Callers
from chaffinch.producer.core.effects import CompleteBatch, Effect, FailRecords, WakeCallers
from chaffinch.producer.core.refusals.reclassified import as_abortable
from chaffinch.producer.core.transactions.manager import TransactionManager
from chaffinch.producer.core.transactions.moves import State
from chaffinch.producer.core.wiring import Wiring

NOTHING_DROPPED: frozenset[int] = frozenset()


class Endings:
    """Appends the effects to `out`."""

    def __init__(
        self,
        wiring: Wiring,
        accumulator: Accumulator,
        queues: PartitionQueues,
        callers: Callers,
        transaction: TransactionManager | None,
        out: list[Effect],
    ) -> None:
        self.out = out
        self._callers = callers
        self._wiring = wiring
        self._accumulator = accumulator
        self._queues = queues
        self._transaction = transaction

    def complete(self, batch: ProducerBatch, base_offset: int, log_append_time_ms: int) -> None:
        """Every record is written."""
        self._wiring.counts["batches_written"] += 1
        self._wiring.counts["records_written"] += batch.count
        self.release(batch.memory_bytes)
        self.out.append(CompleteBatch(batch=batch, base_offset=base_offset, log_append_time_ms=log_append_time_ms))

    def end(
        self,
        batch: ProducerBatch,
        error: KafkaException,
        errors: Mapping[int, KafkaException] | None = None,
        *,
        is_unstored: bool,
        dropped: frozenset[int] = NOTHING_DROPPED,
    ) -> None:
        """A batch that is under way, or has come back, is over: every record fails, unless it was told already that time was up."""
        self._queues.of(batch.topic_partition).failed(batch, is_unstored=is_unstored)
        if not batch.is_done:
            self.fail(batch, error, errors, dropped=dropped)

    def fail(
        self,
        batch: ProducerBatch,
        error: KafkaException,
        errors: Mapping[int, KafkaException] | None = None,
        *,
        dropped: frozenset[int] = NOTHING_DROPPED,
    ) -> None:
        """Every record fails: those in `errors` with their own, the others with `error`; a transaction fails with them."""
        if self._transaction is not None:
            error = self._transaction.explained(error)
        self.tell(batch, error, errors, dropped=dropped)
        if self._transaction is not None:
            self.out += self._transaction.record_failed(errors[min(errors)] if errors else error)

    def abandon(self, batch: ProducerBatch, error: KafkaException) -> None:
        """Every record of a batch whose answer is awaited fails; it stays in flight, for its numbers, until the answer is in."""
        batch.is_done = True
        self.tell(batch, error)

    def tell(
        self,
        batch: ProducerBatch,
        error: KafkaException,
        errors: Mapping[int, KafkaException] | None = None,
        *,
        dropped: frozenset[int] = NOTHING_DROPPED,
    ) -> None:
        """Every record fails, and the transaction knows why."""
        self._wiring.counts["records_failed"] += batch.count - len(dropped)
        self._wiring.counts["records_dropped"] += len(dropped)
        self.release(batch.memory_bytes)
        batch.memory_bytes = 0
        self.out.append(FailRecords(batch=batch, error=self._with_advice(error), errors=errors or {}, dropped=dropped))

    def _with_advice(self, error: KafkaException) -> KafkaException:
        """What is told to a record asks nobody to abort what is being aborted, or to go on with a producer that is being closed."""
        if self._transaction is None or group_of(error) is not Group.TRANSACTION_ABORTABLE:
            return error
        is_closing = self._callers.closes_by_ms is not None or self._transaction.callers.is_closing
        if not is_closing and self._transaction.state is not State.ABORTING:
            return error
        told = again(error)
        told.advised = ADVICE_IF_CLOSED if is_closing else ADVICE_IF_ABORTED
        return told

    def tell_culprits(self, batch: ProducerBatch, errors: Mapping[int, KafkaException], dropped: frozenset[int]) -> None:
        """Only the records in `errors` fail, and those in `dropped` are dropped: the others go on."""
        self._wiring.counts["records_failed"] += len(errors)
        self._wiring.counts["records_dropped"] += len(dropped)
        self.out.append(FailRecords(batch=batch, error=None, errors=errors, dropped=dropped))

    def release(self, memory_bytes: int) -> None:
        """So much of `buffer.memory` is free again."""
        self._accumulator.release(memory_bytes)
        if self._callers.for_memory:
            self.out.append(WakeCallers())

    def in_words(self, error: KafkaException) -> KafkaException:
        """In a transaction what is retriable or late is told as abortable (decision 30), or as what has ended the producer."""
        if self._transaction is None:
            return error
        if self._transaction.state is not State.FATAL_ERROR or self._transaction.error is None:
            return as_abortable(error)
        fatal = again(self._transaction.error)
        fatal.topic_partition, fatal.stored = error.topic_partition, error.stored
        return fatal
