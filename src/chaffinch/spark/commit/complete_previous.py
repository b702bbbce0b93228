"""Finishes the last transaction of a query where its coordinator says that it is committed and partitions have not heard of it.

Why nothing is lost or doubled by it, whatever is cut where:
- Only what bears the coordinator's own epoch is committed. With EndTxn up to version 4, which is what we send, a transaction keeps its
  epoch to the end, and each of ours has an epoch of its own. Transactions open under a lower one were aborted, and are left to `Search`.
- Every partition of that transaction is asked for until its leader answers: with the next InitProducerId the coordinator forgets how it
  ended. Which they were stands in the checkpoint; without one, all those known are asked for.
- A marker that is held back may be of an attempt that was aborted: so the leader of its partition is asked for its epoch, too. Where that
  is not told it is of the last transaction if the id is the query's own, which that of a stream is taken for: each of its transactions has
  the marker finished before it begins. Where others may have used the id since, it may be of any.
- The partitions' leaders are told by WriteTxnMarkers (KIP-664), as their coordinator would have told them, until they say that it is
  replicated: each is final by itself, the same again does no harm, a late one is refused or finds nothing open, and the coordinator is as
  it was. Whoever dies in the midst of it leaves the rest to the next one. Under the epoch of a committed transaction nothing but its own
  rows is ever open.
- It takes rights that a writer may not have (ClusterAction, or Alter on the cluster). Without them a short transaction under the same
  epoch commits the same partitions; between AddPartitionsToTxn and EndTxn that is an open one like any other, and who dies there, or is
  fenced there, has it aborted.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import groupby

from chaffinch.errors import codes
from chaffinch.errors.codes import Group, Stored
from chaffinch.identifiers import ProducerIdentity, TopicPartition, pluralize
from chaffinch.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from chaffinch.spark.commit import requests
from chaffinch.spark.commit.hanging_transactions import Search
from chaffinch.spark.commit.operations import (
    CountPartitions,
    HangingTransaction,
    Lost,
    Operation,
    Reply,
    Step,
    Wait,
    WriteMarkers,
    WriteMarkersResult,
)
from chaffinch.spark.commit.plan import CommitPlan
from chaffinch.spark.commit.push import Fenced, RestartTransaction
from chaffinch.spark.commit.retry_policy import Attempts
from chaffinch.spark.refusals import Refusal, Remedy

OFFSETS_TOPIC = "__consumer_offsets"
PAUSES_MS = (0, 0, 100, 200, 400, 800, 1_600, 3_200, 6_400)
"""Before each look at what is left open: a coordinator that has just started may forget a short transaction once more."""
_STEP = Step.FINISH_COMMIT
# Another writer was faster, there or with the coordinator: the next look tells.
_OVERTAKEN = frozenset({codes.INVALID_PRODUCER_EPOCH, codes.TRANSACTION_COORDINATOR_FENCED})


def complete_previous_transaction(
    plan: CommitPlan, written_to: Iterable[TopicPartition] | None, *, is_pending: bool, waits: bool = True
) -> Generator[Operation, Reply, bool]:
    """Commit what is left open of the last transaction, if its coordinator says that it is committed. Whether the coordinator tells at all.

    `written_to`: its partitions, None where they are not known. `is_pending`: the marker is part of it. With `waits` False, for a batch
    that will not make the coordinator forget, each is asked once: what is told is finished, the rest is left to the next batch; so are a
    short transaction, whose end would have to be waited for, and rows whose marker is held back or not told of.
    """
    needed = plan.partitions().union(plan.topic_partitions() if written_to is None else written_to)
    request_plan = plan if waits else replace(plan, retry_policy=plan.retry_policy.at_most(0))
    hanging: set[HangingTransaction] = set()
    pending_marker: set[HangingTransaction] | None = set()
    for number, pause_ms in enumerate(PAUSES_MS):
        if pause_ms:
            yield Wait(step=_STEP, ms=pause_ms)
        try:
            last = yield from requests.last_transaction(_STEP, request_plan)
            if last is None or last.transaction_state != "CompleteCommit":
                return last is not None
            identity = ProducerIdentity(last.producer_id, last.producer_epoch)
            search = Search(_STEP, waits=waits)
            found = yield from search.find(
                identity.producer_id, needed, plan.topic_partitions(), request_plan.retry_policy, may_be_gone=True
            )
            hanging = _with_epoch(found, identity)
            # It may have been of an end that was under way; or of this one, which has come since.
            if is_pending or hanging or number:
                is_pending = yield from requests.is_marker_pending(_STEP, request_plan)
            if is_pending and not waits:
                return True
        except Refusal:
            if waits:
                raise
            return False
        pending_marker = (yield from _pending_marker_transactions(plan, identity)) if is_pending else set()
        if not hanging and pending_marker == set():
            return True
        if pending_marker is None and not plan.has_own_id:
            continue
        # The marker first: where it cannot be told so, rows are not either, or a short transaction that is aborted would part them.
        is_written = pending_marker is not None and (yield from _write_markers(plan, identity, pending_marker, set()))
        is_written = is_written and (yield from _write_markers(plan, identity, hanging, needed, waits=waits))
        if not waits:
            return True
        if not is_written:
            yield from _commit_in_short_transaction(plan, identity, hanging, is_pending=pending_marker != set())
    raise _still_open_refusal(plan, identity, hanging, pending_marker)


def _still_open_refusal(
    plan: CommitPlan, identity: ProducerIdentity, hanging: set[HangingTransaction], pending_marker: set[HangingTransaction] | None
) -> Refusal:
    if pending_marker is None and not plan.has_own_id:
        return marker_outcome_unknown(plan, identity.producer_id)
    parts = [pluralize(len(hanging), "partition")] if hanging else []
    parts += [f"the offsets of group {plan.group_id}"] if pending_marker != set() else []
    text = f"what the coordinator of transactional id {plan.transactional_id} says is committed is still open in {' and '.join(parts)}"
    return Refusal(Group.TRANSACTION_ABORTABLE, "TRANSACTION_LEFT_OPEN", f"{text}; this batch is not begun", Remedy.AGAIN)


def _with_epoch(found: set[HangingTransaction], identity: ProducerIdentity) -> set[HangingTransaction]:
    return {transaction for transaction in found if transaction.epoch == identity.epoch}


def _pending_marker_transactions(
    plan: CommitPlan, identity: ProducerIdentity
) -> Generator[Operation, Reply, set[HangingTransaction] | None]:
    """Where the group's marker is held back for the end of this transaction: nowhere, if it is of another one. None: nobody tells where,
    or of which."""
    assert plan.group_id is not None
    search = Search(_STEP)
    partition_count = yield from _offsets_partition_count(plan)
    if partition_count:
        tp = TopicPartition(OFFSETS_TOPIC, offsets_partition(plan.group_id, partition_count))
        found = yield from search.find(identity.producer_id, {tp}, (), plan.retry_policy)
        if search.refused is codes.NONE:
            return _with_epoch(found, identity)
    return None


def marker_outcome_unknown(plan: CommitPlan, producer_id: int) -> Refusal:
    if plan.has_own_id:
        why, first = "the coordinator does not tell", "before the next start, which may take it for aborted,"
    else:
        why, first = f"others may have used transactional id {plan.transactional_id} since", "run it again once; if this comes again,"
    then = "rows are there then, go on behind them with a new checkpoint"
    if not plan.is_stream:
        then = "rows are not there then, write them with another idempotencyToken, without a kafka.transactional.id"
    return Refusal(
        Group.INVALID_CONFIGURATION, "TRANSACTION_END_UNKNOWN",
        f"group {plan.group_id} holds the marker of this {'batch' if plan.is_stream else 'write'} back, and {why}, so that nobody knows "
        f"whether it is committed; nothing more is written; {first} end with chaffinch transactions abort what describe-producers shows "
        f"open of producer {producer_id}, or of an earlier one of this id, in its topics and in {OFFSETS_TOPIC}; if its {then}",
    )  # fmt: skip


def _offsets_partition_count(plan: CommitPlan) -> Generator[Operation, Reply, int]:
    attempts = Attempts(plan.retry_policy)
    while True:
        reply = yield CountPartitions(step=_STEP, topic=OFFSETS_TOPIC)
        if not isinstance(reply.value, Lost):
            return int(reply.value)
        if attempts.is_expired(reply.steady_ms):
            raise requests.retries_exhausted(
                _STEP, codes.NETWORK_EXCEPTION, f"Metadata of {OFFSETS_TOPIC}", reply.value.reason, plan.retry_policy
            )
        wait_info = attempts.wait_info(f"Metadata of {OFFSETS_TOPIC}", reply.value.reason)
        yield Wait(step=_STEP, ms=attempts.next_backoff_ms(), wait_info=wait_info)


def _write_markers(
    plan: CommitPlan, identity: ProducerIdentity, transactions: set[HangingTransaction], needed: set[TopicPartition], *, waits: bool = True
) -> Generator[Operation, Reply, bool]:
    """Whether it is ours to do. It goes on until each leader has said yes, or nobody has known the partition for so long that it is gone,
    and `needed` no longer; with `waits` False only where one may have taken what it was told: a leader that has a marker and nothing open,
    for the next batch to find, may be followed by another that never heard of it. Who gives up there, or dies, leaves that to chance."""
    attempts, possibly_written = Attempts(plan.retry_policy), frozenset[TopicPartition]()
    while transactions:
        reply = yield WriteMarkers(step=_STEP, identity=identity, transactions=tuple(sorted(transactions)))
        result: WriteMarkersResult = reply.value
        possibly_written = (possibly_written | result.possibly_written) - result.done - result.denied
        if result.refused is not codes.NONE and not possibly_written:
            return False
        transactions = {
            transaction
            for transaction in transactions
            if transaction.tp not in result.done and (waits or transaction.tp in possibly_written)
        }
        if transactions:
            if attempts.is_expired(reply.steady_ms):
                if {transaction.tp for transaction in transactions} <= result.unknown:
                    needed -= result.unknown
                    break
                raise requests.retries_exhausted(_STEP, result.code, "WriteTxnMarkers", result.reason, plan.retry_policy)
            yield Wait(step=_STEP, ms=attempts.next_backoff_ms(), wait_info=attempts.wait_info("WriteTxnMarkers", result.reason))
    return True


def _commit_in_short_transaction(
    plan: CommitPlan, identity: ProducerIdentity, hanging: set[HangingTransaction], *, is_pending: bool
) -> Generator[Operation, Reply, None]:
    """A transaction under the same epoch, of nothing but what is open. Fenced or not, the next look tells what became of it."""
    with suppress(Fenced, RestartTransaction):
        if hanging:
            yield from requests.add_partitions(_STEP, plan, identity, [transaction.tp for transaction in hanging])
        if is_pending and plan.group_id is not None:
            yield from requests.add_offsets(_STEP, plan, identity)
        yield from requests.end_transaction(_STEP, plan, identity)


def write_markers_request(identity: ProducerIdentity, transactions: Iterable[HangingTransaction]) -> WriteTxnMarkersRequest:
    """The request to one leader. It takes the coordinator's epoch from the partition itself: a higher one would fence the coordinator."""
    written = []
    for epoch, alike in groupby(
        sorted(transactions, key=lambda transaction: (transaction.coordinator_epoch, transaction.tp)),
        lambda transaction: transaction.coordinator_epoch,
    ):
        topics = [
            WritableTxnMarkerTopic(name=name, partition_indexes=[transaction.tp.partition for transaction in group])
            for name, group in groupby(alike, lambda transaction: transaction.tp.topic)
        ]
        written.append(
            WritableTxnMarker(
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                transaction_result=True,
                # A partition that never saw a marker of this producer has no epoch of its coordinator.
                coordinator_epoch=max(0, epoch),
                topics=topics,
            )
        )
    return WriteTxnMarkersRequest(markers=written)


def parse_response(response: WriteTxnMarkersResponse) -> WriteMarkersResult:
    """What a leader said."""
    done, denied, unknown, possibly_written = set(), set(), set(), set()
    refused, reason, why = codes.NONE, "", codes.NETWORK_EXCEPTION
    for marker in response.markers:
        for topic in marker.topics:
            for found in topic.partitions:
                tp, code = TopicPartition(topic.name, found.partition_index), codes.by_number(found.error_code)
                if code is codes.NONE or code in _OVERTAKEN:
                    done.add(tp)
                elif requests.is_retried(code):
                    reason, why = f"{tp}: {code.summary}", code
                    possibly_written |= {tp} if code.stored is not Stored.NO else set()
                    unknown |= {tp} if code is codes.UNKNOWN_TOPIC_OR_PARTITION else set()
                else:
                    refused = code
                    denied.add(tp)
    return WriteMarkersResult(
        done=frozenset(done), denied=frozenset(denied), refused=refused, unknown=frozenset(unknown),
        possibly_written=frozenset(possibly_written), reason=reason, code=why,
    )  # fmt: skip


def offsets_partition(group_id: str, partition_count: int) -> int:
    """In which partition of `__consumer_offsets` Apache Kafka keeps a group's offsets: String.hashCode, without its sign."""
    units = group_id.encode("utf-16-be", "surrogatepass")
    number = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        number = (31 * number + (high << 8 | low)) % 2**32
    # Utils.abs: the smallest int, which has no positive one, counts as 0.
    distance = min(number, 2**32 - number) % 2**31
    return distance % partition_count
