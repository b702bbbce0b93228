"""The requests of a commit beside Produce: each built, asked until it is answered, and its answer judged.

Generators beneath `protocol.py`, with the same operations. A request is asked again while its answer is lost or
retriable, as `Patience` says; EndTxn likewise, but its outcome is never guessed (decision 39).
All of them may raise Fenced (another epoch exists), StartAgain (only a new transaction helps) and Refusal.
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
from chaffinch.spark.commit.operations import Ask, Coordinator, Lost, Operation, Reply, Step, Wait
from chaffinch.spark.commit.patience import Attempts, Patience
from chaffinch.spark.commit.plan import CommitPlan
from chaffinch.spark.commit.push import FENCED_CODES, START_AGAIN_CODES, Fenced, StartAgain
from chaffinch.spark.refusals import Refusal, Remedy, advised
from chaffinch.spark.versions import NewerFormat

ABORT_BLOCK_MAX_MS = 5_000
"""An abort is a courtesy: the next writer fences us anyway, or the coordinator's time-out does."""
# Answers to an abort that mean: there is nothing of ours left to abort (decision 38).
ALREADY_ABORTED = FENCED_CODES | {codes.CONCURRENT_TRANSACTIONS}

Asking = Generator[Operation, Reply, tuple[Message, int]]


def init_producer(
    step: Step, plan: CommitPlan, timeout_ms: int, identity: ProducerIdentity = NO_PRODUCER
) -> Generator[Operation, Reply, tuple[ProducerIdentity, int]]:
    """InitProducerId: a new epoch, once every earlier transaction of this id has ended. `identity`: fail unless it is the newest."""
    request = InitProducerIdRequest(**_asking(plan, identity), transaction_timeout_ms=timeout_ms)
    response, steady_ms = yield from _ask(step, plan, request, f"InitProducerId for transactional id {plan.transactional_id}")
    assert isinstance(response, InitProducerIdResponse)
    return ProducerIdentity(response.producer_id, response.producer_epoch), steady_ms


def _asking(plan: CommitPlan, identity: ProducerIdentity) -> dict[str, Any]:
    """Who is asking, in the fields that requests of a transaction share."""
    return {"transactional_id": plan.transactional_id, "producer_id": identity.producer_id, "producer_epoch": identity.epoch}


def abort(step: Step, plan: CommitPlan, timeout_ms: int, identity: ProducerIdentity) -> Generator[Operation, Reply, None]:
    """Ends our transaction without its rows, if the coordinator can be reached; never raises (decision 38).

    InitProducerId with our own identity: it aborts what is open and cannot fence a newer writer. Whatever the answer is,
    nothing of ours is left, or nobody is there to ask: then the coordinator's time-out ends it, or the next writer.
    """
    plan = replace(plan, patience=plan.patience.at_most(ABORT_BLOCK_MAX_MS))
    request = InitProducerIdRequest(**_asking(plan, identity), transaction_timeout_ms=timeout_ms)
    with suppress(Refusal, Fenced, StartAgain):
        yield from _ask(step, plan, request, "InitProducerId", settled=ALREADY_ABORTED)


def start_again(
    step: Step, plan: CommitPlan, timeout_ms: int, identity: ProducerIdentity
) -> Generator[Operation, Reply, tuple[ProducerIdentity, int]]:
    """Aborts our transaction and takes the next epoch, unless another writer has come: then Fenced, and nothing is done to it.

    EndTxn first: InitProducerId alone would abort as well, but leaves an epoch in between that is nobody's (kafka-behaviour 7.2).
    """
    # INVALID_TXN_STATE: no partition had joined, so there was nothing to end.
    settled = frozenset({codes.INVALID_TXN_STATE})
    yield from _ask(step, plan, EndTxnRequest(**_asking(plan, identity), committed=False), "EndTxn with abort", settled=settled)
    return (yield from init_producer(step, plan, timeout_ms, identity))


def is_asked_again(code: ErrorCode) -> bool:
    """Of questions about what is open: whether this is no answer."""
    return code.is_retriable or code in _NO_ANSWER


def last_transaction(step: Step, plan: CommitPlan) -> Generator[Operation, Reply, DescribeTransactionsState | None]:
    """What the coordinator knows of a transactional id, once no transaction of it is ending. None: it does not tell, because it is older
    than Apache Kafka 3.0, or because it is not allowed."""
    request = DescribeTransactionsRequest(transactional_ids=[plan.transactional_id])
    what = f"DescribeTransactions of {plan.transactional_id}"
    settled = frozenset({codes.TRANSACTIONAL_ID_NOT_FOUND, codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED})
    attempts = Attempts(plan.patience)
    while True:
        try:
            response, steady_ms = yield from _ask(step, plan, request, what, settled=settled, again=_NO_ANSWER)
        except Refusal as refusal:
            if refusal.name != codes.UNSUPPORTED_VERSION.name:
                raise
            return None
        assert isinstance(response, DescribeTransactionsResponse)
        state = response.transaction_states[0]
        if not state.transaction_state.startswith("Prepare"):
            return None if _first_error(response) is codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED else state
        if attempts.are_over(steady_ms):
            raise gave_up(step, codes.CONCURRENT_TRANSACTIONS, what, state.transaction_state, plan.patience)
        yield Wait(step=step, ms=attempts.moment_ms(), about=attempts.about(what, state.transaction_state))


def read_marker(step: Step, plan: CommitPlan, *, is_stable: bool = True, waits: bool = True) -> Generator[Operation, Reply, Marker | None]:
    """OffsetFetch of the marker; without a group there is none. `is_stable`: wait for open transactions that are about to write it
    (KIP-447), or with `waits` False raise StartAgain for them."""
    group_id, (topic, partition) = plan.group_id, plan.marker_partition
    if group_id is None:
        return None
    request = offset_fetch(group_id, [TopicPartition(topic, partition)], require_stable=is_stable)
    what = f"OffsetFetch of group {group_id}"
    settled = frozenset[ErrorCode]() if waits else frozenset({codes.UNSTABLE_OFFSET_COMMIT})
    response, _ = yield from _ask(step, plan, request, what, of="group", settled=settled)
    assert isinstance(response, OffsetFetchResponse)
    if (code := _first_error(response)) in settled:
        raise StartAgain(code.name, f"{what}: {code.text}")
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
            f"group {group_id} holds an offset for {plan.marker_partition} that is no marker of Chaffinch ({found[0][1][:80]!r}): "
            "another program uses this group; give the query a checkpoint, or the write an idempotencyToken, of its own",
        ) from None  # fmt: skip


def has_offsets(step: Step, plan: CommitPlan) -> Generator[Operation, Reply, bool]:
    """Whether the marker's group has committed offsets of any topic."""
    group_id = _group(plan)
    request = offset_fetch(group_id, None)
    what = f"OffsetFetch of group {group_id}"
    response, _ = yield from _ask(step, plan, request, what, of="group")
    assert isinstance(response, OffsetFetchResponse)
    return any(part.committed_offset >= 0 for part in _fetched_partitions(response))


def is_marker_pending(step: Step, plan: CommitPlan) -> Generator[Operation, Reply, bool]:
    """Whether the group holds a marker back for the end of a transaction."""
    try:
        yield from read_marker(step, plan, waits=False)
    except StartAgain as failure:
        return failure.name == codes.UNSTABLE_OFFSET_COMMIT.name
    return False


def add_partitions(
    step: Step, plan: CommitPlan, identity: ProducerIdentity, partitions: Iterable[TopicPartition]
) -> Generator[Operation, Reply, None]:
    """AddPartitionsToTxn: from here on the coordinator writes its markers to them."""
    topics = [
        AddPartitionsToTxnTopic(name=name, partitions=[found.partition for found in group])
        for name, group in groupby(sorted(partitions), key=lambda found: found.topic)
    ]
    whose = {f"v3_and_below_{name}": value for name, value in _asking(plan, identity).items()}
    what = f"AddPartitionsToTxn of {', '.join(topic.name for topic in topics)}"
    yield from _ask(step, plan, AddPartitionsToTxnRequest(**whose, v3_and_below_topics=topics), what)


def add_offsets(step: Step, plan: CommitPlan, identity: ProducerIdentity) -> Generator[Operation, Reply, None]:
    """AddOffsetsToTxn: the marker's group becomes part of the transaction."""
    group_id = _group(plan)
    request = AddOffsetsToTxnRequest(**_asking(plan, identity), group_id=group_id)
    yield from _ask(step, plan, request, f"AddOffsetsToTxn of {group_id}")


def commit_marker(step: Step, plan: CommitPlan, identity: ProducerIdentity, marker: Marker) -> Generator[Operation, Reply, None]:
    """TxnOffsetCommit of the new marker: pending until the transaction ends."""
    where = plan.marker_partition
    partition = TxnOffsetCommitRequestPartition(
        partition_index=where.partition, committed_offset=marker.batch_id, committed_metadata=marker.to_text()
    )
    topics = [TxnOffsetCommitRequestTopic(name=where.topic, partitions=[partition])]
    request = TxnOffsetCommitRequest(**_asking(plan, identity), group_id=_group(plan), topics=topics)
    yield from _ask(step, plan, request, f"TxnOffsetCommit of the marker for {where}", of="group")


def end_transaction(step: Step, plan: CommitPlan, identity: ProducerIdentity) -> Generator[Operation, Reply, int]:
    """EndTxn with commit, asked again until it is answered. Returns the time.

    Raises Fenced where the answer does not say how the transaction ended: fenced, or a state that says it was not ours to
    end any more. The marker tells.
    """
    try:
        _, steady_ms = yield from _ask(step, plan, EndTxnRequest(**_asking(plan, identity), committed=True), "EndTxn")
    except StartAgain as failure:
        raise Fenced(codes.by_name(failure.name), failure.text) from None
    return steady_ms


def _group(plan: CommitPlan) -> str:
    assert plan.group_id is not None, "a batch without a group has no marker"
    return plan.group_id


def _ask(
    step: Step,
    plan: CommitPlan,
    message: Message,
    what: str,
    *,
    of: Literal["group", "transaction"] = "transaction",
    settled: frozenset[ErrorCode] = frozenset(),
    again: frozenset[ErrorCode] = frozenset(),
) -> Asking:
    """Asks the coordinator of the plan's transactions, or of its group, until the answer is final: without error, or one of `settled`.
    `again`: errors after which it is asked again beside those that are retriable. `what` names the request in errors. Brings answer and
    time."""
    key = _group(plan) if of == "group" else plan.transactional_id
    attempts, refresh = Attempts(plan.patience), False
    while True:
        reply = yield Ask(step=step, message=message, to=Coordinator(kind=of, key=key, refresh=refresh))
        if isinstance(reply.value, Lost):
            code, reason, refresh = codes.NETWORK_EXCEPTION, reply.value.reason, True
        else:
            code = _first_error(reply.value)
            if code is codes.NONE or code in settled:
                return reply.value, reply.steady_ms
            reason, refresh = code.text, code in _WRONG_COORDINATOR
        if not (code.is_retriable or code in again):
            raise _failure(code, what)
        if attempts.are_over(reply.steady_ms):
            raise gave_up(step, code, what, reason, plan.patience)
        wait_ms = attempts.moment_ms() if code in _ENDING else attempts.failed_ms()
        yield Wait(step=step, ms=wait_ms, about=attempts.about(what, reason))


def _failure(said: ErrorCode, what: str) -> Exception:
    code = normalized_coordinator_code(said)
    if code in FENCED_CODES:
        return Fenced(code, f"{what}: {code.text}")
    if code in START_AGAIN_CODES:
        return StartAgain(code.name, f"{what}: {code.text}")
    return advised(code.group_transaction, code.name, f"{what}: {code.text}")


def gave_up(step: Step, code: ErrorCode, what: str, reason: str, patience: Patience) -> Refusal:
    """`what` was asked again for as long as may be; `reason` is why the last time was no good."""
    fate, remedy = "nothing of it is visible", Remedy.AGAIN
    if step in (Step.END_TRANSACTION, Step.READ_MARKER_AFTER_FENCING):
        fate, remedy = "whether the batch is written is not known", Remedy.LOOK
    elif step in (Step.READ_MARKER, Step.READ_MARKER_AGAIN):
        fate = "nothing more is written before it is known whether the batch is in Kafka"
    elif step is Step.FINISH_COMMIT:
        fate = "nothing more is written before what is committed is visible everywhere"
    text = f"{what}: asked for {patience.block_max_ms} ms (kafka.max.block.ms), the last answer was: {reason.rstrip(' .')}; {fate}"
    return Refusal(code.group, code.name, text, remedy)


# A broker that fails in itself has not said that nothing is open.
_NO_ANSWER = frozenset({codes.UNKNOWN_SERVER_ERROR})
_WRONG_COORDINATOR = frozenset({codes.NOT_COORDINATOR, codes.COORDINATOR_NOT_AVAILABLE})
# A transaction before ours is still ending.
_ENDING = frozenset({codes.CONCURRENT_TRANSACTIONS, codes.UNSTABLE_OFFSET_COMMIT})


def _first_error(response: Message) -> ErrorCode:
    """The first error in an answer, wherever this API puts it; the one that explains the others goes first."""
    found = [code for code, _ in codes_in(response)]
    telling = [code for code in found if code is not codes.OPERATION_NOT_ATTEMPTED]
    return (telling or found or [codes.NONE])[0]


def _fetched_partitions(response: OffsetFetchResponse) -> list[OffsetFetchResponsePartition | OffsetFetchResponsePartitions]:
    """Of the old form and of the new one: an answer has one of them."""
    old = [part for topic in response.topics for part in topic.partitions]
    return [*old, *(part for group in response.groups for topics in group.topics for part in topics.partitions)]
