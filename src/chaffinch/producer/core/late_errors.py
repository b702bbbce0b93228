"""The errors of batches that no broker refused: time was up, the transaction failed around them, or the producer ended."""

from __future__ import annotations

from chaffinch.errors import KafkaException, Stored, TimeoutException, TransactionAbortableException
from chaffinch.producer.core.batches import ProducerBatch
from chaffinch.producer.core.errors_again import again, as_abortable


def expired(batch: ProducerBatch, timeout_ms: int, cause: KafkaException | None, *, is_awaited: bool) -> KafkaException:
    """`delivery.timeout.ms` is over. `is_awaited`: an answer is still under way."""
    may_be_stored = is_awaited or batch.possibly_stored or (batch.last_error is not None and batch.last_error.stored is Stored.POSSIBLY)
    attempts = batch.attempts + is_awaited
    sends = "never sent" if not attempts else "sent once" if attempts == 1 else f"sent {attempts} times"
    if cause is not None:
        sends += f"; the last error was {cause.name} ({cause.message.rstrip('.')})"
    error = TimeoutException(
        f"{batch.count} record{'' if batch.count == 1 else 's'} expired: no outcome within delivery.timeout.ms, {timeout_ms} ms; {sends}",
        topic_partition=batch.topic_partition,
        stored=Stored.POSSIBLY if may_be_stored else Stored.NO,
        api="Produce",
    )
    error.__cause__ = cause
    return error


def dropped_with_transaction(batch: ProducerBatch, cause: KafkaException | None, *, is_final: bool) -> KafkaException:
    """The batch was not sent because its transaction failed (`cause`) or is being aborted. `is_final`: the producer is unusable."""
    if cause is None:
        error: KafkaException = TransactionAbortableException("the transaction was aborted", topic_partition=batch.topic_partition)
    else:
        error = again(cause) if is_final else as_abortable(cause)
    error.topic_partition = batch.topic_partition
    error.stored = Stored.POSSIBLY if batch.possibly_stored else Stored.NO
    return error


def given_up(batch: ProducerBatch, error: KafkaException, *, is_awaited: bool) -> KafkaException:
    """Nothing can be written any more."""
    told = again(error)
    told.topic_partition = batch.topic_partition
    told.stored = Stored.POSSIBLY if is_awaited or batch.possibly_stored else Stored.NO
    told.__cause__ = batch.last_error or error.__cause__
    return told
