"""Errors of a transactional producer: brokers' errors with details that the broker does not send, such as limits and possible causes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from chaffinch.errors import ApiException, CommitFailedException, Group, KafkaException, Stored, TimeoutException, codes, group_of
from chaffinch.errors.copies import AnyError, with_message
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core.refusals.errors import as_fatal

# Kafka's default. The response does not contain the broker's value.
_TIMEOUT_MAX_MS: Final = 900_000
# Error codes for a fenced producer: another producer has taken its id, or the coordinator has raised the epoch after a time-out.
FENCED_CODES: Final = frozenset({codes.PRODUCER_FENCED, codes.INVALID_PRODUCER_EPOCH})
FENCED_ADVICE: Final = "producers that run at the same time need different ids"

_GONE_ON: Final = (
    "the group has gone on without this member, and other members read its last records again; its consumer rejoins with the next poll, "
    "and stays a member if it polls within max.poll.interval.ms"
)
# Error codes for offsets of a consumer that is no longer a member of its group, with the cause.
_NO_MEMBER: Final = {
    codes.ILLEGAL_GENERATION: _GONE_ON,
    codes.GROUP_ID_NOT_FOUND: _GONE_ON,
    codes.STALE_MEMBER_EPOCH: _GONE_ON,
    codes.UNKNOWN_MEMBER_ID: _GONE_ON,
    codes.FENCED_INSTANCE_ID: "another consumer with the same group.instance.id has taken this one's place; each needs an id of its own",
}


def explained(error: AnyError, transactional_id: str, timeout_ms: int, open_ms: int | None, block_ms: int) -> AnyError:
    """Add the likely cause to an error: another producer, the transaction time-out, or a `transaction.timeout.ms` above the broker's limit.

    A coordinator aborts a transaction that is open for too long, and fences its producer; in version 2 it responds INVALID_TXN_STATE to the
    commit. Any other error is returned unchanged. `open_ms`: for how long the broker has known the transaction; None if it does not.
    `block_ms`: how long one call may wait.
    """
    if error.code is codes.INVALID_TRANSACTION_TIMEOUT:
        text = f"transaction.timeout.ms={timeout_ms} exceeds the broker's transaction.max.timeout.ms, {_TIMEOUT_MAX_MS} unless it is set"
        return with_message(error, f"{text}: give a smaller one, or raise the broker's limit")
    is_late = error.code is codes.INVALID_TXN_STATE and open_ms is not None and open_ms >= timeout_ms
    if not (is_late or error.code in FENCED_CODES) or error.message.endswith(FENCED_ADVICE):
        return error
    why = f"another producer with transactional.id {transactional_id!r} took over"
    if open_ms is not None:
        waits = f" (set it above max.block.ms, {block_ms}, for which one call may wait)" if block_ms >= timeout_ms else ""
        aborted = f"the broker has aborted it{waits}, or " if open_ms >= timeout_ms else ""
        why = f"the transaction was open for {open_ms / 1000:.1f} s, transaction.timeout.ms is {timeout_ms}: {aborted}{why}"
    said = "" if error.message == error.code.text else f"{error.message.rstrip('.')}; "
    return with_message(error, f"{said}{why}; {FENCED_ADVICE}")


def offsets_timed_out(
    group_id: str, offsets: Iterable[TopicPartition], block_ms: int, cause: KafkaException | None, *, unreachable: str | None
) -> TimeoutException:
    """The error of offsets that were not added to the transaction in time. `cause`: the last error.

    `unreachable`: the brokers that were tried, if none can be reached.
    """
    why = "" if unreachable is None else f"; {unreachable}"
    if cause is not None and unreachable is None:
        where = "" if cause.topic_partition is None else f" for {cause.topic_partition}"
        why = f"; the last response{where} was {cause.name}: {cause.message.rstrip('.')}"
    late = TimeoutException(f"{_offsets_of(group_id, offsets)} were not accepted within max.block.ms, {block_ms} ms{why}")
    late.__cause__ = cause
    return late


def offsets_refused(group_id: str, offsets: Iterable[TopicPartition], error: ApiException) -> KafkaException:
    """The error of offsets whose consumer is no longer a member of its group: it says what to do with the producer and the consumer.

    CommitFailedException if the group has rebalanced; the code's own class if a member with the same instance id has replaced it, as in the
    consumer and in Java's producer. Any other error is returned unchanged.
    """
    why = _NO_MEMBER.get(error.code)
    if why is None:
        return error
    offsets_of, then = _offsets_of(group_id, offsets), "once a producer with the same transactional.id calls init_transactions()"
    if error.code is codes.FENCED_INSTANCE_ID:  # Its text begins with the code, and ends with advice.
        fenced = with_message(error, f"{offsets_of} were not committed: {why}; the transaction is aborted {then}")
        fenced.stored = Stored.NO  # The code alone does not show this.
        return fenced
    failed = CommitFailedException(
        f"{offsets_of} were not committed ({error.name}): {why}; the transaction is aborted {then}: close this one, and start a new one",
        code=error.code,
        topic_partition=error.topic_partition,
        api=error.api,
    )
    failed.__cause__ = error
    return failed


def _offsets_of(group_id: str, offsets: Iterable[TopicPartition]) -> str:
    first, *others = sorted(offsets)
    more = f" and {len(others)} more" if others else ""
    return f"the offsets of group {group_id!r} for {first}{more}"


def left_open(transactional_id: str, timeout_ms: int, *, is_end_sent: bool) -> str:
    """Log line about a transaction that the producer leaves open. `is_end_sent`: an EndTxn may have been sent, and has no response."""
    fate = "may be left open, EndTxn got no response" if is_end_sent else "is left open"
    then = f"the broker aborts it after transaction.timeout.ms, {timeout_ms} ms"
    return f"the transaction of transactional.id {transactional_id!r} {fate}: {then}"


def commit_given_up(transactional_id: str, error: KafkaException, *, is_end_sent: bool) -> KafkaException:
    """The error of a commit that is given up. `is_end_sent`: its EndTxn may have been sent, so the broker may have committed."""
    fate = "may have happened, EndTxn got no response" if is_end_sent else "did not happen, EndTxn was not sent"
    fatal = error if group_of(error) is Group.APPLICATION_RECOVERABLE else as_fatal(error)
    final = with_message(fatal, f"the commit of transactional.id {transactional_id!r} {fate}: {error.message}")
    final.stored = Stored.POSSIBLY if is_end_sent else Stored.NO
    return final


def commit_in_doubt(transactional_id: str, error: KafkaException) -> KafkaException:
    """The error of a commit whose result cannot be determined because of `error`, after an EndTxn that may have arrived.

    An abort cannot resolve it. A new producer does: its `init_transactions` ends the open transaction.
    """
    fatal = error if group_of(error) is Group.APPLICATION_RECOVERABLE else as_fatal(error)
    # The message of an abortable error advises to abort, which is wrong here.
    why = error.name if group_of(error) is Group.TRANSACTION_ABORTABLE else error.message.rstrip(".")
    text = (
        f"the commit of transactional.id {transactional_id!r} may have happened, EndTxn was sent and its result is unknown; it cannot be "
        f"requested again: {why}; call init_transactions of a new producer, then read what is committed"
    )
    final = with_message(fatal, text)
    final.stored = Stored.POSSIBLY
    return final
