"""Verdict on a refused batch: retry it, fail all records, or remove the culprits and send the innocents again.

KIP-467 section 3, with decisions 12 to 18 of the design. `judge` is the only place where this is decided: a pure function, to be read
from top to bottom. `produce_response_handler.py` applies the verdict: its `_remove_culprits` removes them (h), `ProducerBatch.without`
makes the batch of the innocents.

    a. success                                      -> no verdict: the batch is written
    b. retriable code, culprits listed or not       -> Resend, whole (3.a), while attempts are left
    c. too large, several records                   -> Split, unless it may be stored
    d. a gap in the sequence                        -> Resend, if an earlier batch is still in flight; Renumber, if this one is certainly
                                                       not stored; otherwise FailAll
    e. no culprits, or an index that cannot be      -> FailAll (3.b.i)
    f. culprits, and the batch may be stored        -> FailAll, outcome unknown: innocents sent again could be stored twice
    g. culprits in a transaction                    -> FailAll: the innocents abort with the transaction
    h. culprits                                     -> RemoveCulprits: culprits fail, innocents are sent again (3.b.ii)

If an exception handler decides (KIP-1038), b for an unknown topic, g, h, and a single record that is too large result in AskHandler first.
Records that it drops leave the batch like culprits, but do not fail. No record of a batch that may be stored is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

import numpy as np

from chaffinch.errors import ApiException, Stored, TransactionAbortableException, codes, exception_for
from chaffinch.errors.exceptions import format_records
from chaffinch.errors.handling import Handling, handling_of
from chaffinch.producer.core.batches.in_flight import PredecessorState
from chaffinch.producer.core.exception_handler import NO_DECISION, REJECTED_CODES, Question
from chaffinch.producer.core.refusals.batch_responses import BatchResponse, RecordErrors, Situation
from chaffinch.producer.core.refusals.record_errors import API, CulpritErrors, culprit_of, stored

# A broker that names one culprit at a time would cause n rounds for n records: after this many rounds the innocents are halved each time.
REMOVALS_MAX: Final = 8
# Errors after which an attempt may still have been written (decision 13), as after lost connections and time-outs.
POSSIBLY_STORED_CODES: Final = frozenset({codes.REQUEST_TIMED_OUT, codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND})
# The broker expected another sequence, or has forgotten the producer: this attempt was not written, and a new number is needed.
GAP_CODES: Final = frozenset({codes.OUT_OF_ORDER_SEQUENCE_NUMBER, codes.UNKNOWN_PRODUCER_ID})
RETRIED: Final = frozenset({Handling.RETRY, Handling.REFRESH_AND_RETRY})
# For a record with a null key these may mean the key: 87 is Apache Kafka's number for it, and 32 covers it if timestamps are wrong, too.
MAY_MEAN_NULL_KEY: Final = frozenset({codes.INVALID_RECORD, codes.INVALID_TIMESTAMP})


@dataclass(frozen=True, slots=True, kw_only=True)
class Resend:
    """Send the same bytes again, after a backoff, or as soon as the earlier batches have ended.

    `possibly_stored`: this attempt may have been written.
    """

    error: ApiException
    refreshes_metadata: bool
    possibly_stored: bool
    waits: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Renumber:
    """Send the same records again under new sequence numbers."""

    error: ApiException
    waits: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Send the records again as two batches, each with half of them."""

    error: ApiException


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveCulprits:
    """Fail the records in `errors`, drop those in `dropped`, and send the others again at once; `halves`: as two batches.

    `waits`: not at once, but after a backoff.
    """

    errors: Mapping[int, ApiException]
    halves: bool
    dropped: frozenset[int] = frozenset()
    waits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FailAll:
    """Fail every record: those in `errors` with their own error, the others with `error`. Drop those in `dropped`.

    `uses_up_sequences`: the sequence numbers must not be reused, because the batch may be stored, or the broker expects others.
    """

    error: ApiException
    errors: Mapping[int, ApiException] = field(default_factory=dict)
    uses_up_sequences: bool = False
    dropped: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class AskHandler:
    """An exception handler decides about the records in `errors`: call it, then judge again."""

    question: Question
    errors: Mapping[int, ApiException]


@dataclass(frozen=True, slots=True)
class NeedTopicConfig:
    """The response is ambiguous without the topic's configuration: request it, then judge again."""


Verdict: TypeAlias = Resend | Renumber | Split | RemoveCulprits | FailAll | NeedTopicConfig | AskHandler


def is_unstored(verdict: Verdict, possibly_stored: bool) -> bool:
    """Whether a batch is certainly not stored after a verdict. `possibly_stored`: an earlier attempt may have been written."""
    match verdict:
        case Resend():
            return not (possibly_stored or verdict.possibly_stored)
        case FailAll():
            return not verdict.uses_up_sequences
        case Renumber() | Split() | RemoveCulprits():
            return True
        case AskHandler():
            return not possibly_stored
    return False


def judge(response: BatchResponse, situation: Situation) -> Verdict:
    """Decide about a batch that was not written. Never raises, whatever the response."""
    if _needs_topic_config(response, situation):
        return NeedTopicConfig()
    response = with_specific_code(response, situation)
    code, handling = response.code, handling_of(response.code, in_transaction=situation.in_transaction)
    if response.base_offset >= 0:
        # The leader has written the batch, but cannot say whether it stays: it lost the partition before the batch was replicated, or the
        # topic was deleted in the meantime, although consumers may have read the batch.
        situation = replace(situation, possibly_stored=True)
    if code is codes.UNKNOWN_TOPIC_OR_PARTITION:
        return _unknown_topic(response, situation)
    if handling in RETRIED:
        return _retried(response, situation)
    if code is codes.MESSAGE_TOO_LARGE and situation.count > 1 and not response.record_errors and not situation.possibly_stored:
        return Split(error=_batch_error(response, situation))
    if code in GAP_CODES and not response.record_errors and situation.is_idempotent:
        return _gap(_batch_error(response, situation), situation)
    return _refused(response, situation)


def _retried(response: BatchResponse, situation: Situation) -> Verdict:
    code, error = response.code, _batch_error(response, situation)
    possibly_stored = code in POSSIBLY_STORED_CODES or response.base_offset >= 0
    if situation.may_retry:
        return Resend(error=error, refreshes_metadata=code.refreshes_metadata, possibly_stored=possibly_stored)
    unknown = situation.possibly_stored or possibly_stored
    return FailAll(error=_as_abortable(error, situation), uses_up_sequences=unknown)


def _gap(error: ApiException, situation: Situation) -> Verdict:
    """The broker expected another sequence number. With several batches in flight, an earlier batch that was not stored causes this."""
    if not situation.may_retry:
        return FailAll(error=_out_of_attempts(error, situation), uses_up_sequences=True)
    if situation.predecessors is PredecessorState.OPEN:
        return Resend(error=error, refreshes_metadata=False, possibly_stored=False, waits=False)
    if situation.possibly_stored and (situation.predecessors is not PredecessorState.UNSTORED or situation.in_transaction):
        # Either it was never stored, or the broker has forgotten it: Apache Kafka forgets all but the last batch when it starts.
        # If its predecessor is not stored, an earlier attempt may still arrive when its number is next; only a new epoch prevents that.
        return FailAll(error=_unknown_fate(error, situation, "for its place in the sequence"), uses_up_sequences=True)
    if situation.in_transaction and situation.predecessors is PredecessorState.CLEAR:
        return FailAll(error=error, uses_up_sequences=True)
    return Renumber(error=error, waits=situation.predecessors is PredecessorState.CLEAR)


def _out_of_attempts(error: ApiException, situation: Situation) -> ApiException:
    """The error of a batch that has no time or attempts left. A gap caused by another batch is not reported as such."""
    if situation.predecessors is PredecessorState.CLEAR:
        return error
    message = "a batch before this one was not stored, and no time or attempts are left to send it again"
    late = exception_for(
        codes.REQUEST_TIMED_OUT,
        message=message,
        topic_partition=situation.topic_partition,
        stored=Stored.POSSIBLY if situation.possibly_stored else Stored.NO,
        api=API,
        cause=error,
    )
    return _as_abortable(late, situation)


def _unknown_topic(response: BatchResponse, situation: Situation) -> Verdict:
    """KIP-1038: the handler decides record by record. FAIL precedes SWALLOW, SWALLOW precedes RETRY, and time limits end RETRY."""
    error = _batch_error(response, situation)
    if situation.is_unknown_too_long:
        return FailAll(error=_as_abortable(error, situation), uses_up_sequences=situation.possibly_stored)
    if Question.UNKNOWN_TOPIC not in situation.questions:
        return _retried(response, situation)
    all_indices = range(situation.count)
    if situation.decision is None:
        return AskHandler(question=Question.UNKNOWN_TOPIC, errors={index: _batch_error(response, situation) for index in all_indices})
    decision = situation.decision
    if len(decision.retried) == situation.count:
        return _retried(response, situation)
    if situation.possibly_stored:
        return FailAll(error=_as_abortable(error, situation), uses_up_sequences=True)
    failed = [index for index in all_indices if index not in decision.swallowed and index not in decision.retried]
    return _remove_or_fail_all(
        response, {index: _as_abortable(_batch_error(response, situation), situation) for index in failed}, situation, waits=True
    )


def _refused(response: BatchResponse, situation: Situation) -> Verdict:
    errors = _culprit_errors(response, situation)
    if not errors and Question.REJECTED in situation.questions and situation.count == 1 and response.code is codes.MESSAGE_TOO_LARGE:
        errors = {0: _batch_error(response, situation)}
    if not errors:
        error = _batch_error(response, situation)
        if situation.possibly_stored and response.code is codes.MESSAGE_TOO_LARGE and situation.count > 1:
            # If it were certainly not stored it would be split. It is not known that any of its records is too large.
            return FailAll(error=_unknown_fate(error, situation, "as too large, all its records together"), uses_up_sequences=True)
        return FailAll(error=error, uses_up_sequences=situation.possibly_stored)
    if situation.possibly_stored:
        error = _batch_error(response, situation)
        why = f"because of {format_records(response.record_errors.indices)} of its {situation.count}"
        return FailAll(error=_unknown_fate(error, situation, why), errors=errors, uses_up_sequences=True)
    if Question.REJECTED in situation.questions and situation.decision is None:
        asked = {index: error for index, error in errors.items() if error.code in REJECTED_CODES}
        if asked:
            return AskHandler(question=Question.REJECTED, errors=asked)
    return _remove_or_fail_all(response, errors, situation)


def _remove_or_fail_all(
    response: BatchResponse, errors: Mapping[int, ApiException], situation: Situation, *, waits: bool = False
) -> Verdict:
    """Fail the records in `errors`, unless the handler drops them. The others continue without them, or fail with the transaction."""
    decision = situation.decision or NO_DECISION
    if situation.decision is not None:
        errors = {index: decision.with_failure(index, own) for index, own in errors.items() if index not in decision.swallowed}
    if situation.in_transaction and errors:
        first = errors[min(errors)]
        others = situation.count - len(errors) - len(decision.swallowed)
        rejected = f"{format_records(list(errors))} of the batch's {situation.count} {'was' if len(errors) == 1 else 'were'} rejected"
        message = f"not at fault, but aborted with the transaction: {rejected}"
        named = _batch_error(response, situation).culprits
        innocent = TransactionAbortableException(
            message, topic_partition=situation.topic_partition, culprits=named, stored=Stored.NO, api=API
        )
        innocent.__cause__ = first
        return FailAll(error=innocent if others else _as_abortable(first, situation), errors=errors, dropped=decision.swallowed)
    halves = not waits and situation.removals + 1 > REMOVALS_MAX
    return RemoveCulprits(errors=errors, halves=halves, dropped=decision.swallowed, waits=waits)


def _needs_topic_config(response: BatchResponse, situation: Situation) -> bool:
    """Whether the topic's configuration would explain the response, and was not requested yet."""
    if situation.topic_config.is_requested:
        return False
    if response.code is codes.NOT_ENOUGH_REPLICAS:
        return True
    if response.code is codes.CORRUPT_MESSAGE:
        return bool(_keyless(range(situation.count), situation))
    return (
        response.code in MAY_MEAN_NULL_KEY
        and _has_valid_indices(response, situation)
        and bool(_keyless(_possibly_keyless(response.record_errors), situation))
    )


def with_specific_code(response: BatchResponse, situation: Situation) -> BatchResponse:
    """The response that a broker with KIP-135 and KIP-579 would have sent, as far as the topic's configuration shows it."""
    topic_config = situation.topic_config
    if response.code is codes.NOT_ENOUGH_REPLICAS and topic_config.is_inconsistent:
        message = f"min.insync.replicas is {topic_config.min_insync_replicas}, and the topic has {topic_config.replica_count} replicas"
        return BatchResponse(code=codes.INCONSISTENT_REPLICATION_FACTOR, message=message)
    if response.code is codes.CORRUPT_MESSAGE and topic_config.is_compacted:
        keyless = _keyless(range(situation.count), situation)
        return BatchResponse(code=codes.INVALID_COMPACTION_KEY, record_errors=_without_messages(keyless)) if keyless else response
    if response.code in MAY_MEAN_NULL_KEY and topic_config.is_compacted and _has_valid_indices(response, situation):
        record_errors = response.record_errors
        at_fault = set(_keyless(_possibly_keyless(record_errors), situation))
        no_key = codes.INVALID_COMPACTION_KEY.number_kip
        numbers = [no_key if index in at_fault else own for index, own in zip(record_errors.indices, record_errors.numbers, strict=True)]
        return replace(response, record_errors=RecordErrors(record_errors.indices, record_errors.messages, numbers))
    return response


def _keyless(indices: Sequence[int], situation: Situation) -> list[int]:
    """The records without a key among these, which are ascending and within the batch."""
    if not indices:
        return []
    asked = np.array(indices, np.int64)
    valid = situation.keys_of(asked).valid
    return [] if valid is None else asked[valid == 0].tolist()


def _without_messages(indices: Sequence[int]) -> RecordErrors:
    """Record errors with indices only."""
    nothing = [None] * len(indices)
    return RecordErrors(indices, nothing, nothing)


def _possibly_keyless(record_errors: RecordErrors) -> list[int]:
    """Culprits whose null key may be the cause. Every broker checks the key before the timestamp."""
    return [index for at, index in enumerate(record_errors.indices) if record_errors.code(at) in (None, codes.INVALID_RECORD)]


def _has_valid_indices(response: BatchResponse, situation: Situation) -> bool:
    """Whether all culprits are records of the batch."""
    indices = response.record_errors.indices
    return not indices or (indices[0] >= 0 and indices[-1] < situation.count)


def _batch_error(response: BatchResponse, situation: Situation) -> ApiException:
    """The error of the batch as a whole. It lists the culprits, unless an index is outside the batch."""
    message, are_within = response.message, _has_valid_indices(response, situation)
    if not are_within:
        outside = next(index for index in response.record_errors.indices if not 0 <= index < situation.count)
        message = f"the broker blamed record {outside} of a batch of {situation.count}" + (f": {message}" if message else "")
    return exception_for(
        response.code,
        message=message,
        topic_partition=situation.topic_partition,
        culprits=tuple(culprit_of(response, at) for at in range(len(response.record_errors))) if are_within else (),
        stored=stored(response.code, situation),
        api=API,
        cause=situation.last_error if situation.possibly_stored else None,
    )


def _culprit_errors(response: BatchResponse, situation: Situation) -> Mapping[int, ApiException]:
    """Each culprit's own error by its index; empty if none is named, or an index is outside the batch, so that none is reliable."""
    return CulpritErrors(response, situation) if response.record_errors and _has_valid_indices(response, situation) else {}


def _unknown_fate(error: ApiException, situation: Situation, why: str) -> ApiException:
    """The error of innocents whose batch may be stored already: that of an earlier attempt, because they were not refused."""
    message = (
        f"an earlier attempt to write this batch had no clear outcome, and the next one was refused {why}: "
        "whether this record is stored is unknown"
    )
    known = situation.last_error
    # The last error may belong to a later attempt whose outcome was clear.
    code = known.code if known is not None and known.code in POSSIBLY_STORED_CODES else codes.NETWORK_EXCEPTION
    unknown = exception_for(
        code,
        message=message,
        topic_partition=situation.topic_partition,
        culprits=error.culprits,
        stored=Stored.POSSIBLY,
        api=API,
        cause=error,
    )
    return _as_abortable(unknown, situation)


def _as_abortable(error: ApiException, situation: Situation) -> ApiException:
    """In a transaction a retriable error is final, and the transaction must be aborted (decision 30)."""
    if not situation.in_transaction or not error.code.is_retriable:
        return error
    message = f"the transaction has to be aborted: {error.message}"
    abortable = TransactionAbortableException(
        message, topic_partition=situation.topic_partition, culprits=error.culprits, stored=error.stored, api=API
    )
    abortable.__cause__ = error
    return abortable
