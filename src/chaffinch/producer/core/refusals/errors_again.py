"""Errors told again, or in other words: a fresh exception for each caller, and the class that says what the caller can do.

Each caller gets an exception of its own, so that tracebacks do not grow into each other. One in other words has
the first one as its cause.
"""

from __future__ import annotations

from copy import copy
from typing import Final, TypeVar

from chaffinch.errors import (
    ApiException,
    CommitFailedException,
    Group,
    KafkaException,
    TransactionAbortableException,
    UnknownServerException,
    codes,
)

AnyError = TypeVar("AnyError", bound=KafkaException)

COMMIT_FAILED_CODES: Final = frozenset({codes.ILLEGAL_GENERATION, codes.UNKNOWN_MEMBER_ID, codes.FENCED_INSTANCE_ID})


def again(error: AnyError) -> AnyError:
    """The same error as a fresh exception. It has the first one's cause, not the first one: that would be told twice."""
    return with_message(error, error.message)


def with_message(error: AnyError, message: str) -> AnyError:
    """The same error in other words."""
    fresh = copy(error)
    fresh.message, fresh.args = message, (message,)
    fresh.__cause__ = error.__cause__
    return fresh


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
