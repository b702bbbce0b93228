"""Errors told as another class, the one that says what the caller can do; the first one is the cause."""

from __future__ import annotations

from typing import Final

from chaffinch.errors import (
    ApiException,
    CommitFailedException,
    Group,
    KafkaException,
    TransactionAbortableException,
    UnknownServerException,
    codes,
)
from chaffinch.errors.again import again

COMMIT_FAILED_CODES: Final = frozenset({codes.ILLEGAL_GENERATION, codes.UNKNOWN_MEMBER_ID, codes.FENCED_INSTANCE_ID})


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


def as_commit_failed(error: ApiException) -> KafkaException:
    """Offsets of a group that has moved on have an exception of their own; any other error is returned as it is."""
    if error.code not in COMMIT_FAILED_CODES:
        return error
    failed = CommitFailedException(f"offsets were not committed: {error.message}", code=error.code)
    failed.__cause__ = error
    return failed


def as_fatal(error: KafkaException) -> KafkaException:
    """A failure that ends the producer, as a class that says so: aborts, for one, raise nothing else (decision 31)."""
    fatal = UnknownServerException(f"the producer cannot go on: {error.message}", code=error.code, group=Group.APPLICATION_RECOVERABLE)
    fatal.__cause__ = error
    return fatal
