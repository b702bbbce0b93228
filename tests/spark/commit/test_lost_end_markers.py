"""End markers lost by the coordinator: each row is in Kafka exactly once nevertheless. Apache Kafka 4.3.1 loses them if its only broker
dies while a transaction ends, or is down longer than the transaction timeout."""

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
from chaffinch.spark.commit.direct import finish_direct_batch
from chaffinch.spark.commit.operations import HangingTransactions, Operation, Reply, SendRequest, Step, Wait
from chaffinch.spark.refusals import Refusal, Remedy
from chaffinch.spark.snapshot import TRANSACTION_TIMEOUT_MAX_MS_DEFAULT, TargetSnapshot, TopicSnapshot
from tests.spark.commit.commit_world import TOPIC, Broker, Cut, Driver, Killed, Query, counted, outcome
from tests.spark.commit.test_protocol import FIRST_ROWS, OPERATIONS, ROWS, assert_exactly_once, two_batches

pytestmark = pytest.mark.long

FIRST_STEPS = two_batches()[1].commit(0).steps
FIRST_SEND, ADDS_OFFSETS, ENDS = (FIRST_STEPS.index(step) for step in (Step.PUSH, Step.ADD_OFFSETS, Step.END_TRANSACTION))


LosesMarkers: TypeAlias = Callable[[pytest.MonkeyPatch], AbstractContextManager[None]]

AUTHORIZED, UNAUTHORIZED, OFFSETS_UNKNOWN = "markers are written", "not authorized", "partitions of offsets are unknown"


@pytest.fixture(autouse=True, params=[AUTHORIZED, UNAUTHORIZED])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> object:
    """How partitions get their commit: by a marker, or without authorization by a short transaction."""
    set_way(request.param, monkeypatch)
    return request.param


def set_way(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {UNAUTHORIZED: codes.CLUSTER_AUTHORIZATION_FAILED}
    monkeypatch.setattr(Broker, "markers_refused", refused.get(way, codes.NONE))
    monkeypatch.setattr(Broker, "offsets_partitions", 0 if way == OFFSETS_UNKNOWN else 50)


@contextmanager
def without_end_markers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All end markers are lost."""
    with monkeypatch.context() as patched:
        patched.setattr(TransactionParticipants, "write_marker", lambda *_: None)
        patched.setattr(TransactionParticipants, "complete_offsets", lambda *_: None)
        yield


@contextmanager
def without_offsets_completion(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """End markers for groups are lost."""
    with monkeypatch.context() as patched:
        patched.setattr(TransactionParticipants, "complete_offsets", lambda *_: None)
        yield


@contextmanager
def without_partition_markers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """End markers for partitions are lost."""
    with monkeypatch.context() as patched:
        patched.setattr(TransactionParticipants, "write_marker", lambda *_: None)
        yield


def lose_markers_when(monkeypatch: pytest.MonkeyPatch, forgotten: Callable[[Operation], bool]) -> None:
    """End markers of operations for which `forgotten` is true are lost."""
    effect = Driver.effect

    def forgetting(self: Driver, operation: Operation) -> object:
        with without_end_markers(monkeypatch) if forgotten(operation) else nullcontext():
            return effect(self, operation)

    monkeypatch.setattr(Driver, "effect", forgetting)


def lose_markers_at(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """End markers of operation number `at`, counted over all runs, are lost."""
    numbers = count()
    lose_markers_when(monkeypatch, lambda _: next(numbers) == at)


def lose_end_markers(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """End markers of the first `times` transactions that EndTxn ends are lost."""
    left = iter(range(times))
    lose_markers_when(monkeypatch, lambda operation: _is_end(operation) and next(left, None) is not None)


def _is_end(operation: Operation) -> bool:
    return isinstance(operation, SendRequest) and isinstance(operation.message, EndTxnRequest)


@pytest.mark.parametrize("at", range(OPERATIONS))
def test_abort_markers_lost_after_crash_at_each_operation(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Apache Kafka, if its only broker is down longer than the transaction timeout."""
    broker, query = two_batches()
    with pytest.raises(Killed):
        query.run(Cut(at=at, how="crash_after"))
    with without_end_markers(monkeypatch):
        broker.pass_time(TRANSACTION_TIMEOUT_MAX_MS_DEFAULT)
    query.run()
    assert_exactly_once(broker)


def lose_abort_markers(monkeypatch: pytest.MonkeyPatch, times: int) -> list[TopicPartition]:
    """The first `times` abort markers are lost. Returns their partitions, as they occur."""
    write_marker = TransactionParticipants.write_marker
    lost: list[TopicPartition] = []

    def written(self: TransactionParticipants, tp: TopicPartition, is_commit: bool, *rest: Any) -> None:
        if is_commit or len(lost) >= times:
            write_marker(self, tp, is_commit, *rest)
        else:
            lost.append(tp)

    monkeypatch.setattr(TransactionParticipants, "write_marker", written)
    return lost


@pytest.mark.parametrize("times", range(2, 9))
def test_abort_markers_lost_several_times(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker was down again during the abort."""
    broker, query = two_batches()
    with pytest.raises(Killed):
        query.run(Cut(at=ADDS_OFFSETS, how="crash_after"))
    lost = lose_abort_markers(monkeypatch, times)
    broker.pass_time(TRANSACTION_TIMEOUT_MAX_MS_DEFAULT)
    while not query.done:
        with suppress(Refusal):
            query.run()
    query.run()
    assert len(lost) == times
    assert_exactly_once(broker)


@pytest.mark.parametrize("is_reported", [True, False], ids=["", "outcome not reported"])
def test_abort_markers_of_own_attempt_lost(is_reported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction is of this run, which knows its outcome."""
    broker, query = two_batches()
    if not is_reported:
        broker.core.faults.add(api="DescribeTransactions", error="UNSUPPORTED_VERSION", count=1_000)
    lost = lose_abort_markers(monkeypatch, 1)
    fault: dict[str, Any] = {"api": "Produce", "error": "OUT_OF_ORDER_SEQUENCE_NUMBER", "count": 1}
    query.run(Cut(at=FIRST_SEND + 1, how="during", during=lambda: broker.core.faults.add(**fault)))
    assert lost
    assert_exactly_once(broker)


@pytest.mark.parametrize("how", ["crash_after", "lose_answer"])
@pytest.mark.parametrize("at", range(OPERATIONS))
def test_end_markers_lost_at_each_operation(at: int, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any transaction that ended in this operation."""
    broker, query = two_batches()
    lose_markers_at(monkeypatch, at)
    with suppress(Killed):
        query.run(Cut(at=at, how=how))
    query.run()
    query.commit(1)  # The next batch finds the last lost marker.
    assert_exactly_once(broker)


@pytest.mark.parametrize("how", ["crash_before", "crash_after"])
@pytest.mark.parametrize("at", range(OPERATIONS))
def test_commit_markers_lost_and_crash_at_each_operation(at: int, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the response is recorded, nor does the group have the marker."""
    broker, query = two_batches()
    lose_markers_at(monkeypatch, ENDS)
    with pytest.raises(Killed):
        query.run(Cut(at=ENDS, how="crash_after"))
    with suppress(Killed):
        query.run(Cut(at=at, how=how))
    query.run()
    assert_exactly_once(broker)


def test_next_batch_makes_hanging_commit_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, query = two_batches()
    lose_markers_at(monkeypatch, ENDS)
    query.run(until=1)
    assert broker.read(TOPIC) == []
    query.run()
    assert_exactly_once(broker)


@pytest.mark.parametrize("times", [2, 5])
def test_commit_markers_lost_again_during_completion(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that has just started may not know all leaders yet."""
    broker, query = two_batches()
    lose_end_markers(monkeypatch, times)
    query.run()
    query.commit(1)
    assert_exactly_once(broker)


@pytest.mark.parametrize("way", [UNAUTHORIZED, OFFSETS_UNKNOWN], indirect=True)
def test_commit_markers_always_lost_fails_next_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, query = two_batches()
    lose_end_markers(monkeypatch, 1_000)
    text = "is committed, but still open in 2 partitions and the offsets of group chaffinch-q; this batch was not started"
    with pytest.raises(Refusal, match=text):
        query.run()
    assert broker.read(TOPIC) == []


@pytest.mark.parametrize("way", [AUTHORIZED], indirect=True)
def test_markers_always_lost_by_coordinator_are_written_to_leaders(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, query = two_batches()
    lose_end_markers(monkeypatch, 1_000)
    query.run()
    query.commit(1)
    assert_exactly_once(broker)


def lose_commit_markers(monkeypatch: pytest.MonkeyPatch, times: int = 1) -> None:
    """End markers of the first `times` committed batches are lost."""
    left = iter(range(times))
    lose_markers_when(monkeypatch, lambda operation: operation.step is Step.END_TRANSACTION and next(left, None) is not None)


def test_earlier_aborted_rows_are_not_committed_with_previous_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows without keys go to other partitions when the batch is written again; a later batch writes to the first ones."""
    broker, query = two_batches()
    with pytest.raises(Killed):
        query.run(Cut(at=ADDS_OFFSETS, how="crash_after"))
    with without_end_markers(monkeypatch):
        broker.pass_time(TRANSACTION_TIMEOUT_MAX_MS_DEFAULT)
    query.batches = [(outcome({0: FIRST_ROWS}),), query.batches[1]]
    lose_commit_markers(monkeypatch)
    query.run()
    assert_exactly_once(broker)


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_hanging_commit_in_partition_without_rows_of_next_batch(has_checkpoint: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint lists its partitions; without one all known partitions are asked for, until they answer."""
    broker, query = two_batches(has_checkpoint=has_checkpoint)
    query.batches = [query.batches[0], (outcome({0: ROWS[1][0]}),), (outcome({1: ROWS[1][1]}),)]
    target = TargetSnapshot(topics=() if has_checkpoint else (TopicSnapshot(topic=TOPIC, topic_id=bytes(16), partition_count=2),))
    lose_commit_markers(monkeypatch)
    query.commit(0, target=target)
    broker.core.faults.add(api="DescribeProducers", error="NOT_LEADER_OR_FOLLOWER", count=3)
    for batch_id in (1, 2):
        query.commit(batch_id, target=target)
    assert_exactly_once(broker)


COMPLETING = range(ENDS + 2, ENDS + 14)
"""Operations of a run whose first commit was forgotten, until its second batch has introduced itself."""
SHORT_TRANSACTION_OPEN = {UNAUTHORIZED: {10, 11}, OFFSETS_UNKNOWN: {8, 9}}
"""Those of them, from the end on, after which a short transaction is open like any other: another driver aborts it."""


def completing(way: str) -> list[pytest.ParameterSet]:
    return [pytest.param(way, at, id=f"{way}-{at - ENDS}") for at in COMPLETING if at - ENDS not in SHORT_TRANSACTION_OPEN.get(way, ())]


def second_driver_during_completion(monkeypatch: pytest.MonkeyPatch, at: int, dies_at: int | None = None) -> tuple[Broker, Query, Query]:
    """The first commit was forgotten; in operation `at` of the query that finishes it, another driver does all of the second batch, or
    dies in its own operation `dies_at`. The query goes on with what it knew before."""
    broker, query = two_batches()
    other = Query(broker, query.batches, done=1, run_count=100)
    lose_markers_at(monkeypatch, ENDS)

    def concurrently() -> None:
        other.state = query.state
        if other.done == 1:
            with suppress(Killed):
                other.run(None if dies_at is None else Cut(at=dies_at, how="crash_after"))

    with suppress(Refusal):
        query.run(Cut(at=at, how="during", during=concurrently))
    return broker, query, other


@pytest.mark.parametrize(
    ("way", "at"), [*completing(AUTHORIZED), *completing(UNAUTHORIZED), *completing(OFFSETS_UNKNOWN)], indirect=["way"]
)
def test_second_driver_during_completion(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, query, other = second_driver_during_completion(monkeypatch, at)
    assert other.done == 2
    query.state, query.done = other.state, 1
    query.run()
    assert_exactly_once(broker)


@pytest.mark.parametrize("way", [AUTHORIZED], indirect=True)
@pytest.mark.parametrize("dies_at", range(4, OPERATIONS // 2))
@pytest.mark.parametrize("at", COMPLETING)
def test_late_or_repeated_marker_ends_no_other_transaction(at: int, dies_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two requests of the completion, another driver completes it, begins its own transaction, and dies in it."""
    broker, query, _ = second_driver_during_completion(monkeypatch, at, dies_at)
    query.run()
    assert_exactly_once(broker)


def lose_all_markers_but(monkeypatch: pytest.MonkeyPatch, informed: str | int | None) -> None:
    """Only one participant gets the end marker of the first commit: a partition by its number, or the group."""
    write_marker, complete_offsets = TransactionParticipants.write_marker, TransactionParticipants.complete_offsets
    is_first = {"marker": True, "offsets": True}

    def write(self: TransactionParticipants, tp: TopicPartition, is_commit: bool, *rest: Any) -> None:
        if tp.partition == informed or not (is_commit and is_first["marker"]):
            write_marker(self, tp, is_commit, *rest)

    def complete(self: TransactionParticipants, group: str, producer_id: int, is_commit: bool) -> None:
        if informed == "group" or not (is_commit and is_first["offsets"]):
            complete_offsets(self, group, producer_id, is_commit)
            is_first["marker"] = False
        is_first["offsets"] = False

    monkeypatch.setattr(TransactionParticipants, "write_marker", write)
    monkeypatch.setattr(TransactionParticipants, "complete_offsets", complete)


@pytest.mark.parametrize("way", [AUTHORIZED], indirect=True)
@pytest.mark.parametrize("informed", [None, 0, 1, "group"], ids=str)
@pytest.mark.parametrize("how", ["crash_before", "crash_after", "lose_request", "lose_answer"])
@pytest.mark.parametrize("at", COMPLETING)
def test_crash_between_requests_of_completion(at: int, how: str, informed: str | int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run starts after the transaction timeout."""
    broker, query = two_batches()
    lose_all_markers_but(monkeypatch, informed)
    with suppress(Killed):
        query.run(Cut(at=at, how=how))
    broker.pass_time(TRANSACTION_TIMEOUT_MAX_MS_DEFAULT)
    query.run()
    query.commit(1)
    assert_exactly_once(broker)


@pytest.mark.parametrize("answers", [True, False], ids=["leaders answer", "no leader answers"])
def test_commit_markers_lost_before_direct_batch(answers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option deliveryGuarantee changes, there and back. A transaction that cannot be completed delays no
    tasks, and its coordinator keeps the outcome."""
    broker, query = two_batches()
    lose_markers_at(monkeypatch, ENDS)
    query.run(until=1)
    driver = Driver(broker, query)
    with monkeypatch.context() as patched:
        if not answers:
            patched.setattr(Driver, "ask_leaders", lambda *_: HangingTransactions(reason="no leader"))
        driver.run(query.plan(1, "run-2", outcomes=(outcome({}),)), finish_direct_batch)
    assert counted(broker.read(TOPIC)) == ({value: 1 for _, value in FIRST_ROWS} if answers else {})
    assert (Step.ABORT in driver.steps) == answers
    query.batches.insert(1, ())
    query.done = 2
    query.run()
    assert_exactly_once(broker)


@pytest.mark.parametrize("loses_markers", [without_end_markers, without_offsets_completion], ids=["all of it", "the marker alone"])
def test_pending_marker_before_direct_batch(loses_markers: LosesMarkers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Back in exactly-once it is the newest marker, after an older one."""
    broker = Broker()
    query = Query(broker, [(outcome({0: [(b"k", value)]}),) if value else (outcome({}),) for value in (b"a", b"b", b"", b"c")])
    query.commit(0)
    with loses_markers(monkeypatch):
        query.commit(1)
    tp = TopicPartition("elsewhere", 0)  # Where tasks send no marker topic is named, and no id.
    Driver(broker, query).run(query.plan(2, "run-2", marker_partition=tp, transactional_id="chaffinch-2"), finish_direct_batch)
    query.commit(3)
    assert counted(broker.read(TOPIC)) == {b"a": 1, b"b": 1, b"c": 1}


@pytest.mark.parametrize("error", ["TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "UNSUPPORTED_VERSION"])
def test_pending_marker_with_unknown_outcome_is_not_aborted(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, query = two_batches()
    broker.core.faults.add(api="DescribeTransactions", error=error, count=1_000)
    lose_markers_at(monkeypatch, ENDS)
    text = (
        "TRANSACTION_END_UNKNOWN: the marker of this batch in group chaffinch-q .* coordinator does not report its outcome, .* checkpoint"
    )
    for _ in range(2):
        with pytest.raises(Refusal, match=text):
            query.run()


@pytest.mark.parametrize("error", ["TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "UNSUPPORTED_VERSION"])
def test_open_rows_with_unknown_outcome_are_not_aborted(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be committed, and the outcome stays unknown."""
    broker, query = two_batches()
    with without_partition_markers(monkeypatch):
        query.commit(0)
    broker.core.faults.add(api="DescribeTransactions", error=error, count=1_000)
    text = "TRANSACTION_END_UNKNOWN: an earlier transaction of chaffinch-q is still open in orders-0, orders-1, .* of producer 0 only"
    for _ in range(2):
        with pytest.raises(Refusal, match=text):
            query.commit(1)
    assert [len(broker.open_in(TopicPartition(TOPIC, number))) for number in range(2)] == [1, 1]


@pytest.mark.parametrize("api", ["DescribeTransactions", "DescribeProducers"])
def test_server_error_of_describe_request_is_retried(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, query = two_batches()
    with without_partition_markers(monkeypatch):
        query.commit(0)
    broker.core.faults.add(api=api, error="UNKNOWN_SERVER_ERROR", count=2)
    query.commit(1)
    assert_exactly_once(broker)


def test_failed_describe_transactions_fails_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """After any unexpected error the batch is not started."""
    broker, query = two_batches()
    query.commit(0)
    effect, refusal = Driver.effect, Refusal(Group.APPLICATION_RECOVERABLE, "COMMIT_FAILED", "of itself", Remedy.LOOK)

    def fails(self: Driver, operation: Operation) -> object:
        if isinstance(operation, SendRequest) and isinstance(operation.message, DescribeTransactionsRequest):
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


def test_transaction_that_stays_prepared_fails_the_batch() -> None:
    """Until it has ended, its end markers may still be written."""
    ending = DescribeTransactionsState(transactional_id="t", transaction_state="PrepareCommit")
    with pytest.raises(Refusal, match=r"retried for 60000 ms .* PrepareCommit"):
        answered(requests.last_transaction(Step.FINISH_COMMIT, two_batches()[1].plan(0, "run-1")), ending)
