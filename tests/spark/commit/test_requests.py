"""Requests of a commit other than Produce, with manual responses: retries, and look-ups of the coordinator."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from chaffinch.errors import codes
from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from chaffinch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from chaffinch.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from chaffinch.spark.commit import requests
from chaffinch.spark.commit.operations import Lost, Operation, Reply, SendRequest, Step, Wait
from chaffinch.spark.commit.plan import CommitPlan
from chaffinch.spark.commit.retry_policy import ENDING_POLL_MS
from tests.spark.commit.commit_world import RETRY_POLICY, Driver, outcome
from tests.spark.commit.test_protocol import two_batches


def plan(**changes: Any) -> CommitPlan:
    return two_batches()[1].plan(0, "run-1", **changes)


def answer(code: codes.ErrorCode) -> AddOffsetsToTxnResponse:
    return AddOffsetsToTxnResponse(error_code=code.number)


@pytest.mark.parametrize(
    ("said", "is_another"),
    [
        (answer(codes.NOT_COORDINATOR), True),
        (answer(codes.COORDINATOR_NOT_AVAILABLE), True),
        (Lost(reason="connection closed"), True),
        (answer(codes.COORDINATOR_LOAD_IN_PROGRESS), False),
        (answer(codes.CONCURRENT_TRANSACTIONS), False),
    ],
    ids=["not coordinator", "not available", "no answer", "loading", "ending a transaction"],
)
def test_coordinator_is_looked_up_again_after_error(said: AddOffsetsToTxnResponse | Lost, is_another: bool) -> None:
    """Else the one that is not it would be asked until kafka.max.block.ms is over."""
    asking = requests.add_offsets(Step.ADD_OFFSETS, plan(), ProducerIdentity(7, 0))
    first = next(asking)
    assert isinstance(asking.send(Reply(steady_ms=0, value=said)), Wait)
    again = asking.send(Reply(steady_ms=ENDING_POLL_MS, value=None))
    assert isinstance(first, SendRequest)
    assert isinstance(again, SendRequest)
    assert (first.to.refresh, again.to.refresh) == (False, is_another)


def test_backoff_grows_except_for_ending_transaction() -> None:
    asking = requests.add_offsets(Step.ADD_OFFSETS, plan(), ProducerIdentity(7, 0))
    next(asking)
    waited = []
    for code in (
        codes.COORDINATOR_LOAD_IN_PROGRESS,
        codes.COORDINATOR_LOAD_IN_PROGRESS,
        codes.CONCURRENT_TRANSACTIONS,
        codes.NOT_COORDINATOR,
    ):
        wait = asking.send(Reply(steady_ms=0, value=answer(code)))
        assert isinstance(wait, Wait)
        waited.append(wait.ms)
        asking.send(Reply(steady_ms=0, value=None))
    once, twice = RETRY_POLICY.wait_ms(1), RETRY_POLICY.wait_ms(2)
    assert waited == [once, twice, ENDING_POLL_MS, once]
    assert len({once, twice, ENDING_POLL_MS}) == 3


def test_leader_requests_are_retried_with_growing_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, query = two_batches()
    query.batches[0] = (outcome({0: [(b"k", b"v")]}),)
    broker.core.faults.add(api="DescribeProducers", error="NOT_LEADER_OR_FOLLOWER", count=4)
    effect, waited = Driver.effect, []

    def noted(self: Driver, operation: Operation) -> object:
        if isinstance(operation, Wait):
            waited.append(operation.ms)
        return effect(self, operation)

    monkeypatch.setattr(Driver, "effect", noted)
    assert query.commit(0).result.outcome == "written"
    assert waited == [RETRY_POLICY.wait_ms(failures) for failures in range(1, 5)]


@pytest.mark.parametrize(("block_max_ms", "tried_ms"), [(60_000, requests.ABORT_BLOCK_MAX_MS), (2_000, 2_000)])
def test_abort_without_response_has_short_limit(block_max_ms: int, tried_ms: int) -> None:
    """The next writer ends the open transaction; the query has an error to report."""
    retry_policy = replace(RETRY_POLICY, block_max_ms=block_max_ms)
    aborting, steady_ms = requests.abort(Step.ABORT, plan(retry_policy=retry_policy), 60_000, ProducerIdentity(7, 0)), 0
    operation = next(aborting)
    with suppress(StopIteration):
        while True:
            value = None
            if isinstance(operation, Wait):
                steady_ms += operation.ms
            else:
                value = Lost(reason="connection closed")
            operation = aborting.send(Reply(steady_ms=steady_ms, value=value))
    assert tried_ms <= steady_ms < tried_ms + 1_500


def test_each_topic_is_sent_once_for_unordered_partitions() -> None:
    """AddPartitionsToTxn has one list of partitions for each topic."""
    places = [TopicPartition("b", 1), TopicPartition("a", 2), TopicPartition("b", 0), TopicPartition("a", 10)]
    asked = next(requests.add_partitions(Step.ADD_PARTITIONS, plan(), ProducerIdentity(7, 0), places))
    assert isinstance(asked, SendRequest)
    assert isinstance(asked.message, AddPartitionsToTxnRequest)
    assert [(topic.name, topic.partitions) for topic in asked.message.v3_and_below_topics] == [("a", [2, 10]), ("b", [0, 1])]


def test_transaction_without_partitions_is_restarted() -> None:
    """The coordinator has nothing to abort, and says INVALID_TXN_STATE."""
    again = requests.restart_transaction(Step.ABORT, plan(), 60_000, ProducerIdentity(7, 0))
    asked = [next(again), again.send(Reply(steady_ms=1, value=EndTxnResponse(error_code=codes.INVALID_TXN_STATE.number)))]
    assert [type(ask.message) for ask in asked if isinstance(ask, SendRequest)] == [EndTxnRequest, InitProducerIdRequest]
    with pytest.raises(StopIteration) as done:
        again.send(Reply(steady_ms=2, value=InitProducerIdResponse(producer_id=7, producer_epoch=1)))
    assert done.value.value == (ProducerIdentity(7, 1), 2)
