"""Finishes the last transaction of a query where its coordinator says that it is committed and partitions have not heard of it.

Why nothing is lost or doubled by it, whatever is cut where:
- Only what bears the coordinator's own epoch is committed. With EndTxn up to version 4, which is what we send, a transaction keeps its
  epoch to the end, and each of ours has an epoch of its own: what is open under a lower one was aborted, and is left to `remains.Search`.
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
from chaffinch.spark.commit.operations import CountPartitions, LeftOpen, Lost, Operation, Reply, Step, Told, Wait, WriteMarkers
from chaffinch.spark.commit.patience import Attempts
from chaffinch.spark.commit.plan import CommitPlan
from chaffinch.spark.commit.push import Fenced, StartAgain
from chaffinch.spark.commit.remains import Search
from chaffinch.spark.refusals import Refusal, Remedy

OFFSETS_TOPIC = "__consumer_offsets"
PAUSES_MS = (0, 0, 100, 200, 400, 800, 1_600, 3_200, 6_400)
"""Before each look at what is left open: a coordinator that has just started may forget a short transaction once more."""
_STEP = Step.FINISH_COMMIT
# Another writer was faster, there or with the coordinator: the next look tells.
_OVERTAKEN = frozenset({codes.INVALID_PRODUCER_EPOCH, codes.TRANSACTION_COORDINATOR_FENCED})


def finish_commit(
    plan: CommitPlan, written_to: Iterable[TopicPartition] | None, *, is_pending: bool, waits: bool = True
) -> Generator[Operation, Reply, bool]:
    """Commit what is left open of the last transaction, if its coordinator says that it is committed. Whether the coordinator tells at all.

    `written_to`: its partitions, None where they are not known. `is_pending`: the marker is part of it. With `waits` False, for a batch
    that will not make the coordinator forget, each is asked once: what is told is finished, the rest is left to the next batch; so are a
    short transaction, whose end would have to be waited for, and rows whose marker is held back or not told of.
    """
    needed = plan.partitions().union(plan.topic_partitions() if written_to is None else written_to)
    asked = plan if waits else replace(plan, patience=plan.patience.at_most(0))
    left_open: set[LeftOpen] = set()
    held_back: set[LeftOpen] | None = set()
    for number, pause_ms in enumerate(PAUSES_MS):
        if pause_ms:
            yield Wait(step=_STEP, ms=pause_ms)
        try:
            last = yield from requests.last_transaction(_STEP, asked)
            if last is None or last.transaction_state != "CompleteCommit":
                return last is not None
            identity = ProducerIdentity(last.producer_id, last.producer_epoch)
            search = Search(_STEP, waits=waits)
            found = yield from search.find(identity.producer_id, needed, plan.topic_partitions(), asked.patience, may_be_gone=True)
            left_open = _of(found, identity)
            # It may have been of an end that was under way; or of this one, which has come since.
            if is_pending or left_open or number:
                is_pending = yield from requests.is_marker_pending(_STEP, asked)
            if is_pending and not waits:
                return True
        except Refusal:
            if waits:
                raise
            return False
        held_back = (yield from _held_back(plan, identity)) if is_pending else set()
        if not left_open and held_back == set():
            return True
        if held_back is None and not plan.has_own_id:
            continue
        # The marker first: where it cannot be told so, rows are not either, or a short transaction that is aborted would part them.
        is_told = held_back is not None and (yield from _write(plan, identity, held_back, set()))
        is_told = is_told and (yield from _write(plan, identity, left_open, needed, waits=waits))
        if not waits:
            return True
        if not is_told:
            yield from _commit_shortly(plan, identity, left_open, is_pending=held_back != set())
    raise _stays_open(plan, identity, left_open, held_back)


def _stays_open(plan: CommitPlan, identity: ProducerIdentity, left_open: set[LeftOpen], held_back: set[LeftOpen] | None) -> Refusal:
    if held_back is None and not plan.has_own_id:
        return marker_end_unknown(plan, identity.producer_id)
    places = [pluralize(len(left_open), "partition")] if left_open else []
    places += [f"the offsets of group {plan.group_id}"] if held_back != set() else []
    text = f"what the coordinator of transactional id {plan.transactional_id} says is committed is still open in {' and '.join(places)}"
    return Refusal(Group.TRANSACTION_ABORTABLE, "TRANSACTION_LEFT_OPEN", f"{text}; this batch is not begun", Remedy.AGAIN)


def _of(found: set[LeftOpen], identity: ProducerIdentity) -> set[LeftOpen]:
    return {left for left in found if left.epoch == identity.epoch}


def _held_back(plan: CommitPlan, identity: ProducerIdentity) -> Generator[Operation, Reply, set[LeftOpen] | None]:
    """Where the group's marker is held back for the end of this transaction: nowhere, if it is of another one. None: nobody tells where,
    or of which."""
    assert plan.group_id is not None
    search = Search(_STEP)
    partition_count = yield from _offsets_partition_count(plan)
    if partition_count:
        place = TopicPartition(OFFSETS_TOPIC, offsets_partition(plan.group_id, partition_count))
        found = yield from search.find(identity.producer_id, {place}, (), plan.patience)
        if search.refused is codes.NONE:
            return _of(found, identity)
    return None


def marker_end_unknown(plan: CommitPlan, producer_id: int) -> Refusal:
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
    attempts = Attempts(plan.patience)
    while True:
        reply = yield CountPartitions(step=_STEP, topic=OFFSETS_TOPIC)
        if not isinstance(reply.value, Lost):
            return int(reply.value)
        if attempts.are_over(reply.steady_ms):
            raise requests.gave_up(_STEP, codes.NETWORK_EXCEPTION, f"Metadata of {OFFSETS_TOPIC}", reply.value.reason, plan.patience)
        about = attempts.about(f"Metadata of {OFFSETS_TOPIC}", reply.value.reason)
        yield Wait(step=_STEP, ms=attempts.failed_ms(), about=about)


def _write(
    plan: CommitPlan, identity: ProducerIdentity, places: set[LeftOpen], needed: set[TopicPartition], *, waits: bool = True
) -> Generator[Operation, Reply, bool]:
    """Whether it is ours to do. It goes on until each leader has said yes, or nobody has known the partition for so long that it is gone,
    and `needed` no longer; with `waits` False only where one may have taken what it was told: a leader that has a marker and nothing open,
    for the next batch to find, may be followed by another that never heard of it. Who gives up there, or dies, leaves that to chance."""
    attempts, unsure = Attempts(plan.patience), frozenset[TopicPartition]()
    while places:
        reply = yield WriteMarkers(step=_STEP, identity=identity, places=tuple(sorted(places)))
        told: Told = reply.value
        unsure = (unsure | told.unsure) - told.done - told.not_ours
        if told.refused is not codes.NONE and not unsure:
            return False
        places = {left for left in places if left.place not in told.done and (waits or left.place in unsure)}
        if places:
            if attempts.are_over(reply.steady_ms):
                if {left.place for left in places} <= told.unknown:
                    needed -= told.unknown
                    break
                raise requests.gave_up(_STEP, told.code, "WriteTxnMarkers", told.reason, plan.patience)
            yield Wait(step=_STEP, ms=attempts.failed_ms(), about=attempts.about("WriteTxnMarkers", told.reason))
    return True


def _commit_shortly(
    plan: CommitPlan, identity: ProducerIdentity, left_open: set[LeftOpen], *, is_pending: bool
) -> Generator[Operation, Reply, None]:
    """A transaction under the same epoch, of nothing but what is open. Fenced or not, the next look tells what became of it."""
    with suppress(Fenced, StartAgain):
        if left_open:
            yield from requests.add_partitions(_STEP, plan, identity, [left.place for left in left_open])
        if is_pending and plan.group_id is not None:
            yield from requests.add_offsets(_STEP, plan, identity)
        yield from requests.end_transaction(_STEP, plan, identity)


def markers(identity: ProducerIdentity, places: Iterable[LeftOpen]) -> WriteTxnMarkersRequest:
    """The request to one leader. It takes the coordinator's epoch from the partition itself: a higher one would fence the coordinator."""
    written = []
    for epoch, alike in groupby(sorted(places, key=lambda left: (left.coordinator_epoch, left.place)), lambda left: left.coordinator_epoch):
        topics = [
            WritableTxnMarkerTopic(name=name, partition_indexes=[left.place.partition for left in group])
            for name, group in groupby(alike, lambda left: left.place.topic)
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


def read(answer: WriteTxnMarkersResponse) -> Told:
    """What a leader said."""
    done, not_ours, unknown, unsure = set(), set(), set(), set()
    refused, reason, why = codes.NONE, "", codes.NETWORK_EXCEPTION
    for marker in answer.markers:
        for topic in marker.topics:
            for found in topic.partitions:
                place, code = TopicPartition(topic.name, found.partition_index), codes.by_number(found.error_code)
                if code is codes.NONE or code in _OVERTAKEN:
                    done.add(place)
                elif requests.is_asked_again(code):
                    reason, why = f"{place}: {code.summary}", code
                    unsure |= {place} if code.stored is not Stored.NO else set()
                    unknown |= {place} if code is codes.UNKNOWN_TOPIC_OR_PARTITION else set()
                else:
                    refused = code
                    not_ours.add(place)
    return Told(
        done=frozenset(done), not_ours=frozenset(not_ours), refused=refused, unknown=frozenset(unknown), unsure=frozenset(unsure),
        reason=reason, code=why,
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
