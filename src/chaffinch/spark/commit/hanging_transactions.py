"""Hanging transactions: open in a partition although their coordinator has ended them (KIP-664).

With one broker, Apache Kafka 4.3.1 may lose end markers: the broker dies while a transaction ends, or is down longer than the transaction
timeout. After its start the coordinator reports the transaction as ended, but writes no marker to any partition ("Couldn't find leader
endpoint"). The producer's next transaction would then end the old rows with its own outcome. So they are ended first, with the outcome
that the coordinator reports:

- a committed transaction before InitProducerId, which makes the coordinator forget the outcome: `complete_previous.py`;
- an aborted one before a partition joins the new transaction: `Search`.

DescribeProducers returns the open transactions of our producer in the partitions of each leader.
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
    """The request to one leader, for some of its partitions."""
    topics = [
        DescribeProducersTopicRequest(name=name, partition_indexes=[found.partition for found in group])
        for name, group in groupby(sorted(partitions), key=lambda found: found.topic)
    ]
    return DescribeProducersRequest(topics=topics)


def parse_response(response: DescribeProducersResponse, producer_id: int) -> HangingTransactions:
    """The result of one leader. A partition with an error that is not retried counts as answered: its leader reports nothing."""
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
    """Search for hanging transactions; remembers which partitions have answered.

    Each attempt at the transaction needs a new one: it ends with an abort whose markers may be lost in turn.
    """

    step: Step = Step.FIND_HANGING_TRANSACTIONS
    waits: bool = True
    """False: each leader is queried once, and partitions without a response are treated as having nothing open."""
    refused: ErrorCode = codes.NONE
    """Why the result may be incomplete: the error of a leader that does not support the request, or refuses it."""
    last_response_ms: int = 0
    """Time of the last response; 0 before any."""
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
        """Finds open transactions in `needed`, and in `others` as far as the first request returns them.

        Leaders of `needed` are queried until they respond; no partition is queried twice. Raises Refusal when the retries are exhausted;
        with `may_be_gone`, not if the brokers know none of the missing partitions by then.
        """
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
