"""What partitions still hold open of an earlier attempt although its coordinator says that it has ended: our commit would make it visible.

Apache Kafka 4.3.1 with one broker that was away for longer than the transaction might last says at its start that it is aborted, and
writes that into no partition. So before a partition joins the transaction its leader is asked what our producer has open there
(DescribeProducers, KIP-664).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from itertools import groupby

from chaffinch.errors import codes
from chaffinch.identifiers import NO_OFFSET, TopicPartition
from chaffinch.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicRequest,
)
from chaffinch.spark.commit import requests
from chaffinch.spark.commit.operations import FindRemains, Operation, Remains, Reply, Step, Wait


def question(partitions: Iterable[TopicPartition]) -> DescribeProducersRequest:
    """The request to one leader, about some of its partitions."""
    topics = [
        DescribeProducersTopicRequest(name=name, partition_indexes=[found.partition for found in group])
        for name, group in groupby(sorted(partitions), key=lambda found: found.topic)
    ]
    return DescribeProducersRequest(topics=topics)


def read(answer: DescribeProducersResponse, producer_id: int) -> Remains:
    """What a leader said. A partition with an error that asking again cannot mend counts as asked: its leader has nothing to tell."""
    asked, left_open, reason = set(), set(), ""
    for topic in answer.topics:
        for found in topic.partitions:
            place, code = TopicPartition(topic.name, found.partition_index), codes.by_number(found.error_code)
            if code.is_retriable:
                reason = f"{place}: {code.text}"
                continue
            asked.add(place)
            if any(state.producer_id == producer_id and state.current_txn_start_offset != NO_OFFSET for state in found.active_producers):
                left_open.add(place)
    return Remains(asked=frozenset(asked), left_open=frozenset(left_open), reason=reason)


@dataclass(slots=True)
class Search:
    """Which partitions have been asked for. One per commit."""

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
                step=Step.FIND_REMAINS, producer_id=producer_id, partitions=tuple(sorted(wanted - self._asked)), refresh=refresh
            )
            said: Remains = reply.value
            self._asked |= said.asked
            left_open |= said.left_open
            deadline_ms = reply.now_ms + block_max_ms if deadline_ms is None else deadline_ms
            if not missing <= said.asked:
                if reply.now_ms >= deadline_ms:
                    what = f"DescribeProducers of {', '.join(sorted({place.topic for place in missing}))}"
                    raise requests.gave_up(Step.FIND_REMAINS, codes.NETWORK_EXCEPTION, what, said.reason, block_max_ms)
                yield Wait(step=Step.FIND_REMAINS, ms=requests.WAIT_MS)
            wanted, refresh = needed, True
        return left_open
