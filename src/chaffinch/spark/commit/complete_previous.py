"""Completion of a query's previous transaction: commits the partitions that never received its commit marker.

The coordinator has committed the transaction, but some partitions still hold it open (`hanging_transactions.py` says how that happens).
No row is lost or duplicated, whatever the step at which a driver dies:

- Only transactions with the epoch that the coordinator reports are committed. With EndTxn up to version 4, which is the highest sent, a
  transaction keeps its epoch to the end, and each of ours has its own. Transactions open under a lower epoch were aborted, and are left to
  `Search`.
- The leader of every partition of that transaction is queried until it responds: the next InitProducerId makes the coordinator forget
  the outcome. The checkpoint lists these partitions; without a checkpoint, all known partitions are queried.
- A pending marker of the group may belong to an aborted attempt, so the leader of its `__consumer_offsets` partition is queried for its
  epoch, too. If that is unknown and the id is the query's own, it belongs to the previous transaction: each transaction completes the
  marker before it begins. A stream's id counts as its own. If others may have used the id in the meantime, it may belong to any
  transaction.
- The leaders get WriteTxnMarkers (KIP-664), as from the coordinator, until they report the markers as replicated. Each marker is final on
  its own, a repeated one has no effect, a late one is refused or finds nothing open, and the coordinator's state does not change. If a
  driver dies here, the next one writes the rest. Only the rows of a committed transaction are ever open under its epoch.
- WriteTxnMarkers requires rights that a writer may lack (ClusterAction, or Alter on the cluster). Without them a short transaction under
  the same epoch commits the same partitions. Between AddPartitionsToTxn and EndTxn it can be aborted like any other: if the driver dies
  or is fenced there, these rows are aborted.
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
"""Pauses before the checks for open transactions: a coordinator that has just started may lose the markers of a short transaction again."""
_STEP = Step.FINISH_COMMIT
# Another writer was faster, at the partition or at the coordinator: the next check shows the result.
_OVERTAKEN = frozenset({codes.INVALID_PRODUCER_EPOCH, codes.TRANSACTION_COORDINATOR_FENCED})


def complete_previous_transaction(
    plan: CommitPlan, written_to: Iterable[TopicPartition] | None, *, is_pending: bool, waits: bool = True
) -> Generator[Operation, Reply, bool]:
    """Commit the open partitions of the previous transaction, if its coordinator has committed it. Returns whether the outcome is known.

    `written_to`: the partitions of that transaction, None if unknown. `is_pending`: the group's marker is still open. `waits` is False for
    a batch that starts no transaction, so that the coordinator keeps the outcome: then each leader is queried once, and the next batch
    completes the rest. That includes a short transaction, which would have to be waited for, and rows whose marker is pending or unknown.
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
            # The marker may have belonged to a transaction that was ending; or the marker of this one has since become pending.
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
        # The marker first: if it cannot be written, rows are not written either. An aborted short transaction would separate them.
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
    text = f"the last transaction of transactional id {plan.transactional_id} is committed, but still open in {' and '.join(parts)}"
    return Refusal(Group.TRANSACTION_ABORTABLE, "TRANSACTION_LEFT_OPEN", f"{text}; this batch was not started", Remedy.AGAIN)


def _with_epoch(found: set[HangingTransaction], identity: ProducerIdentity) -> set[HangingTransaction]:
    return {transaction for transaction in found if transaction.epoch == identity.epoch}


def _pending_marker_transactions(
    plan: CommitPlan, identity: ProducerIdentity
) -> Generator[Operation, Reply, set[HangingTransaction] | None]:
    """The partition that holds the group's marker open for this transaction; empty if the marker belongs to another one.

    None if the partition, or the transaction of the marker, is unknown.
    """
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
        why, first = "the coordinator does not report its outcome", "before the next start, which may treat it as aborted,"
    else:
        why, first = f"others may have used transactional id {plan.transactional_id} later", "run it again once; if this error recurs,"
    then = "rows exist after that, continue after them with a new checkpoint"
    if not plan.is_stream:
        then = "rows do not exist after that, write them with another idempotencyToken, without a kafka.transactional.id"
    return Refusal(
        Group.INVALID_CONFIGURATION, "TRANSACTION_END_UNKNOWN",
        f"the marker of this {'batch' if plan.is_stream else 'write'} in group {plan.group_id} is pending, and {why}, so it is unknown "
        f"whether it is committed; nothing more is written; {first} use chaffinch transactions abort for the open transactions that "
        f"describe-producers shows for producer {producer_id}, or for an earlier one of this id, in its topics and {OFFSETS_TOPIC}; "
        f"if its {then}",
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
    """Sends WriteTxnMarkers until each leader has confirmed. Returns False if this is not allowed.

    A partition that brokers do not know at the end of the retries is deleted, and removed from `needed`. With `waits` False only markers
    that may be written already are retried: a leader that has the marker and nothing open may be followed by one that lacks it, and the
    next batch would not find that out. If the retries end there, or the driver dies, that is left to chance.
    """
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
    """A transaction under the same epoch with the open partitions only. Whether it was fenced or not, the next check shows the result."""
    with suppress(Fenced, RestartTransaction):
        if hanging:
            yield from requests.add_partitions(_STEP, plan, identity, [transaction.tp for transaction in hanging])
        if is_pending and plan.group_id is not None:
            yield from requests.add_offsets(_STEP, plan, identity)
        yield from requests.end_transaction(_STEP, plan, identity)


def write_markers_request(identity: ProducerIdentity, transactions: Iterable[HangingTransaction]) -> WriteTxnMarkersRequest:
    """The request to one leader. Each partition gets the coordinator epoch that it reported: a higher one would fence the coordinator."""
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
                # A partition without any marker of this producer has no coordinator epoch.
                coordinator_epoch=max(0, epoch),
                topics=topics,
            )
        )
    return WriteTxnMarkersRequest(markers=written)


def parse_response(response: WriteTxnMarkersResponse) -> WriteMarkersResult:
    """The result of one leader."""
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
    """The partition of `__consumer_offsets` in which Apache Kafka stores a group's offsets: String.hashCode, without its sign."""
    units = group_id.encode("utf-16-be", "surrogatepass")
    number = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        number = (31 * number + (high << 8 | low)) % 2**32
    # Utils.abs: the smallest int, which has no positive counterpart, counts as 0.
    distance = min(number, 2**32 - number) % 2**31
    return distance % partition_count
