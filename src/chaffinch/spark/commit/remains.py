"""What partitions still hold open of an earlier transaction although its coordinator says that it has ended.

Apache Kafka 4.3.1 with one broker that died in the midst of a transaction's end, or was away for longer than it might last, says at its
start that it has ended, and writes the markers into no partition ("Couldn't find leader endpoint"). The next transaction of the producer
would end it as it ends itself. So it is ended first, as its coordinator says:

- one that is committed before our producer introduces itself, since the coordinator forgets it then: `finish.py`;
- one that is aborted before a partition joins the transaction: `Search`.

Leaders are asked what our producer has open in their partitions (DescribeProducers, KIP-664).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from itertools import groupby

from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import NO_OFFSET, TopicPartition
from chaffinch.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicRequest,
)
from chaffinch.spark.commit import requests
from chaffinch.spark.commit.operations import FindRemains, LeftOpen, Operation, Remains, Reply, Step, Wait
from chaffinch.spark.commit.patience import Attempts, Patience


def question(partitions: Iterable[TopicPartition]) -> DescribeProducersRequest:
    """The request to one leader, about some of its partitions."""
    topics = [
        DescribeProducersTopicRequest(name=name, partition_indexes=[found.partition for found in group])
        for name, group in groupby(sorted(partitions), key=lambda found: found.topic)
    ]
    return DescribeProducersRequest(topics=topics)


def read(answer: DescribeProducersResponse, producer_id: int) -> Remains:
    """What a leader said. A partition with an error that asking again cannot mend counts as asked: its leader has nothing to tell."""
    asked, unknown, left_open, reason, why, refused = set(), set(), set(), "", codes.NETWORK_EXCEPTION, codes.NONE
    for topic in answer.topics:
        for found in topic.partitions:
            place, code = TopicPartition(topic.name, found.partition_index), codes.by_number(found.error_code)
            if requests.is_asked_again(code):
                reason, why = f"{place}: {code.summary}", code
                if code is codes.UNKNOWN_TOPIC_OR_PARTITION:
                    unknown.add(place)
                continue
            asked.add(place)
            refused = refused if code is codes.NONE else code
            for state in found.active_producers:
                if state.producer_id == producer_id and state.current_txn_start_offset != NO_OFFSET:
                    left_open.add(LeftOpen(place, state.producer_epoch, state.coordinator_epoch))
    return Remains(
        asked=frozenset(asked), unknown=frozenset(unknown), left_open=frozenset(left_open), refused=refused, reason=reason, code=why
    )


@dataclass(slots=True)
class Search:
    """Which partitions have been asked for. One per attempt at the transaction: each ends with an abort that may be forgotten in turn."""

    step: Step = Step.FIND_REMAINS
    waits: bool = True
    """Else each leader is asked once, and what it does not tell is not found."""
    refused: ErrorCode = codes.NONE
    """Why something of what it found may lack: its leader never will tell, or may not."""
    said_ms: int = 0
    """When the last answer was there; 0 before any."""
    _asked: set[TopicPartition] = field(default_factory=set)

    def find(
        self,
        producer_id: int,
        needed: set[TopicPartition],
        others: Iterable[TopicPartition],
        patience: Patience,
        *,
        may_be_gone: bool = False,
    ) -> Generator[Operation, Reply, set[LeftOpen]]:
        """What is left open: in `needed`, each asked for until its leader answers, and with the first question in `others`. Nothing is
        asked twice. Raises Refusal when patience ends; with `may_be_gone` not for partitions that nobody knows any more by then."""
        left_open: set[LeftOpen] = set()
        wanted = needed if self._asked else needed.union(others)
        attempts, refresh = Attempts(patience), False
        while missing := needed - self._asked:
            reply = yield FindRemains(
                step=self.step, producer_id=producer_id, partitions=tuple(sorted(wanted - self._asked)), refresh=refresh
            )
            said: Remains = reply.value
            self.said_ms = reply.steady_ms
            self._asked |= said.asked
            self.refused = said.refused if said.refused is not codes.NONE else self.refused
            left_open |= said.left_open
            if missing := missing - said.asked:
                if attempts.are_over(reply.steady_ms):
                    if not self.waits or (may_be_gone and missing <= said.unknown):
                        break
                    what = f"DescribeProducers of {', '.join(sorted({place.topic for place in missing}))}"
                    raise requests.gave_up(self.step, said.code, what, said.reason, patience)
                about = attempts.about(f"DescribeProducers of {', '.join(map(str, sorted(missing)))}", said.reason)
                yield Wait(step=self.step, ms=attempts.failed_ms(), about=about)
            wanted, refresh = needed, True
        return left_open
