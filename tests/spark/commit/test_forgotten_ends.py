"""A coordinator that ends a transaction and tells nobody, as Apache Kafka 4.3.1 does where its only broker dies in the midst of the end, or
is away for longer than the transaction might last: each row in Kafka exactly once all the same."""

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import count
from typing import Any, TypeAlias

import pytest

from chaffinch.broker.core.startup import TransactionParticipants
from chaffinch.errors import codes
from chaffinch.errors.codes import Group
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsState,
)
from chaffinch.protocol.messages.end_txn import EndTxnRequest
from chaffinch.spark.commit import requests
from chaffinch.spark.commit.direct import note_batch
from chaffinch.spark.commit.operations import Ask, Operation, Remains, Reply, Step, Wait
from chaffinch.spark.refusals import Refusal, Remedy
from chaffinch.spark.snapshot import TRANSACTION_TIMEOUT_MAX_MS_DEFAULT, TargetSnapshot, TopicSnapshot
from tests.spark.commit.commit_world import TOPIC, Broker, Cut, Driver, Killed, Query, counted, outcome
from tests.spark.commit.test_protocol import FIRST_ROWS, OPERATIONS, ROWS, assert_exactly_once, two_batches

pytestmark = pytest.mark.long

FIRST_STEPS = two_batches()[1].commit(0).steps
FIRST_SEND, ADDS_OFFSETS, ENDS = (FIRST_STEPS.index(step) for step in (Step.PUSH, Step.ADD_OFFSETS, Step.END_TRANSACTION))


Forgets: TypeAlias = Callable[[pytest.MonkeyPatch], AbstractContextManager[None]]

TOLD, UNAUTHORIZED, UNTOLD = "leaders are told", "that is not authorized", "partitions of offsets are not told"


@pytest.fixture(autouse=True, params=[TOLD, UNAUTHORIZED])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> object:
    """How what is committed gets to its partitions: in the second a short transaction does it."""
    goes(request.param, monkeypatch)
    return request.param


def goes(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {UNAUTHORIZED: codes.CLUSTER_AUTHORIZATION_FAILED}
    monkeypatch.setattr(Broker, "markers_refused", refused.get(way, codes.NONE))
    monkeypatch.setattr(Broker, "offsets_partitions", 0 if way == UNTOLD else 50)


@contextmanager
def told_nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Meanwhile every end of a transaction is forgotten."""
    with monkeypatch.context() as patched:
        patched.setattr(TransactionParticipants, "write_marker", lambda *_: None)
        patched.setattr(TransactionParticipants, "complete_offsets", lambda *_: None)
        yield


@contextmanager
def forgets_the_marker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Meanwhile no group hears of the end of a transaction."""
    with monkeypatch.context() as patched:
        patched.setattr(TransactionParticipants, "complete_offsets", lambda *_: None)
        yield


@contextmanager
def forgets_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Meanwhile no partition hears of the end of a transaction."""
    with monkeypatch.context() as patched:
        patched.setattr(TransactionParticipants, "write_marker", lambda *_: None)
        yield


def forgets(monkeypatch: pytest.MonkeyPatch, forgotten: Callable[[Operation], bool]) -> None:
    """What ends in an operation for which `forgotten` is true is forgotten."""
    effect = Driver.effect

    def forgetting(self: Driver, operation: Operation) -> object:
        with told_nobody(monkeypatch) if forgotten(operation) else nullcontext():
            return effect(self, operation)

    monkeypatch.setattr(Driver, "effect", forgetting)


def forgets_at(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """What ends in the operation number `at`, counted over all runs."""
    numbers = count()
    forgets(monkeypatch, lambda _: next(numbers) == at)


def forgets_ends(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """The first `times` transactions that EndTxn ends."""
    left = iter(range(times))
    forgets(monkeypatch, lambda operation: _is_end(operation) and next(left, None) is not None)


def _is_end(operation: Operation) -> bool:
    return isinstance(operation, Ask) and isinstance(operation.message, EndTxnRequest)


@pytest.mark.parametrize("at", range(OPERATIONS))
def test_a_coordinator_that_ends_a_transaction_and_tells_no_partition(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Apache Kafka's, where its only broker was away for longer than the transaction might last."""
    broker, query = two_batches()
    with pytest.raises(Killed):
        query.run(Cut(at=at, how="crash_after"))
    with told_nobody(monkeypatch):
        broker.pass_time(TRANSACTION_TIMEOUT_MAX_MS_DEFAULT)
    query.run()
    assert_exactly_once(broker)


def forgets_aborts(monkeypatch: pytest.MonkeyPatch, times: int) -> list[TopicPartition]:
    """The first `times` abort markers never come to their partitions. Those that did not, as they come."""
    write_marker = TransactionParticipants.write_marker
    untold: list[TopicPartition] = []

    def written(self: TransactionParticipants, place: TopicPartition, is_commit: bool, *rest: Any) -> None:
        if is_commit or len(untold) >= times:
            write_marker(self, place, is_commit, *rest)
        else:
            untold.append(place)

    monkeypatch.setattr(TransactionParticipants, "write_marker", written)
    return untold


@pytest.mark.parametrize("times", range(2, 9))
def test_an_abort_of_what_is_left_open_that_is_forgotten_in_turn(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker was away once more, in the midst of it."""
    broker, query = two_batches()
    with pytest.raises(Killed):
        query.run(Cut(at=ADDS_OFFSETS, how="crash_after"))
    untold = forgets_aborts(monkeypatch, times)
    broker.pass_time(TRANSACTION_TIMEOUT_MAX_MS_DEFAULT)
    while not query.done:
        with suppress(Refusal):
            query.run()
    query.run()
    assert len(untold) == times
    assert_exactly_once(broker)


@pytest.mark.parametrize("is_told", [True, False], ids=["", "by a coordinator that tells nothing"])
def test_the_abort_of_an_attempt_that_is_forgotten(is_told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ours, and this run knows how it ended."""
    broker, query = two_batches()
    if not is_told:
        broker.core.faults.add(api="DescribeTransactions", error="UNSUPPORTED_VERSION", count=1_000)
    untold = forgets_aborts(monkeypatch, 1)
    fault: dict[str, Any] = {"api": "Produce", "error": "OUT_OF_ORDER_SEQUENCE_NUMBER", "count": 1}
    query.run(Cut(at=FIRST_SEND + 1, how="during", during=lambda: broker.core.faults.add(**fault)))
    assert untold
    assert_exactly_once(broker)


@pytest.mark.parametrize("how", ["crash_after", "lose_answer"])
@pytest.mark.parametrize("at", range(OPERATIONS))
def test_an_end_that_is_forgotten(at: int, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ended in this operation; what it was cannot be told from its answer."""
    broker, query = two_batches()
    forgets_at(monkeypatch, at)
    with suppress(Killed):
        query.run(Cut(at=at, how=how))
    query.run()
    query.commit(1)  # What was forgotten last is found by whoever comes next.
    assert_exactly_once(broker)


@pytest.mark.parametrize("how", ["crash_before", "crash_after"])
@pytest.mark.parametrize("at", range(OPERATIONS))
def test_a_death_after_a_commit_that_is_forgotten(at: int, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is noted: neither that it was answered, nor by the group that it holds the marker."""
    broker, query = two_batches()
    forgets_at(monkeypatch, ENDS)
    with pytest.raises(Killed):
        query.run(Cut(at=ENDS, how="crash_after"))
    with suppress(Killed):
        query.run(Cut(at=at, how=how))
    query.run()
    assert_exactly_once(broker)


def test_a_commit_that_is_forgotten_becomes_visible_with_the_next_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, query = two_batches()
    forgets_at(monkeypatch, ENDS)
    query.run(until=1)
    assert broker.read(TOPIC) == []
    query.run()
    assert_exactly_once(broker)


@pytest.mark.parametrize("times", [2, 5])
def test_a_commit_that_is_forgotten_again_while_it_is_finished(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that has just started does not know all leaders for a while."""
    broker, query = two_batches()
    forgets_ends(monkeypatch, times)
    query.run()
    query.commit(1)
    assert_exactly_once(broker)


@pytest.mark.parametrize("way", [UNAUTHORIZED, UNTOLD], indirect=True)
def test_a_commit_that_is_forgotten_for_ever_fails_the_next_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, query = two_batches()
    forgets_ends(monkeypatch, 1_000)
    said = "is committed is still open in 2 partitions and the offsets of group chaffinch-q; this batch is not begun"
    with pytest.raises(Refusal, match=said):
        query.run()
    assert broker.read(TOPIC) == []


@pytest.mark.parametrize("way", [TOLD], indirect=True)
def test_where_leaders_are_told_nobody_has_to_remember(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, query = two_batches()
    forgets_ends(monkeypatch, 1_000)
    query.run()
    query.commit(1)
    assert_exactly_once(broker)


def forgets_commits(monkeypatch: pytest.MonkeyPatch, times: int = 1) -> None:
    """The first `times` batches that are committed."""
    left = iter(range(times))
    forgets(monkeypatch, lambda operation: operation.step is Step.END_TRANSACTION and next(left, None) is not None)


def test_what_was_aborted_before_is_not_committed_with_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows without keys go elsewhere when the batch is written again, and nobody asks where they were; a later batch goes there."""
    broker, query = two_batches()
    with pytest.raises(Killed):
        query.run(Cut(at=ADDS_OFFSETS, how="crash_after"))
    with told_nobody(monkeypatch):
        broker.pass_time(TRANSACTION_TIMEOUT_MAX_MS_DEFAULT)
    query.batches = [(outcome({0: FIRST_ROWS}),), query.batches[1]]
    forgets_commits(monkeypatch)
    query.run()
    assert_exactly_once(broker)


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_commit_that_is_forgotten_where_the_next_batch_has_no_rows(has_checkpoint: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint tells where it was; without one all partitions known are asked for, until they answer."""
    broker, query = two_batches(has_checkpoint=has_checkpoint)
    query.batches = [query.batches[0], (outcome({0: ROWS[1][0]}),), (outcome({1: ROWS[1][1]}),)]
    target = TargetSnapshot(topics=() if has_checkpoint else (TopicSnapshot(topic=TOPIC, topic_id=bytes(16), partition_count=2),))
    forgets_commits(monkeypatch)
    query.commit(0, target=target)
    broker.core.faults.add(api="DescribeProducers", error="NOT_LEADER_OR_FOLLOWER", count=3)
    for batch_id in (1, 2):
        query.commit(batch_id, target=target)
    assert_exactly_once(broker)


FINISHING = range(ENDS + 2, ENDS + 14)
"""Operations of a run whose first commit was forgotten, until its second batch has introduced itself."""
SHORTLY_OPEN = {UNAUTHORIZED: {10, 11}, UNTOLD: {8, 9}}
"""Those of them, from the end on, after which a short transaction is open like any other: another driver aborts it."""


def finishing(way: str) -> list[pytest.ParameterSet]:
    return [pytest.param(way, at, id=f"{way}-{at - ENDS}") for at in FINISHING if at - ENDS not in SHORTLY_OPEN.get(way, ())]


def joined_while_it_finishes(monkeypatch: pytest.MonkeyPatch, at: int, dies_at: int | None = None) -> tuple[Broker, Query, Query]:
    """The first commit was forgotten; in operation `at` of the query that finishes it, another driver does all of the second batch, or
    dies in its own operation `dies_at`. The query goes on with what it knew before."""
    broker, query = two_batches()
    other = Query(broker, query.batches, done=1, run_count=100)
    forgets_at(monkeypatch, ENDS)

    def meanwhile() -> None:
        other.state = query.state
        if other.done == 1:
            with suppress(Killed):
                other.run(None if dies_at is None else Cut(at=dies_at, how="crash_after"))

    with suppress(Refusal):
        query.run(Cut(at=at, how="during", during=meanwhile))
    return broker, query, other


@pytest.mark.parametrize(("way", "at"), [*finishing(TOLD), *finishing(UNAUTHORIZED), *finishing(UNTOLD)], indirect=["way"])
def test_a_second_driver_while_a_forgotten_commit_is_finished(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, query, other = joined_while_it_finishes(monkeypatch, at)
    assert other.done == 2
    query.state, query.done = other.state, 1
    query.run()
    assert_exactly_once(broker)


@pytest.mark.parametrize("way", [TOLD], indirect=True)
@pytest.mark.parametrize("dies_at", range(4, OPERATIONS // 2))
@pytest.mark.parametrize("at", FINISHING)
def test_a_marker_that_is_late_or_repeated_ends_nothing_else(at: int, dies_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two requests of the one that finishes, another driver finishes, begins its transaction, and dies in it."""
    broker, query, _ = joined_while_it_finishes(monkeypatch, at, dies_at)
    query.run()
    assert_exactly_once(broker)


def forgets_all_but(monkeypatch: pytest.MonkeyPatch, told: str | int | None) -> None:
    """The first commit is heard of by one participant only: a partition by its number, or the group."""
    write_marker, complete_offsets = TransactionParticipants.write_marker, TransactionParticipants.complete_offsets
    is_first = {"marker": True, "offsets": True}

    def write(self: TransactionParticipants, place: TopicPartition, is_commit: bool, *rest: Any) -> None:
        if place.partition == told or not (is_commit and is_first["marker"]):
            write_marker(self, place, is_commit, *rest)

    def complete(self: TransactionParticipants, group: str, producer_id: int, is_commit: bool) -> None:
        if told == "group" or not (is_commit and is_first["offsets"]):
            complete_offsets(self, group, producer_id, is_commit)
            is_first["marker"] = False
        is_first["offsets"] = False

    monkeypatch.setattr(TransactionParticipants, "write_marker", write)
    monkeypatch.setattr(TransactionParticipants, "complete_offsets", complete)


@pytest.mark.parametrize("way", [TOLD], indirect=True)
@pytest.mark.parametrize("told", [None, 0, 1, "group"], ids=str)
@pytest.mark.parametrize("how", ["crash_before", "crash_after", "lose_request", "lose_answer"])
@pytest.mark.parametrize("at", FINISHING)
def test_a_death_between_any_two_requests_that_finish_a_commit(
    at: int, how: str, told: str | int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nobody comes for so long that the coordinator would have aborted whatever was open."""
    broker, query = two_batches()
    forgets_all_but(monkeypatch, told)
    with suppress(Killed):
        query.run(Cut(at=at, how=how))
    broker.pass_time(TRANSACTION_TIMEOUT_MAX_MS_DEFAULT)
    query.run()
    query.commit(1)
    assert_exactly_once(broker)


@pytest.mark.parametrize("answers", [True, False], ids=["leaders answer", "no leader answers"])
def test_a_commit_that_is_forgotten_before_tasks_send(answers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option deliveryGuarantee changes, there and back. An end that cannot be finished holds no tasks up, nor does anybody make its
    coordinator forget it."""
    broker, query = two_batches()
    forgets_at(monkeypatch, ENDS)
    query.run(until=1)
    driver = Driver(broker, query)
    with monkeypatch.context() as patched:
        if not answers:
            patched.setattr(Driver, "ask_leaders", lambda *_: Remains(reason="nobody is there"))
        driver.run(query.plan(1, "run-2", outcomes=(outcome({}),)), note_batch)
    assert counted(broker.read(TOPIC)) == ({value: 1 for _, value in FIRST_ROWS} if answers else {})
    assert (Step.ABORT in driver.steps) == answers
    query.batches.insert(1, ())
    query.done = 2
    query.run()
    assert_exactly_once(broker)


@pytest.mark.parametrize("forgets", [told_nobody, forgets_the_marker], ids=["all of it", "the marker alone"])
def test_a_marker_that_is_forgotten_before_tasks_send(forgets: Forgets, monkeypatch: pytest.MonkeyPatch) -> None:
    """Back in exactly-once it is the newest, beside an older one."""
    broker = Broker()
    query = Query(broker, [(outcome({0: [(b"k", value)]}),) if value else (outcome({}),) for value in (b"a", b"b", b"", b"c")])
    query.commit(0)
    with forgets(monkeypatch):
        query.commit(1)
    place = TopicPartition("elsewhere", 0)  # Where tasks send no marker topic is named, and no id.
    Driver(broker, query).run(query.plan(2, "run-2", marker_partition=place, transactional_id="chaffinch-2"), note_batch)
    query.commit(3)
    assert counted(broker.read(TOPIC)) == {b"a": 1, b"b": 1, b"c": 1}


@pytest.mark.parametrize("error", ["TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "UNSUPPORTED_VERSION"])
def test_without_the_coordinators_word_a_pending_marker_is_nobodys_to_abort(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, query = two_batches()
    broker.core.faults.add(api="DescribeTransactions", error=error, count=1_000)
    forgets_at(monkeypatch, ENDS)
    said = "TRANSACTION_END_UNKNOWN: group chaffinch-q holds the marker of this batch .* coordinator does not tell, .* checkpoint"
    for _ in range(2):
        with pytest.raises(Refusal, match=said):
            query.run()


@pytest.mark.parametrize("error", ["TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "UNSUPPORTED_VERSION"])
def test_without_the_coordinators_word_rows_that_are_open_are_nobodys_to_abort(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be committed, and nobody will ever tell."""
    broker, query = two_batches()
    with forgets_rows(monkeypatch):
        query.commit(0)
    broker.core.faults.add(api="DescribeTransactions", error=error, count=1_000)
    said = "TRANSACTION_END_UNKNOWN: an earlier transaction of chaffinch-q is still open in orders-0, orders-1, .* of producer 0 alone"
    for _ in range(2):
        with pytest.raises(Refusal, match=said):
            query.commit(1)
    assert [len(broker.open_in(TopicPartition(TOPIC, number))) for number in range(2)] == [1, 1]


@pytest.mark.parametrize("api", ["DescribeTransactions", "DescribeProducers"])
def test_a_broker_that_fails_in_itself_has_not_said_that_nothing_is_open(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, query = two_batches()
    with forgets_rows(monkeypatch):
        query.commit(0)
    broker.core.faults.add(api=api, error="UNKNOWN_SERVER_ERROR", count=2)
    query.commit(1)
    assert_exactly_once(broker)


def test_a_question_that_cannot_be_asked_has_not_been_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens to it that nobody thought of: the batch is not begun."""
    broker, query = two_batches()
    query.commit(0)
    effect, refusal = Driver.effect, Refusal(Group.APPLICATION_RECOVERABLE, "COMMIT_FAILED", "of itself", Remedy.LOOK)

    def fails(self: Driver, operation: Operation) -> object:
        if isinstance(operation, Ask) and isinstance(operation.message, DescribeTransactionsRequest):
            raise refusal
        return effect(self, operation)

    monkeypatch.setattr(Driver, "effect", fails)
    with pytest.raises(Refusal, match="of itself"):
        query.commit(1)
    assert counted(broker.read(TOPIC)) == counted(FIRST_ROWS)


def answered(asked: Generator[Operation, Reply, object], state: DescribeTransactionsState) -> None:
    """Drives `last_transaction` with one state of the coordinator's for ever."""
    steady_ms, operation = 0, next(asked)
    while True:
        answer = None
        if isinstance(operation, Wait):
            steady_ms += operation.ms
        else:
            answer = DescribeTransactionsResponse(transaction_states=[state])
        operation = asked.send(Reply(steady_ms=steady_ms, value=answer))


def test_an_end_that_never_comes_is_not_taken_for_one() -> None:
    """As long as it is ending nobody knows what partitions will be told."""
    ending = DescribeTransactionsState(transactional_id="t", transaction_state="PrepareCommit")
    with pytest.raises(Refusal, match=r"asked for 60000 ms .* PrepareCommit"):
        answered(requests.last_transaction(Step.FINISH_COMMIT, two_batches()[1].plan(0, "run-1")), ending)
