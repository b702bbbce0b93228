"""Requests of a commit other than Produce: each is built, retried until there is a final response, and evaluated.

Generators beneath `protocol.py`, with the same operations. A request is retried after a lost response or a retriable error, as
`RetryPolicy` says; so is EndTxn, whose outcome is never guessed (decision 39). All of them may raise Fenced (another epoch exists),
RestartTransaction (only a new transaction helps) and Refusal.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Any, Literal

from chaffinch.client.offset_requests import offset_fetch
from chaffinch.client.response_errors import codes_in
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode, Group
from chaffinch.errors.handling import normalized_coordinator_code
from chaffinch.identifiers import NO_PRODUCER, ProducerIdentity, TopicPartition
from chaffinch.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from chaffinch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from chaffinch.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsState,
)
from chaffinch.protocol.messages.end_txn import EndTxnRequest
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from chaffinch.protocol.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
)
from chaffinch.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from chaffinch.protocol.schema import Message
from chaffinch.spark.commit.marker import Marker
from chaffinch.spark.commit.operations import Coordinator, Lost, Operation, Reply, SendRequest, Step, Wait
from chaffinch.spark.commit.plan import CommitPlan
from chaffinch.spark.commit.push import FENCED_CODES, RESTART_CODES, Fenced, RestartTransaction
from chaffinch.spark.commit.retry_policy import Attempts, RetryPolicy
from chaffinch.spark.refusals import Refusal, Remedy, advised
from chaffinch.spark.versions import NewerFormat

ABORT_BLOCK_MAX_MS = 5_000
"""An abort is optional: otherwise the next writer fences this one, or the coordinator's timeout ends its transaction."""
# Responses to an abort which mean that we have nothing left to abort (decision 38).
ALREADY_ABORTED = FENCED_CODES | {codes.CONCURRENT_TRANSACTIONS}

_Exchange = Generator[Operation, Reply, tuple[Message, int]]


def init_producer(
    step: Step, plan: CommitPlan, timeout_ms: int, identity: ProducerIdentity = NO_PRODUCER
) -> Generator[Operation, Reply, tuple[ProducerIdentity, int]]:
    """InitProducerId: a new epoch, after every earlier transaction of this id has ended. `identity`: fail unless this is the newest one."""
    request = InitProducerIdRequest(**_producer_fields(plan, identity), transaction_timeout_ms=timeout_ms)
    response, steady_ms = yield from _request(step, plan, request, f"InitProducerId for transactional id {plan.transactional_id}")
    assert isinstance(response, InitProducerIdResponse)
    return ProducerIdentity(response.producer_id, response.producer_epoch), steady_ms


def _producer_fields(plan: CommitPlan, identity: ProducerIdentity) -> dict[str, Any]:
    """The fields that identify the producer in requests of a transaction."""
    return {"transactional_id": plan.transactional_id, "producer_id": identity.producer_id, "producer_epoch": identity.epoch}


def abort(step: Step, plan: CommitPlan, timeout_ms: int, identity: ProducerIdentity) -> Generator[Operation, Reply, None]:
    """Aborts our transaction if the coordinator can be reached; never raises (decision 38).

    InitProducerId with our own identity aborts the open transaction and cannot fence a newer writer. After any response we have nothing
    open. Without a response, the coordinator's timeout or the next writer ends the transaction.
    """
    plan = replace(plan, retry_policy=plan.retry_policy.at_most(ABORT_BLOCK_MAX_MS))
    request = InitProducerIdRequest(**_producer_fields(plan, identity), transaction_timeout_ms=timeout_ms)
    with suppress(Refusal, Fenced, RestartTransaction):
        yield from _request(step, plan, request, "InitProducerId", final_codes=ALREADY_ABORTED)


def restart_transaction(
    step: Step, plan: CommitPlan, timeout_ms: int, identity: ProducerIdentity
) -> Generator[Operation, Reply, tuple[ProducerIdentity, int]]:
    """Aborts our transaction and takes the next epoch. If there is another writer, raises Fenced and does not affect it.

    EndTxn is sent first: InitProducerId alone would also abort, but would leave an unused epoch in between (kafka-behaviour 7.2).
    """
    # INVALID_TXN_STATE: no partition had joined, so there was nothing to end.
    final_codes = frozenset({codes.INVALID_TXN_STATE})
    yield from _request(
        step, plan, EndTxnRequest(**_producer_fields(plan, identity), committed=False), "EndTxn with abort", final_codes=final_codes
    )
    return (yield from init_producer(step, plan, timeout_ms, identity))


def is_retried(code: ErrorCode) -> bool:
    """Whether a request for open transactions is retried after this error."""
    return code.is_retriable or code in _BROKER_FAILURES


def last_transaction(step: Step, plan: CommitPlan) -> Generator[Operation, Reply, DescribeTransactionsState | None]:
    """The coordinator's state of a transactional id, after its transaction has ended.

    None if the coordinator does not report it: it is older than Apache Kafka 3.0, or refuses authorization.
    """
    request = DescribeTransactionsRequest(transactional_ids=[plan.transactional_id])
    what = f"DescribeTransactions of {plan.transactional_id}"
    final_codes = frozenset({codes.TRANSACTIONAL_ID_NOT_FOUND, codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED})
    attempts = Attempts(plan.retry_policy)
    while True:
        try:
            response, steady_ms = yield from _request(step, plan, request, what, final_codes=final_codes, retried_codes=_BROKER_FAILURES)
        except Refusal as refusal:
            if refusal.name != codes.UNSUPPORTED_VERSION.name:
                raise
            return None
        assert isinstance(response, DescribeTransactionsResponse)
        state = response.transaction_states[0]
        if not state.transaction_state.startswith("Prepare"):
            return None if _first_error(response) is codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED else state
        if attempts.is_expired(steady_ms):
            raise retries_exhausted(step, codes.CONCURRENT_TRANSACTIONS, what, state.transaction_state, plan.retry_policy)
        yield Wait(step=step, ms=attempts.ending_poll_ms(), wait_info=attempts.wait_info(what, state.transaction_state))


def read_marker(step: Step, plan: CommitPlan, *, is_stable: bool = True, waits: bool = True) -> Generator[Operation, Reply, Marker | None]:
    """OffsetFetch of the marker; None without a group. `is_stable`: wait for open transactions that will write it (KIP-447), or, if
    `waits` is False, raise RestartTransaction for them.
    """
    group_id, (topic, partition) = plan.group_id, plan.marker_partition
    if group_id is None:
        return None
    request = offset_fetch(group_id, [TopicPartition(topic, partition)], require_stable=is_stable)
    what = f"OffsetFetch of group {group_id}"
    final_codes = frozenset[ErrorCode]() if waits else frozenset({codes.UNSTABLE_OFFSET_COMMIT})
    response, _ = yield from _request(step, plan, request, what, coordinator="group", final_codes=final_codes)
    assert isinstance(response, OffsetFetchResponse)
    if (code := _first_error(response)) in final_codes:
        raise RestartTransaction(code.name, f"{what}: {code.text}")
    found = [(part.committed_offset, part.metadata or "") for part in _fetched_partitions(response)]
    if not found or found[0][0] < 0:
        return None
    try:
        return Marker.from_text(found[0][1])
    except NewerFormat as newer:
        raise newer.refusal(f"the marker that group {group_id} holds for {plan.marker_partition}") from None
    except ValueError:
        raise Refusal(
            Group.INVALID_CONFIGURATION, "FOREIGN_MARKER",
            f"group {group_id} holds an offset for {plan.marker_partition} that is not a Chaffinch marker ({found[0][1][:80]!r}): "
            "another program uses this group; give the query its own checkpoint, or the write another idempotencyToken",
        ) from None  # fmt: skip


def has_offsets(step: Step, plan: CommitPlan) -> Generator[Operation, Reply, bool]:
    """Whether the marker's group has committed offsets of any topic."""
    group_id = _group(plan)
    request = offset_fetch(group_id, None)
    what = f"OffsetFetch of group {group_id}"
    response, _ = yield from _request(step, plan, request, what, coordinator="group")
    assert isinstance(response, OffsetFetchResponse)
    return any(part.committed_offset >= 0 for part in _fetched_partitions(response))


def is_marker_pending(step: Step, plan: CommitPlan) -> Generator[Operation, Reply, bool]:
    """Whether the group's marker is pending until a transaction ends."""
    try:
        yield from read_marker(step, plan, waits=False)
    except RestartTransaction as failure:
        return failure.name == codes.UNSTABLE_OFFSET_COMMIT.name
    return False


def add_partitions(
    step: Step, plan: CommitPlan, identity: ProducerIdentity, partitions: Iterable[TopicPartition]
) -> Generator[Operation, Reply, None]:
    """AddPartitionsToTxn: from now on the coordinator writes end markers to these partitions."""
    topics = [
        AddPartitionsToTxnTopic(name=name, partitions=[found.partition for found in group])
        for name, group in groupby(sorted(partitions), key=lambda found: found.topic)
    ]
    producer_fields = {f"v3_and_below_{name}": value for name, value in _producer_fields(plan, identity).items()}
    what = f"AddPartitionsToTxn of {', '.join(topic.name for topic in topics)}"
    yield from _request(step, plan, AddPartitionsToTxnRequest(**producer_fields, v3_and_below_topics=topics), what)


def add_offsets(step: Step, plan: CommitPlan, identity: ProducerIdentity) -> Generator[Operation, Reply, None]:
    """AddOffsetsToTxn: the marker's group becomes part of the transaction."""
    group_id = _group(plan)
    request = AddOffsetsToTxnRequest(**_producer_fields(plan, identity), group_id=group_id)
    yield from _request(step, plan, request, f"AddOffsetsToTxn of {group_id}")


def commit_marker(step: Step, plan: CommitPlan, identity: ProducerIdentity, marker: Marker) -> Generator[Operation, Reply, None]:
    """TxnOffsetCommit of the new marker: pending until the transaction ends."""
    where = plan.marker_partition
    partition = TxnOffsetCommitRequestPartition(
        partition_index=where.partition, committed_offset=marker.batch_id, committed_metadata=marker.to_text()
    )
    topics = [TxnOffsetCommitRequestTopic(name=where.topic, partitions=[partition])]
    request = TxnOffsetCommitRequest(**_producer_fields(plan, identity), group_id=_group(plan), topics=topics)
    yield from _request(step, plan, request, f"TxnOffsetCommit of the marker for {where}", coordinator="group")


def end_transaction(step: Step, plan: CommitPlan, identity: ProducerIdentity) -> Generator[Operation, Reply, int]:
    """EndTxn with commit, retried until it has a response. Returns the time.

    Raises Fenced if the outcome is unknown: after fencing, or if the coordinator's state shows that the transaction had ended. The marker
    then decides.
    """
    try:
        _, steady_ms = yield from _request(step, plan, EndTxnRequest(**_producer_fields(plan, identity), committed=True), "EndTxn")
    except RestartTransaction as failure:
        raise Fenced(codes.by_name(failure.name), failure.text) from None
    return steady_ms


def _group(plan: CommitPlan) -> str:
    assert plan.group_id is not None, "a batch without a group has no marker"
    return plan.group_id


def _request(
    step: Step,
    plan: CommitPlan,
    message: Message,
    what: str,
    *,
    coordinator: Literal["group", "transaction"] = "transaction",
    final_codes: frozenset[ErrorCode] = frozenset(),
    retried_codes: frozenset[ErrorCode] = frozenset(),
) -> _Exchange:
    """Sends a request to the coordinator of the plan's transactions, or of its group, until the response is final.

    Success and `final_codes` are final; `retried_codes` are retried, like retriable errors. `what` names the request in errors. Returns the
    response and its time.
    """
    key = _group(plan) if coordinator == "group" else plan.transactional_id
    attempts, refresh = Attempts(plan.retry_policy), False
    while True:
        reply = yield SendRequest(step=step, message=message, to=Coordinator(kind=coordinator, key=key, refresh=refresh))
        if isinstance(reply.value, Lost):
            code, reason, refresh = codes.NETWORK_EXCEPTION, reply.value.reason, True
        else:
            code = _first_error(reply.value)
            if code is codes.NONE or code in final_codes:
                return reply.value, reply.steady_ms
            reason, refresh = code.text, code in _WRONG_COORDINATOR
        if not (code.is_retriable or code in retried_codes):
            raise _error(code, what)
        if attempts.is_expired(reply.steady_ms):
            raise retries_exhausted(step, code, what, reason, plan.retry_policy)
        wait_ms = attempts.ending_poll_ms() if code in _ENDING else attempts.next_backoff_ms()
        yield Wait(step=step, ms=wait_ms, wait_info=attempts.wait_info(what, reason))


def _error(response_code: ErrorCode, what: str) -> Exception:
    code = normalized_coordinator_code(response_code)
    if code in FENCED_CODES:
        return Fenced(code, f"{what}: {code.text}")
    if code in RESTART_CODES:
        return RestartTransaction(code.name, f"{what}: {code.text}")
    return advised(code.group_transaction, code.name, f"{what}: {code.text}")


def retries_exhausted(step: Step, code: ErrorCode, what: str, reason: str, retry_policy: RetryPolicy) -> Refusal:
    """The Refusal after the last retry of `what`; `reason`: the last error."""
    fate, remedy = "no rows of the batch are visible", Remedy.AGAIN
    if step in (Step.END_TRANSACTION, Step.READ_MARKER_AFTER_FENCING):
        fate, remedy = "it is unknown whether the batch is written", Remedy.LOOK
    elif step in (Step.READ_MARKER, Step.READ_MARKER_AGAIN):
        fate = "nothing more is written before it is known whether the batch is in Kafka"
    elif step is Step.FINISH_COMMIT:
        fate = "nothing more is written before the committed rows are visible everywhere"
    text = f"{what}: retried for {retry_policy.block_max_ms} ms (kafka.max.block.ms), the last error was: {reason.rstrip(' .')}; {fate}"
    return Refusal(code.group, code.name, text, remedy)


# An internal error of the broker does not mean that nothing is open.
_BROKER_FAILURES = frozenset({codes.UNKNOWN_SERVER_ERROR})
_WRONG_COORDINATOR = frozenset({codes.NOT_COORDINATOR, codes.COORDINATOR_NOT_AVAILABLE})
# An earlier transaction is still ending.
_ENDING = frozenset({codes.CONCURRENT_TRANSACTIONS, codes.UNSTABLE_OFFSET_COMMIT})


def _first_error(response: Message) -> ErrorCode:
    """The first error in a response, wherever this API puts it. An error that explains the others comes first."""
    found = [code for code, _ in codes_in(response)]
    explaining = [code for code in found if code is not codes.OPERATION_NOT_ATTEMPTED]
    return (explaining or found or [codes.NONE])[0]


def _fetched_partitions(response: OffsetFetchResponse) -> list[OffsetFetchResponsePartition | OffsetFetchResponsePartitions]:
    """Partitions of the old and of the new form: a response has one of them."""
    old = [part for topic in response.topics for part in topic.partitions]
    return [*old, *(part for group in response.groups for topics in group.topics for part in topics.partitions)]
