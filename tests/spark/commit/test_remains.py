"""What leaders are asked about an earlier attempt: whom, how often, and what becomes of what they say."""

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
from chaffinch.spark.commit import remains
from chaffinch.spark.commit.operations import FindRemains, LeftOpen, Remains, Reply, Step, Wait
from chaffinch.spark.commit.remains import Search
from chaffinch.spark.refusals import Refusal, Remedy
from chaffinch.spark.snapshot import TRANSACTION_TIMEOUT_MAX_MS_DEFAULT, TargetSnapshot, TopicSnapshot
from tests.spark.commit.commit_world import DEAD, PATIENCE, Cut, Killed
from tests.spark.commit.test_culprits import OPERATIONS, assert_sorted_out, compacted_meanwhile
from tests.spark.commit.test_protocol import two_batches

A, B, C = (TopicPartition("t", number) for number in range(3))
PRODUCER_ID = 7


def searched(
    search: Search,
    needed: Sequence[TopicPartition],
    others: Sequence[TopicPartition],
    replies: Iterable[Remains],
    **options: Any,
) -> tuple[set[TopicPartition], list[tuple[tuple[TopicPartition, ...], bool]]]:
    """Runs one search; `replies` are what comes to each question. Where something was found, and the questions (partitions, refresh)."""
    questions: list[tuple[tuple[TopicPartition, ...], bool]] = []
    steady_ms = 0
    run = search.find(PRODUCER_ID, set(needed), others, PATIENCE, **options)
    replies = iter(replies)
    try:
        operation = next(run)
        while True:
            assert operation.step is Step.FIND_REMAINS
            if isinstance(operation, Wait):
                steady_ms, value = steady_ms + operation.ms, None
            else:
                assert isinstance(operation, FindRemains)
                assert operation.producer_id == PRODUCER_ID
                questions.append((operation.partitions, operation.refresh))
                value = next(replies)
            operation = run.send(Reply(steady_ms=steady_ms, value=value))
    except StopIteration as done:
        return {left.place for left in done.value}, questions


def said(*asked: TopicPartition, left_open: Sequence[TopicPartition] = ()) -> Remains:
    return Remains(asked=frozenset(asked), left_open=frozenset(LeftOpen(place, 0, 0) for place in left_open), reason="something")


def test_all_are_asked_with_the_first_question_and_none_of_them_again() -> None:
    search = Search()
    assert searched(search, [A], [A, B, C], [said(A, B, left_open=[B])]) == ({B}, [((A, B, C), False)])
    assert searched(search, [A, B], [A, B, C], []) == (set(), [])
    assert searched(search, [B, C], [A, B, C], [said(C)]) == (set(), [((C,), False)])


def test_what_is_needed_is_asked_for_until_it_is_said_and_nothing_found_before_is_forgotten() -> None:
    replies = [said(A, C, left_open=[C]), said(), said(B, left_open=[B])]
    assert searched(Search(), [A, B], [C], replies) == ({B, C}, [((A, B, C), False), ((B,), True), ((B,), True)])


def test_who_is_not_needed_holds_nothing_up() -> None:
    assert searched(Search(), [A], [B, C], [said(A)]) == (set(), [((A, B, C), False)])


def test_a_leader_that_never_says_fails_the_batch() -> None:
    never = iter(lambda: Remains(reason="b:9092: connection closed"), None)
    with pytest.raises(Refusal) as caught:
        searched(Search(), [A], [B], never)
    assert caught.value.remedy is Remedy.AGAIN
    assert "DescribeProducers of t: asked for 60000 ms (kafka.max.block.ms)" in str(caught.value)
    assert "b:9092: connection closed; nothing of it is visible" in str(caught.value)


def test_partitions_that_are_gone_hold_nothing_up_for_ever() -> None:
    gone = iter(lambda: Remains(asked=frozenset([A]), unknown=frozenset([B]), reason="no such topic"), None)
    found, questions = searched(Search(), [A, B], [], gone, may_be_gone=True)
    seconds = PATIENCE.block_max_ms // 1000
    assert found == set()
    assert seconds < len(questions) < 1.2 * seconds, "as clients ask: soon at first, and then about once a second"


def test_partitions_whose_leader_does_not_answer_are_not_taken_for_gone() -> None:
    away = iter(lambda: Remains(unknown=frozenset([B]), reason="A has no leader"), None)
    with pytest.raises(Refusal, match="A has no leader"):
        searched(Search(), [A, B], [], away, may_be_gone=True)


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
def test_what_one_partition_answers(code: codes.ErrorCode, is_asked: bool, is_open: bool) -> None:
    ours = DescribeProducersState(producer_id=PRODUCER_ID, producer_epoch=3, coordinator_epoch=2, current_txn_start_offset=40)
    found = remains.read(_answer(A, [ours] if code is codes.NONE else [], code), PRODUCER_ID)
    assert (found.asked, found.left_open) == (frozenset({A} if is_asked else ()), frozenset({LeftOpen(A, 3, 2)} if is_open else ()))
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
    ids=["nobody", "another producer's", "ended"],
)
def test_what_is_not_ours_or_has_ended_is_not_left_open(states: list[DescribeProducersState]) -> None:
    assert remains.read(_answer(A, states), PRODUCER_ID) == Remains(asked=frozenset([A]))


def _answer(place: TopicPartition, states: list[DescribeProducersState], code: codes.ErrorCode = codes.NONE) -> DescribeProducersResponse:
    part = DescribeProducersPartitionResponse(partition_index=place.partition, error_code=code.number, active_producers=states)
    return DescribeProducersResponse(topics=[DescribeProducersTopicResponse(name=place.topic, partitions=[part])])


def test_the_time_that_leaders_take_to_say_it_is_not_that_of_the_transaction() -> None:
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
def test_dead_letters_that_are_left_open_are_not_made_visible(
    topics: tuple[TopicSnapshot, ...], at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt finds them when rows are set aside, in the middle of its transaction, or before it."""
    broker, query = compacted_meanwhile()
    with pytest.raises(Killed):
        query.run(Cut(at=at, how="crash_after"))
    with monkeypatch.context() as patched:
        patched.setattr(TransactionParticipants, "write_marker", lambda *_: None)
        broker.pass_time(TRANSACTION_TIMEOUT_MAX_MS_DEFAULT)
    query.commit(0, target=TargetSnapshot(topics=topics))
    assert_sorted_out(broker)
