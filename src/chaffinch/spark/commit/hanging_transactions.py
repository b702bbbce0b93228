"""What partitions still hold open of an earlier transaction although its coordinator says that it has ended.

Apache Kafka 4.3.1 with one broker that died in the midst of a transaction's end, or was away for longer than it might last, says at its
start that it has ended, and writes the markers into no partition ("Couldn't find leader endpoint"). The next transaction of the producer
would end it as it ends itself. So it is ended first, as its coordinator says:

- one that is committed before our producer introduces itself, since the coordinator forgets it then: `complete_previous.py`;
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
from chaffinch.spark.commit.operations import FindHangingTransactions, HangingTransaction, HangingTransactions, Operation, Reply, Step, Wait
from chaffinch.spark.commit.retry_policy import Attempts, RetryPolicy


def describe_producers_request(partitions: Iterable[TopicPartition]) -> DescribeProducersRequest:
    """The request to one leader, about some of its partitions."""
    topics = [
        DescribeProducersTopicRequest(name=name, partition_indexes=[found.partition for found in group])
        for name, group in groupby(sorted(partitions), key=lambda found: found.topic)
    ]
    return DescribeProducersRequest(topics=topics)


def parse_response(response: DescribeProducersResponse, producer_id: int) -> HangingTransactions:
    """What a leader said. A partition with an error that asking again cannot mend counts as asked: its leader has nothing to tell."""
    answered, unknown, hanging, reason, why, refused = set(), set(), set(), "", codes.NETWORK_EXCEPTION, codes.NONE
    for topic in response.topics:
        for part in topic.partitions:
            tp, code = TopicPartition(topic.name, part.partition_index), codes.by_number(part.error_code)
            if requests.is_retried(code):
                reason, why = f"{tp}: {code.summary}", code
                if code is codes.UNKNOWN_TOPIC_OR_PARTITION:
                    unknown.add(tp)
                continue
            answered.add(tp)
            refused = refused if code is codes.NONE else code
            for state in part.active_producers:
                if state.producer_id == producer_id and state.current_txn_start_offset != NO_OFFSET:
                    hanging.add(HangingTransaction(tp, state.producer_epoch, state.coordinator_epoch))
    return HangingTransactions(
        answered=frozenset(answered), unknown=frozenset(unknown), hanging=frozenset(hanging), refused=refused, reason=reason, code=why
    )


@dataclass(slots=True)
class Search:
    """Which partitions have been asked for. One per attempt at the transaction: each ends with an abort that may be forgotten in turn."""

    step: Step = Step.FIND_HANGING_TRANSACTIONS
    waits: bool = True
    """Else each leader is asked once, and what it does not tell is not found."""
    refused: ErrorCode = codes.NONE
    """Why something of what it found may lack: its leader never will tell, or may not."""
    last_response_ms: int = 0
    """When the last answer was there; 0 before any."""
    _answered: set[TopicPartition] = field(default_factory=set)

    def find(
        self,
        producer_id: int,
        needed: set[TopicPartition],
        others: Iterable[TopicPartition],
        retry_policy: RetryPolicy,
        *,
        may_be_gone: bool = False,
    ) -> Generator[Operation, Reply, set[HangingTransaction]]:
        """What is left open: in `needed`, each asked for until its leader answers, and with the first question in `others`. Nothing is
        asked twice. Raises Refusal when patience ends; with `may_be_gone` not for partitions that nobody knows any more by then."""
        hanging: set[HangingTransaction] = set()
        requested = needed if self._answered else needed.union(others)
        attempts, refresh = Attempts(retry_policy), False
        while missing := needed - self._answered:
            reply = yield FindHangingTransactions(
                step=self.step, producer_id=producer_id, partitions=tuple(sorted(requested - self._answered)), refresh=refresh
            )
            found: HangingTransactions = reply.value
            self.last_response_ms = reply.steady_ms
            self._answered |= found.answered
            self.refused = found.refused if found.refused is not codes.NONE else self.refused
            hanging |= found.hanging
            if missing := missing - found.answered:
                if attempts.is_expired(reply.steady_ms):
                    if not self.waits or (may_be_gone and missing <= found.unknown):
                        break
                    what = f"DescribeProducers of {', '.join(sorted({tp.topic for tp in missing}))}"
                    raise requests.retries_exhausted(self.step, found.code, what, found.reason, retry_policy)
                wait_info = attempts.wait_info(f"DescribeProducers of {', '.join(map(str, sorted(missing)))}", found.reason)
                yield Wait(step=self.step, ms=attempts.next_backoff_ms(), wait_info=wait_info)
            requested, refresh = needed, True
        return hanging
