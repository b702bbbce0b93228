"""Errors told as another class, the one that says what the caller can do; the first one is the cause."""

from __future__ import annotations

from chaffinch.errors import Group, KafkaException, TransactionAbortableException, UnknownServerException
from chaffinch.errors.again import again


def as_abortable(error: KafkaException) -> TransactionAbortableException:
    """What a record of a transaction is told when it fails because of another failure: abort, then go on."""
    if isinstance(error, TransactionAbortableException):
        return again(error)
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
    """A failure that ends the producer, as a class that says so: aborts, for one, raise nothing else (decision 31)."""
    fatal = UnknownServerException(f"the producer cannot go on: {error.message}", code=error.code, group=Group.APPLICATION_RECOVERABLE)
    fatal.__cause__ = error
    return fatal
