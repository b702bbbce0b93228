"""Search for hanging transactions: which leaders are asked, how often, and how their responses are used."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from chaffinch.broker.core.startup import TransactionParticipants
from chaffinch.errors import codes
from chaffinch.identifiers import NO_OFFSET, TopicPartition
from chaffinch.protocol.messages.describe_producers import (
    DescribeProducersPartitionResponse,
    DescribeProducersResponse,
    DescribeProducersState,
    DescribeProducersTopicResponse,
)
from chaffinch.spark.commit import hanging_transactions
from chaffinch.spark.commit.hanging_transactions import Search
from chaffinch.spark.commit.operations import FindHangingTransactions, HangingTransaction, HangingTransactions, Reply, Step, Wait
from chaffinch.spark.refusals import Refusal, Remedy
from chaffinch.spark.snapshot import TRANSACTION_TIMEOUT_MAX_MS_DEFAULT, TargetSnapshot, TopicSnapshot
from tests.spark.commit.commit_world import DEAD, RETRY_POLICY, Cut, Killed
from tests.spark.commit.test_culprits import OPERATIONS, assert_sorted_out, compacted_during_commit
from tests.spark.commit.test_protocol import two_batches

A, B, C = (TopicPartition("t", number) for number in range(3))
PRODUCER_ID = 7


def run_search(
    search: Search,
    needed: Sequence[TopicPartition],
    others: Sequence[TopicPartition],
    replies: Iterable[HangingTransactions],
    **options: Any,
) -> tuple[set[TopicPartition], list[tuple[tuple[TopicPartition, ...], bool]]]:
    """Runs one search; `replies`: one per request. Returns open partitions, and the requests (partitions, refresh)."""
    requests: list[tuple[tuple[TopicPartition, ...], bool]] = []
    steady_ms = 0
    run = search.find(PRODUCER_ID, set(needed), others, RETRY_POLICY, **options)
    replies = iter(replies)
    try:
        operation = next(run)
        while True:
            assert operation.step is Step.FIND_HANGING_TRANSACTIONS
            if isinstance(operation, Wait):
                steady_ms, value = steady_ms + operation.ms, None
            else:
                assert isinstance(operation, FindHangingTransactions)
                assert operation.producer_id == PRODUCER_ID
                requests.append((operation.partitions, operation.refresh))
                value = next(replies)
            operation = run.send(Reply(steady_ms=steady_ms, value=value))
    except StopIteration as done:
        return {transaction.tp for transaction in done.value}, requests


def said(*asked: TopicPartition, hanging: Sequence[TopicPartition] = ()) -> HangingTransactions:
    return HangingTransactions(
        answered=frozenset(asked), hanging=frozenset(HangingTransaction(tp, 0, 0) for tp in hanging), reason="something"
    )


def test_first_request_covers_all_partitions_once() -> None:
    search = Search()
    assert run_search(search, [A], [A, B, C], [said(A, B, hanging=[B])]) == ({B}, [((A, B, C), False)])
    assert run_search(search, [A, B], [A, B, C], []) == (set(), [])
    assert run_search(search, [B, C], [A, B, C], [said(C)]) == (set(), [((C,), False)])


def test_needed_partitions_are_requested_until_answered() -> None:
    replies = [said(A, C, hanging=[C]), said(), said(B, hanging=[B])]
    assert run_search(Search(), [A, B], [C], replies) == ({B, C}, [((A, B, C), False), ((B,), True), ((B,), True)])


def test_other_partitions_are_not_waited_for() -> None:
    assert run_search(Search(), [A], [B, C], [said(A)]) == (set(), [((A, B, C), False)])


def test_leader_without_response_fails_the_batch() -> None:
    never = iter(lambda: HangingTransactions(reason="b:9092: connection closed"), None)
    with pytest.raises(Refusal) as caught:
        run_search(Search(), [A], [B], never)
    assert caught.value.remedy is Remedy.AGAIN
    assert "DescribeProducers of t: retried for 60000 ms (kafka.max.block.ms)" in str(caught.value)
    assert "b:9092: connection closed; no rows of the batch are visible" in str(caught.value)


def test_deleted_partitions_end_the_wait() -> None:
    gone = iter(lambda: HangingTransactions(answered=frozenset([A]), unknown=frozenset([B]), reason="no such topic"), None)
    found, requests = run_search(Search(), [A, B], [], gone, may_be_gone=True)
    seconds = RETRY_POLICY.block_max_ms // 1000
    assert found == set()
    assert seconds < len(requests) < 1.2 * seconds, "as clients ask: soon at first, and then about once a second"


def test_partitions_without_response_are_not_deleted() -> None:
    away = iter(lambda: HangingTransactions(unknown=frozenset([B]), reason="A has no leader"), None)
    with pytest.raises(Refusal, match="A has no leader"):
        run_search(Search(), [A, B], [], away, may_be_gone=True)


@pytest.mark.parametrize(
    ("code", "is_asked", "is_open"),
    [
        (codes.NONE, True, True),
        (codes.NOT_LEADER_OR_FOLLOWER, False, False),
        (codes.UNKNOWN_TOPIC_OR_PARTITION, False, False),
        (codes.TOPIC_AUTHORIZATION_FAILED, True, False),
        (codes.UNKNOWN_SERVER_ERROR, False, False),
    ],
)
def test_response_codes_of_describe_producers(code: codes.ErrorCode, is_asked: bool, is_open: bool) -> None:
    ours = DescribeProducersState(producer_id=PRODUCER_ID, producer_epoch=3, coordinator_epoch=2, current_txn_start_offset=40)
    found = hanging_transactions.parse_response(_answer(A, [ours] if code is codes.NONE else [], code), PRODUCER_ID)
    assert (found.answered, found.hanging) == (
        frozenset({A} if is_asked else ()),
        frozenset({HangingTransaction(A, 3, 2)} if is_open else ()),
    )
    assert found.unknown == frozenset({A} if code is codes.UNKNOWN_TOPIC_OR_PARTITION else ())
    assert bool(found.reason) is not is_asked
    assert found.code is (codes.NETWORK_EXCEPTION if is_asked else code)


@pytest.mark.parametrize(
    "states",
    [
        [],
        [DescribeProducersState(producer_id=8, current_txn_start_offset=0)],
        [DescribeProducersState(producer_id=7, current_txn_start_offset=NO_OFFSET)],
    ],
    ids=["none", "another producer's", "ended"],
)
def test_other_or_ended_transactions_are_not_hanging(states: list[DescribeProducersState]) -> None:
    assert hanging_transactions.parse_response(_answer(A, states), PRODUCER_ID) == HangingTransactions(answered=frozenset([A]))


def _answer(tp: TopicPartition, states: list[DescribeProducersState], code: codes.ErrorCode = codes.NONE) -> DescribeProducersResponse:
    part = DescribeProducersPartitionResponse(partition_index=tp.partition, error_code=code.number, active_producers=states)
    return DescribeProducersResponse(topics=[DescribeProducersTopicResponse(name=tp.topic, partitions=[part])])


def test_search_time_does_not_count_as_transaction_time() -> None:
    """It begins at the coordinator when its first partition joins."""
    broker, query = two_batches()
    broker.core.faults.add(api="DescribeProducers", error="NOT_LEADER_OR_FOLLOWER", count=55)
    broker.core.faults.add(api="Produce", error="NOT_LEADER_OR_FOLLOWER", count=40)
    done = query.commit(0).result
    assert done.outcome == "written"
    assert 10_000 <= done.counts.push_ms < 55_000


DEAD_TOPIC = TopicSnapshot(topic=DEAD, topic_id=bytes(16), partition_count=1)


@pytest.mark.parametrize("topics", [(), (DEAD_TOPIC,)], ids=["not known before", "asked for with the first question"])
@pytest.mark.parametrize("at", range(OPERATIONS))
def test_hanging_dead_letters_stay_invisible(topics: tuple[TopicSnapshot, ...], at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second attempt finds them when rows are set aside, in the middle of its transaction, or before it."""
    broker, query = compacted_during_commit()
    with pytest.raises(Killed):
        query.run(Cut(at=at, how="crash_after"))
    with monkeypatch.context() as patched:
        patched.setattr(TransactionParticipants, "write_marker", lambda *_: None)
        broker.pass_time(TRANSACTION_TIMEOUT_MAX_MS_DEFAULT)
    query.commit(0, target=TargetSnapshot(topics=topics))
    assert_sorted_out(broker)
