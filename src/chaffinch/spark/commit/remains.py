"""What partitions still hold open of an earlier transaction although its coordinator says that it has ended.

Apache Kafka 4.3.1 with one broker that died in the midst of a transaction's end, or was away for longer than it might last, says at its
start that it has ended, and writes the markers into no partition ("Couldn't find leader endpoint"). The next transaction of the producer
would end it as it ends itself. So it is ended first, as its coordinator says:

- one that is committed before our producer introduces itself, since the coordinator forgets it then: `finish_commit`;
- one that is aborted before a partition joins the transaction: `Search`.

Leaders are asked what our producer has open in their partitions (DescribeProducers, KIP-664).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby

from chaffinch.errors import codes
from chaffinch.errors.codes import Group
from chaffinch.identifiers import NO_OFFSET, ProducerIdentity, TopicPartition, counted
from chaffinch.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicRequest,
)
from chaffinch.spark.commit import requests
from chaffinch.spark.commit.operations import FindRemains, Operation, Remains, Reply, Step, Wait
from chaffinch.spark.commit.plan import CommitPlan
from chaffinch.spark.commit.push import Fenced, StartAgain
from chaffinch.spark.refusals import Refusal, Remedy


def question(partitions: Iterable[TopicPartition]) -> DescribeProducersRequest:
    """The request to one leader, about some of its partitions."""
    topics = [
        DescribeProducersTopicRequest(name=name, partition_indexes=[found.partition for found in group])
        for name, group in groupby(sorted(partitions), key=lambda found: found.topic)
    ]
    return DescribeProducersRequest(topics=topics)


def read(answer: DescribeProducersResponse, producer_id: int) -> Remains:
    """What a leader said. A partition with an error that asking again cannot mend counts as asked: its leader has nothing to tell."""
    asked, left_open, reason, why, refused = set(), set(), "", codes.NETWORK_EXCEPTION, codes.NONE
    for topic in answer.topics:
        for found in topic.partitions:
            place, code = TopicPartition(topic.name, found.partition_index), codes.by_number(found.error_code)
            if code.is_retriable:
                reason, why = f"{place}: {code.text}", code
                continue
            asked.add(place)
            refused = refused if code is codes.NONE else code
            if any(state.producer_id == producer_id and state.current_txn_start_offset != NO_OFFSET for state in found.active_producers):
                left_open.add(place)
    return Remains(asked=frozenset(asked), left_open=frozenset(left_open), refused=refused, reason=reason, code=why)


@dataclass(slots=True)
class Search:
    """Which partitions have been asked for. One per attempt at the transaction: each ends with an abort that may be forgotten in turn."""

    step: Step = Step.FIND_REMAINS
    said_ms: int = 0
    """When the last answer was there; 0 before any."""
    _asked: set[TopicPartition] = field(default_factory=set)

    def find(
        self, producer_id: int, needed: set[TopicPartition], others: Iterable[TopicPartition], block_max_ms: int
    ) -> Generator[Operation, Reply, set[TopicPartition]]:
        """Where a transaction is left open: among `needed`, each asked for until its leader answers, and with the first question among
        `others`. Nothing is asked twice. Raises Refusal after `block_max_ms`."""
        left_open: set[TopicPartition] = set()
        wanted = needed if self._asked else needed.union(others)
        deadline_ms: int | None = None
        refresh = False
        while missing := needed - self._asked:
            reply = yield FindRemains(
                step=self.step, producer_id=producer_id, partitions=tuple(sorted(wanted - self._asked)), refresh=refresh
            )
            said: Remains = reply.value
            self.said_ms = reply.now_ms
            self._asked |= said.asked
            left_open |= said.left_open
            deadline_ms = reply.now_ms + block_max_ms if deadline_ms is None else deadline_ms
            if not missing <= said.asked:
                if reply.now_ms >= deadline_ms:
                    what = f"DescribeProducers of {', '.join(sorted({place.topic for place in missing}))}"
                    raise requests.gave_up(self.step, said.code, what, said.reason, block_max_ms)
                yield Wait(step=self.step, ms=requests.WAIT_MS)
            wanted, refresh = needed, True
        return left_open


PAUSES_MS = (0, 0, 100, 200, 400, 800, 1_600, 3_200, 6_400)
"""Before each look at what is left open: a coordinator that has just started may forget once more."""


def finish_commit(plan: CommitPlan, *, is_pending: bool) -> Generator[Operation, Reply, bool]:
    """Commit what is left open of the last transaction, if its coordinator says that it is committed. `is_pending`: the marker is part of
    it. Whether the coordinator tells at all.

    Between AddPartitionsToTxn and EndTxn it is an open transaction like any other: who dies there has it aborted.
    """
    step = Step.FINISH_COMMIT
    for pause_ms in PAUSES_MS:
        if pause_ms:
            yield Wait(step=step, ms=pause_ms)
        last = yield from requests.last_transaction(step, plan.transactional_id, plan.block_max_ms)
        if last is None or last.transaction_state != "CompleteCommit":
            return last is not None
        identity = ProducerIdentity(last.producer_id, last.producer_epoch)
        left_open = yield from Search(step).find(identity.producer_id, plan.partitions(), plan.topic_partitions(), plan.block_max_ms)
        if not left_open and not is_pending:
            return True
        with suppress(Fenced, StartAgain):  # Another writer is about it, too: the next look tells.
            if left_open:
                yield from requests.add_partitions(step, plan.transactional_id, identity, sorted(left_open), plan.block_max_ms)
            if is_pending and plan.group_id is not None:
                yield from requests.add_offsets(step, plan.transactional_id, identity, plan.group_id, plan.block_max_ms)
            yield from requests.end_transaction(step, plan.transactional_id, identity, plan.block_max_ms)
        is_pending = yield from requests.is_marker_pending(step, plan.group_id, plan.marker_partition, plan.block_max_ms)
    places = counted(len(left_open), "partition")
    text = f"what the coordinator of transactional id {plan.transactional_id} says is committed is still open in {places}"
    raise Refusal(Group.TRANSACTION_ABORTABLE, "TRANSACTION_LEFT_OPEN", f"{text}; this batch is not begun", Remedy.AGAIN)
