"""Errors made by the producer: for batches that ended without a response, and brokers' errors converted to another class.

A batch ends without a response when it expires, its transaction has failed, its topic was deleted, or the producer is closed.
"""

from __future__ import annotations

from chaffinch.client.wait_log import in_words
from chaffinch.errors import (
    Group,
    KafkaException,
    Stored,
    TimeoutException,
    TransactionAbortableException,
    UnknownServerException,
    codes,
    exception_for,
)
from chaffinch.errors.copies import AnyError, copy_for_raise, with_message
from chaffinch.identifiers import pluralize
from chaffinch.producer.core.batches.batch import ProducerBatch


def expiry_error(
    batch: ProducerBatch, timeout_ms: int, cause: KafkaException | None, *, is_awaited: bool, is_of_predecessor: bool = False
) -> KafkaException:
    """Error for `delivery.timeout.ms`. `is_awaited`: a request is in flight. `is_of_predecessor`: the cause is the preceding batch's."""
    may_be_stored = is_awaited or batch.possibly_stored or (batch.last_error is not None and batch.last_error.stored is Stored.POSSIBLY)
    sends = _sends(batch.attempts + is_awaited)
    if cause is not None:
        whose = "the last error of the preceding batch" if is_of_predecessor else "the last error"
        sends += f"; {whose} was {cause.name} ({cause.message.rstrip('.')})"
    error = TimeoutException(
        f"{pluralize(batch.count, 'record')} expired: no outcome within delivery.timeout.ms, {timeout_ms} ms; {sends}",
        topic_partition=batch.topic_partition,
        stored=Stored.POSSIBLY if may_be_stored else Stored.NO,
        api="Produce",
    )
    error.__cause__ = cause
    return error


def _sends(attempts: int) -> str:
    return "never sent" if not attempts else "sent once" if attempts == 1 else f"sent {attempts} times"


def exhausted_error(error: AnyError, attempts: int, retries: int) -> AnyError:
    """Add to a retriable error, after `attempts` attempts, that `retries` allows no more."""
    if attempts <= retries:
        return error
    return with_message(error, f"{error.message.rstrip('.')}; {_sends(attempts)}, and retries={retries} allows no more")


def dropped_with_transaction_error(batch: ProducerBatch, cause: KafkaException | None, *, is_final: bool) -> KafkaException:
    """The batch was not sent because its transaction failed (`cause`) or is being aborted. `is_final`: the producer is unusable."""
    if cause is None:
        error: KafkaException = TransactionAbortableException("the transaction was aborted", topic_partition=batch.topic_partition)
    else:
        error = copy_for_raise(cause) if is_final else as_abortable(cause)
    error.topic_partition = batch.topic_partition
    error.stored = Stored.POSSIBLY if batch.possibly_stored else Stored.NO
    return error


def given_up_error(
    batch: ProducerBatch, error: KafkaException, waited_for: KafkaException | None = None, *, is_awaited: bool
) -> KafkaException:
    """The error of a batch of a producer that cannot write any more. `waited_for`: why it has no outcome; added to a time-out."""
    fresh = copy_for_raise(error)
    if waited_for is not None and isinstance(error, (TimeoutException, TransactionAbortableException)):
        fresh = with_message(fresh, f"{error.message.rstrip('.')}; it waited for: {in_words(waited_for)}")
    fresh.topic_partition = batch.topic_partition
    fresh.stored = Stored.POSSIBLY if is_awaited or batch.possibly_stored else Stored.NO
    fresh.__cause__ = batch.last_error or waited_for or error.__cause__
    return fresh


def lost_with_topic_error(batch: ProducerBatch) -> KafkaException:
    """The error of a batch that is certainly not stored, in a transaction whose topic was deleted and created again."""
    topic = batch.topic_partition.topic
    text = f"topic {topic!r} was deleted and created again in this transaction: this batch is not sent to the new one"
    error = TransactionAbortableException(text, topic_partition=batch.topic_partition, stored=Stored.NO, api="Produce")
    error.__cause__ = batch.last_error
    return error


def deleted_topic_error(batch: ProducerBatch) -> KafkaException:
    """The error of a batch that may be stored in a topic that was deleted after it was sent."""
    text = "the topic was deleted and created again after this batch was sent: it is not sent to the new topic"
    return exception_for(
        codes.UNKNOWN_TOPIC_ID,
        message=text,
        topic_partition=batch.topic_partition,
        stored=Stored.POSSIBLY,
        api="Produce",
        cause=batch.last_error,
    )


def as_abortable(error: KafkaException) -> TransactionAbortableException:
    """The error of a record that fails with its transaction because of another failure: abort, then go on."""
    if isinstance(error, TransactionAbortableException):
        return copy_for_raise(error)
    abortable = TransactionAbortableException(
        f"the transaction has to be aborted: {error.message}",
        topic_partition=error.topic_partition,
        culprits=error.culprits,
        stored=error.stored,
        api=error.api,
    )
    abortable.__cause__ = error
    return abortable


def as_fatal(error: KafkaException) -> KafkaException:
    """Convert a failure that makes the producer unusable to an application-recoverable error: aborts raise no others (decision 31)."""
    fatal = UnknownServerException(f"the producer cannot go on: {error.message}", code=error.code, group=Group.APPLICATION_RECOVERABLE)
    fatal.__cause__ = error
    return fatal
