"""A pending marker in the group: of the previous transaction, or of another one."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import pytest

from chaffinch.broker.core.startup import TransactionParticipants
from chaffinch.errors import codes
from chaffinch.protocol.messages.offset_fetch import OffsetFetchRequest
from chaffinch.spark.commit.operations import CountPartitions, Lost, Operation, Step, WriteMarkers, WriteMarkersResult
from chaffinch.spark.commit.plan import CommitPlan
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.snapshot import TRANSACTION_TIMEOUT_MAX_MS_DEFAULT, TargetSnapshot, TopicSnapshot
from tests.spark.commit.commit_world import TOPIC, Broker, Cut, Driver, Killed, Query, counted, outcome
from tests.spark.commit.test_lost_end_markers import (
    ENDS,
    FIRST_STEPS,
    LosesMarkers,
    without_end_markers,
    without_offsets_completion,
    without_partition_markers,
)
from tests.spark.commit.test_protocol import FIRST_ROWS, assert_exactly_once, query_operation, two_batches

EFFECT = Driver.effect


@pytest.fixture
def pending_marker(monkeypatch: pytest.MonkeyPatch) -> tuple[Broker, Query]:
    """A pending marker of the first of two batches; it is committed, and its partitions have the end markers."""
    broker, query = two_batches()
    with without_offsets_completion(monkeypatch):
        query.commit(0)
    return broker, query


def noted_operations(monkeypatch: pytest.MonkeyPatch) -> list[Operation]:
    """The operations from now on, as they come."""
    asked: list[Operation] = []

    def noted(self: Driver, operation: Operation) -> object:
        asked.append(operation)
        return EFFECT(self, operation)

    monkeypatch.setattr(Driver, "effect", noted)
    return asked


def test_batch_without_pending_marker_reads_it_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is fenced and after."""
    _, query = two_batches()
    query.commit(0)
    asked = noted_operations(monkeypatch)
    query.commit(1)
    assert sum(isinstance(getattr(operation, "message", None), OffsetFetchRequest) for operation in asked) == 2


def test_unknown_partition_count_of_offsets_is_requested_again(
    pending_marker: tuple[Broker, Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, query = pending_marker
    lost = [Lost(reason="away")] * 3
    monkeypatch.setattr(
        Driver, "effect", lambda self, asked: lost.pop() if lost and isinstance(asked, CountPartitions) else EFFECT(self, asked)
    )
    query.commit(1)
    assert lost == []
    assert_exactly_once(broker)


def test_unknown_partition_count_of_offsets_fails_the_batch(pending_marker: tuple[Broker, Query], monkeypatch: pytest.MonkeyPatch) -> None:
    broker, query = pending_marker
    monkeypatch.setattr(
        Driver, "effect", lambda self, asked: Lost(reason="away") if isinstance(asked, CountPartitions) else EFFECT(self, asked)
    )
    began_ms = broker.steady_ms
    with pytest.raises(Refusal, match=r"Metadata of __consumer_offsets: retried for 60000 ms .* the last error was: away"):
        query.commit(1)
    assert 60_000 <= broker.steady_ms - began_ms < 62_000


def test_marker_that_stays_pending_fails_the_batch(pending_marker: tuple[Broker, Query], monkeypatch: pytest.MonkeyPatch) -> None:
    _, query = pending_marker
    written = Driver.write_markers

    def loses_markers(self: Driver, operation: WriteMarkers) -> WriteMarkersResult:
        with monkeypatch.context() as patched:
            patched.setattr(self.broker.core.state.offsets, "complete", lambda *_: None)
            return written(self, operation)

    monkeypatch.setattr(Driver, "write_markers", loses_markers)
    with pytest.raises(Refusal, match="is committed, but still open in the offsets of group chaffinch-q; this batch was not started"):
        query.commit(1)


def sharing_an_id(broker: Broker) -> tuple[Query, Query, dict[str, Any]]:
    """Two batch writes of one row each, and what the plans of both have."""
    topics = (TopicSnapshot(topic=TOPIC, topic_id=bytes(16), partition_count=2),)
    plan = {"is_stream": False, "has_checkpoint": False, "digest": "", "target": TargetSnapshot(topics=topics)}
    one, two = (
        Query(broker, [(outcome({number: [(b"k", value)]}),)], transactional_id="mine", has_checkpoint=False)
        for number, value in enumerate((b"one", b"two"))
    )
    return one, two, plan


def dies_before_its_end(one: Query, plan: Mapping[str, Any]) -> None:
    steps = Query(Broker(), one.batches, transactional_id="mine", has_checkpoint=False).commit(0, group_id="one", **plan).steps
    with pytest.raises(Killed):
        one.commit(0, Cut(at=steps.index(Step.COMMIT_MARKER), how="crash_after"), group_id="one", **plan)


@pytest.mark.parametrize("is_forgotten", [False, True], ids=["", "whose rows are forgotten"])
@pytest.mark.parametrize("what", ["all is reported", "markers are denied", "offsets are denied", "offsets are unknown"])
def test_marker_of_other_transaction_under_shared_id_is_not_committed(
    what: str, is_forgotten: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write died before its end, its abort was forgotten; another write under the same id was committed; the first is run again."""
    broker = Broker()
    one, two, plan = sharing_an_id(broker)
    dies_before_its_end(one, plan)
    with without_end_markers(monkeypatch):
        broker.pass_time(TRANSACTION_TIMEOUT_MAX_MS_DEFAULT)
    write_marker = TransactionParticipants.write_marker
    with monkeypatch.context() as patched:
        if is_forgotten:
            patched.setattr(TransactionParticipants, "write_marker", lambda *args: None if args[2] else write_marker(*args))
        two.commit(0, group_id="two", **plan)
    broker.markers_refused = codes.CLUSTER_AUTHORIZATION_FAILED if what == "markers are denied" else codes.NONE
    broker.offsets_refused = codes.TOPIC_AUTHORIZATION_FAILED if what == "offsets are denied" else codes.NONE
    broker.offsets_partitions = 0 if what == "offsets are unknown" else 50
    is_reported = what in ("all is reported", "markers are denied")
    for _ in range(2):
        with pytest.raises(
            Refusal,
            match=r"TRANSACTION_END_UNKNOWN: the marker of this write in group one .* others .* once; .* for producer 0, .* another idem",
        ):
            one.commit(0, group_id="one", **plan)
    assert counted(broker.read(TOPIC)) == ({b"two": 1} if is_reported or not is_forgotten else {})


@pytest.mark.parametrize("transactional_id", ["one", "mine"])
def test_marker_whose_abort_is_in_progress_is_waited_for(transactional_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write died and is run again: our InitProducerId aborts it, and its group gets the marker a moment later."""
    broker = Broker()
    plan: dict[str, Any] = {"is_stream": False, "has_checkpoint": False, "digest": "", "group_id": "one"}
    query = Query(broker, [(outcome({0: [(b"k", b"one")]}),)], transactional_id=transactional_id, has_checkpoint=False)
    at = Query(Broker(), query.batches, has_checkpoint=False).commit(0, **plan).steps.index(Step.COMMIT_MARKER)
    with pytest.raises(Killed):
        query.commit(0, Cut(at=at, how="crash_after"), **plan)

    seen: list[Operation] = []

    def late(self: Driver, operation: Operation) -> object:
        if operation.step is Step.READ_MARKER_AGAIN and not seen:
            seen.append(operation)
            broker.core.faults.add(api="OffsetFetch", error="UNSTABLE_OFFSET_COMMIT", count=2)
        return EFFECT(self, operation)

    monkeypatch.setattr(Driver, "effect", late)
    assert query.commit(0, **plan).result.outcome == "written"
    assert (len(seen), counted(broker.read(TOPIC))) == (1, {b"one": 1})


def aborted_and_forgotten(monkeypatch: pytest.MonkeyPatch, transactional_id: str) -> tuple[Broker, Callable[[], Driver]]:
    """A write that died before its end. How to run it again, and where."""
    broker = Broker()
    plan: dict[str, Any] = {"is_stream": False, "has_checkpoint": False, "digest": "", "group_id": "own"}
    query = Query(broker, [(outcome({0: [(b"k", b"one")]}),)], transactional_id=transactional_id, has_checkpoint=False)
    at = Query(Broker(), query.batches, has_checkpoint=False).commit(0, **plan).steps.index(Step.COMMIT_MARKER)
    with pytest.raises(Killed):
        query.commit(0, Cut(at=at, how="crash_after"), **plan)
    with without_end_markers(monkeypatch):
        broker.pass_time(TRANSACTION_TIMEOUT_MAX_MS_DEFAULT)
    return broker, lambda: query.commit(0, **plan)


def test_marker_of_aborted_attempt_under_own_id_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, again = aborted_and_forgotten(monkeypatch, "own")
    assert again().result.outcome == "written"
    assert counted(broker.read(TOPIC)) == {b"one": 1}


def test_marker_with_unknown_outcome_fails_the_write(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, again = aborted_and_forgotten(monkeypatch, "own")
    broker.core.faults.add(api="DescribeTransactions", error="UNSUPPORTED_VERSION", count=1_000)
    text = r"TRANSACTION_END_UNKNOWN: .* in group own .* does not report its outcome, .* before the next .* for producer 0, .* another idem"
    with pytest.raises(Refusal, match=text):
        again()
    assert broker.read(TOPIC) == []


@pytest.mark.parametrize("step", [Step.READ_MARKER, Step.READ_MARKER_AGAIN])
def test_other_errors_of_group_stay_with_given_id(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, again = aborted_and_forgotten(monkeypatch, "given")

    def loading(self: Driver, operation: Operation) -> object:
        if operation.step is step:
            broker.core.faults.add(api="OffsetFetch", error="COORDINATOR_LOAD_IN_PROGRESS", count=1_000)
        return EFFECT(self, operation)

    monkeypatch.setattr(Driver, "effect", loading)
    text = (
        "COORDINATOR_LOAD_IN_PROGRESS: OffsetFetch of group own: retried for 60000 ms .* nothing more is written before it is known whether"
    )
    with pytest.raises(Refusal, match=text):
        again()


@pytest.mark.parametrize("loses_markers", [without_end_markers, without_offsets_completion])
def test_marker_of_committed_write_under_shared_id_is_not_aborted(loses_markers: LosesMarkers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write is committed, its end is forgotten; another one under the same id made its coordinator forget; the first is run again."""
    broker = Broker()
    one, two, plan = sharing_an_id(broker)
    with loses_markers(monkeypatch):
        one.commit(0, group_id="one", **plan)
    two.commit(0, group_id="two", **plan)
    with pytest.raises(Refusal, match="TRANSACTION_END_UNKNOWN"):
        one.commit(0, group_id="one", **plan)
    assert counted(broker.read(TOPIC)) == {b"one": 1, b"two": 1}


@pytest.mark.parametrize("how", ["refused", "nowhere"])
@pytest.mark.parametrize("transactional_id", ["chaffinch-q", "given"])
def test_marker_under_own_id_is_of_previous_transaction(transactional_id: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The id of a stream always is, even if the user has set it."""
    broker, query = two_batches()
    query.transactional_id = transactional_id
    with without_offsets_completion(monkeypatch), pytest.raises(Killed):
        query.run(Cut(at=query_operation(Step.END_TRANSACTION), how="crash_after"))
    if how == "refused":
        broker.offsets_refused = codes.TOPIC_AUTHORIZATION_FAILED
    else:
        broker.offsets_partitions = 0
    query.run()
    assert_exactly_once(broker)


@pytest.mark.parametrize(("is_stream", "batch_id", "outcome_is"), [(True, 1, "written"), (False, 0, "skipped")])
@pytest.mark.parametrize("times", [1, 2, 5])
def test_marker_whose_commit_is_in_progress_is_waited_for(is_stream: bool, batch_id: int, outcome_is: str, times: int) -> None:
    """EndTxn has its response before the group gets the end marker."""
    broker, query = two_batches()
    query.transactional_id = "given"
    broker.offsets_refused = codes.TOPIC_AUTHORIZATION_FAILED
    query.commit(0, is_stream=is_stream)
    broker.core.faults.add(api="OffsetFetch", error="UNSTABLE_OFFSET_COMMIT", count=times)
    assert query.commit(batch_id, is_stream=is_stream).result.outcome == outcome_is
    assert len(broker.read(TOPIC)) == (8 if is_stream else 4)


def test_marker_whose_commit_is_in_progress_needs_no_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, query = two_batches()
    query.commit(0)
    broker.offsets_refused = codes.TOPIC_AUTHORIZATION_FAILED
    broker.core.faults.add(api="OffsetFetch", error="UNSTABLE_OFFSET_COMMIT", count=1)
    asked = noted_operations(monkeypatch)
    query.commit(1)
    assert [operation.step for operation in asked].count(
        Step.FINISH_COMMIT
    ) == 3  # How the last one ended, what is open of it, and the marker.


def another_driver(query: Query) -> Query:
    """Of the same checkpoint, behind the first batch."""
    return Query(query.broker, query.batches, done=1, run_count=100, state=query.state)


def during_marker_read(concurrently: Callable[[], None]) -> Cut:
    """An event during the first request of a commit."""
    return Cut(at=FIRST_STEPS.index(Step.READ_MARKER), how="during", during=concurrently)


@pytest.mark.parametrize("loses_markers", [without_end_markers, lambda _: nullcontext()], ids=["markers lost", "markers written"])
def test_marker_of_other_driver_during_read(loses_markers: LosesMarkers, monkeypatch: pytest.MonkeyPatch) -> None:
    """It commits the batch in between, and its end markers may be lost."""
    broker, query = two_batches()
    query.run(until=1)
    other = another_driver(query)

    def concurrently() -> None:
        with loses_markers(monkeypatch):
            other.commit(1)

    driver = query.commit(1, during_marker_read(concurrently))
    assert driver.result.outcome == "skipped"
    assert_exactly_once(broker)


def test_marker_of_other_driver_between_two_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """First only rows are open. After they are completed, another driver commits the batch, and its group gets no end marker."""
    broker, query = two_batches()
    with without_partition_markers(monkeypatch):
        query.commit(0)
    other = another_driver(query)
    seen: list[WriteMarkers] = []

    def between(self: Driver, operation: Operation) -> object:
        value = EFFECT(self, operation)
        if isinstance(operation, WriteMarkers) and not seen:
            seen.append(operation)
            with without_offsets_completion(monkeypatch):
                other.commit(1)
        return value

    monkeypatch.setattr(Driver, "effect", between)
    assert query.commit(1).result.outcome == "skipped"
    assert_exactly_once(broker)


@pytest.mark.parametrize("batch_id", [0, 1])
def test_batch_that_writes_nothing_reads_marker_once(batch_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its group's coordinator may be away for long."""
    broker, query = two_batches()
    query.batches.insert(1, (outcome({}),))
    with without_partition_markers(monkeypatch):
        query.commit(0)

    def away(self: Driver, operation: Operation) -> object:
        value = EFFECT(self, operation)
        if operation.step is Step.READ_MARKER:
            broker.core.faults.add(api="OffsetFetch", error="COORDINATOR_LOAD_IN_PROGRESS", count=1)
        return value

    began_ms = broker.steady_ms
    with monkeypatch.context() as patched:
        patched.setattr(Driver, "effect", away)
        query.commit(batch_id)
    assert (broker.steady_ms, broker.read(TOPIC)) == (began_ms, [])
    query.commit(2)
    assert_exactly_once(broker)


def test_batch_that_writes_nothing_commits_no_rows_without_their_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a slow driver repeats a batch, another commits the next one and dies, and all end markers are lost."""
    broker, query = two_batches()
    query.commit(0)
    other = another_driver(query)

    def concurrently() -> None:
        with without_end_markers(monkeypatch), pytest.raises(Killed):
            other.commit(1, Cut(at=ENDS, how="crash_after"))

    skipped = query.commit(0, during_marker_read(concurrently))
    assert (skipped.result.outcome, counted(broker.read(TOPIC))) == ("skipped", counted(FIRST_ROWS))
    other.commit(1)
    assert_exactly_once(broker)


def test_marker_is_completed_before_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another driver's, which come while it is asked."""
    _, query = two_batches()
    query.commit(0)
    other = another_driver(query)
    written: list[str] = []

    def noted(self: Driver, operation: Operation) -> object:
        if isinstance(operation, WriteMarkers):
            written.extend(transaction.tp.topic for transaction in operation.transactions)
        return EFFECT(self, operation)

    def concurrently() -> None:
        with without_end_markers(monkeypatch):
            other.commit(1)

    monkeypatch.setattr(Driver, "effect", noted)
    query.commit(1, during_marker_read(concurrently))
    assert written == ["__consumer_offsets", TOPIC, TOPIC]


def test_marker_of_other_transaction_is_not_reported_as_open(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    one, two, plan = sharing_an_id(broker)
    dies_before_its_end(one, plan)
    with without_offsets_completion(monkeypatch):
        broker.pass_time(TRANSACTION_TIMEOUT_MAX_MS_DEFAULT)
    with without_partition_markers(monkeypatch):
        two.commit(0, group_id="two", **plan)
    monkeypatch.setattr(
        Driver, "write_markers", lambda _, asked: WriteMarkersResult(done=frozenset(transaction.tp for transaction in asked.transactions))
    )
    with pytest.raises(Refusal, match="still open in 1 partition; this batch was not started"):
        one.commit(0, group_id="one", **plan)


def test_marker_pending_after_write_is_reported_as_open(pending_marker: tuple[Broker, Query], monkeypatch: pytest.MonkeyPatch) -> None:
    _, query = pending_marker
    monkeypatch.setattr(
        Driver, "write_markers", lambda _, asked: WriteMarkersResult(done=frozenset(transaction.tp for transaction in asked.transactions))
    )
    monkeypatch.setattr(CommitPlan, "has_own_id", property(lambda _: False))
    with pytest.raises(Refusal, match="TRANSACTION_LEFT_OPEN"):
        query.commit(1)
