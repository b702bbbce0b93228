"""A marker that its group holds back for the end of a transaction: of the last one, or of another."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import pytest

from chaffinch.broker.core.startup import TransactionParticipants
from chaffinch.errors import codes
from chaffinch.protocol.messages.offset_fetch import OffsetFetchRequest
from chaffinch.spark.commit.operations import CountPartitions, Lost, Operation, Step, Told, WriteMarkers
from chaffinch.spark.commit.plan import CommitPlan
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.snapshot import TRANSACTION_TIMEOUT_MAX_MS_DEFAULT, TargetSnapshot, TopicSnapshot
from tests.spark.commit.commit_world import TOPIC, Broker, Cut, Driver, Killed, Query, counted, outcome
from tests.spark.commit.test_forgotten_ends import ENDS, FIRST_STEPS, Forgets, forgets_rows, forgets_the_marker, told_nobody
from tests.spark.commit.test_protocol import FIRST_ROWS, assert_exactly_once, query_operation, two_batches

EFFECT = Driver.effect


@pytest.fixture
def held_back(monkeypatch: pytest.MonkeyPatch) -> tuple[Broker, Query]:
    """Of the first of two batches, which is committed; its partitions have heard of it."""
    broker, query = two_batches()
    with forgets_the_marker(monkeypatch):
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


def test_a_batch_with_nothing_to_finish_asks_for_it_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is fenced and after."""
    _, query = two_batches()
    query.commit(0)
    asked = noted_operations(monkeypatch)
    query.commit(1)
    assert sum(isinstance(getattr(operation, "message", None), OffsetFetchRequest) for operation in asked) == 2


def test_partitions_of_offsets_that_nobody_tells_are_asked_for_again(
    held_back: tuple[Broker, Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, query = held_back
    lost = [Lost(reason="away")] * 3
    monkeypatch.setattr(
        Driver, "effect", lambda self, asked: lost.pop() if lost and isinstance(asked, CountPartitions) else EFFECT(self, asked)
    )
    query.commit(1)
    assert lost == []
    assert_exactly_once(broker)


def test_and_given_up_for_what_it_is(held_back: tuple[Broker, Query], monkeypatch: pytest.MonkeyPatch) -> None:
    broker, query = held_back
    monkeypatch.setattr(
        Driver, "effect", lambda self, asked: Lost(reason="away") if isinstance(asked, CountPartitions) else EFFECT(self, asked)
    )
    began_ms = broker.steady_ms
    with pytest.raises(Refusal, match=r"Metadata of __consumer_offsets: asked for 60000 ms .* the last answer was: away"):
        query.commit(1)
    assert 60_000 <= broker.steady_ms - began_ms < 62_000


def test_one_that_stays_is_named(held_back: tuple[Broker, Query], monkeypatch: pytest.MonkeyPatch) -> None:
    _, query = held_back
    written = Driver.write_markers

    def forgets(self: Driver, operation: WriteMarkers) -> Told:
        with monkeypatch.context() as patched:
            patched.setattr(self.broker.core.state.offsets, "complete", lambda *_: None)
            return written(self, operation)

    monkeypatch.setattr(Driver, "write_markers", forgets)
    with pytest.raises(Refusal, match="says is committed is still open in the offsets of group chaffinch-q; this batch is not begun"):
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
@pytest.mark.parametrize("what", ["all is told", "markers are not ours", "offsets are not ours to see", "offsets are nowhere"])
def test_one_of_another_transaction_of_a_shared_id_is_not_taken_for_committed(
    what: str, is_forgotten: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write died before its end, its abort was forgotten; another write under the same id was committed; the first is run again."""
    broker = Broker()
    one, two, plan = sharing_an_id(broker)
    dies_before_its_end(one, plan)
    with told_nobody(monkeypatch):
        broker.pass_time(TRANSACTION_TIMEOUT_MAX_MS_DEFAULT)
    write_marker = TransactionParticipants.write_marker
    with monkeypatch.context() as patched:
        if is_forgotten:
            patched.setattr(TransactionParticipants, "write_marker", lambda *args: None if args[2] else write_marker(*args))
        two.commit(0, group_id="two", **plan)
    broker.markers_refused = codes.CLUSTER_AUTHORIZATION_FAILED if what == "markers are not ours" else codes.NONE
    broker.offsets_refused = codes.TOPIC_AUTHORIZATION_FAILED if what == "offsets are not ours to see" else codes.NONE
    broker.offsets_partitions = 0 if what == "offsets are nowhere" else 50
    is_told = what in ("all is told", "markers are not ours")
    for _ in range(2):
        with pytest.raises(Refusal, match=r"TRANSACTION_END_UNKNOWN: group one holds .* others .* once; .* of producer 0, .* another id"):
            one.commit(0, group_id="one", **plan)
    assert counted(broker.read(TOPIC)) == ({b"two": 1} if is_told or not is_forgotten else {})


@pytest.mark.parametrize("transactional_id", ["one", "mine"])
def test_one_whose_abort_is_under_way_is_waited_for(transactional_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write died and is run again: our InitProducerId aborts it, and its group hears of it a moment later."""
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
    with told_nobody(monkeypatch):
        broker.pass_time(TRANSACTION_TIMEOUT_MAX_MS_DEFAULT)
    return broker, lambda: query.commit(0, **plan)


def test_one_of_an_aborted_attempt_under_an_id_of_its_own_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, again = aborted_and_forgotten(monkeypatch, "own")
    assert again().result.outcome == "written"
    assert counted(broker.read(TOPIC)) == {b"one": 1}


def test_but_not_where_the_coordinator_does_not_tell_how_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, again = aborted_and_forgotten(monkeypatch, "own")
    broker.core.faults.add(api="DescribeTransactions", error="UNSUPPORTED_VERSION", count=1_000)
    said = "TRANSACTION_END_UNKNOWN: group own holds .* the coordinator does not tell, .* before the next .* of producer 0, .* another id"
    with pytest.raises(Refusal, match=said):
        again()
    assert broker.read(TOPIC) == []


@pytest.mark.parametrize("step", [Step.READ_MARKER, Step.READ_MARKER_AGAIN])
def test_a_given_id_leaves_other_errors_of_the_group_as_they_are(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, again = aborted_and_forgotten(monkeypatch, "given")

    def loading(self: Driver, operation: Operation) -> object:
        if operation.step is step:
            broker.core.faults.add(api="OffsetFetch", error="COORDINATOR_LOAD_IN_PROGRESS", count=1_000)
        return EFFECT(self, operation)

    monkeypatch.setattr(Driver, "effect", loading)
    said = (
        "COORDINATOR_LOAD_IN_PROGRESS: OffsetFetch of group own: asked for 60000 ms .* nothing more is written before it is known whether"
    )
    with pytest.raises(Refusal, match=said):
        again()


@pytest.mark.parametrize("forgets", [told_nobody, forgets_the_marker])
def test_nor_for_aborted(forgets: Forgets, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write is committed, its end is forgotten; another one under the same id made its coordinator forget; the first is run again."""
    broker = Broker()
    one, two, plan = sharing_an_id(broker)
    with forgets(monkeypatch):
        one.commit(0, group_id="one", **plan)
    two.commit(0, group_id="two", **plan)
    with pytest.raises(Refusal, match="TRANSACTION_END_UNKNOWN"):
        one.commit(0, group_id="one", **plan)
    assert counted(broker.read(TOPIC)) == {b"one": 1, b"two": 1}


@pytest.mark.parametrize("how", ["refused", "nowhere"])
@pytest.mark.parametrize("transactional_id", ["chaffinch-q", "given"])
def test_where_it_is_not_told_an_id_of_its_own_says_whose_it_is(transactional_id: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a stream is, whoever chose it."""
    broker, query = two_batches()
    query.transactional_id = transactional_id
    with forgets_the_marker(monkeypatch), pytest.raises(Killed):
        query.run(Cut(at=query_operation(Step.END_TRANSACTION), how="crash_after"))
    if how == "refused":
        broker.offsets_refused = codes.TOPIC_AUTHORIZATION_FAILED
    else:
        broker.offsets_partitions = 0
    query.run()
    assert_exactly_once(broker)


@pytest.mark.parametrize(("is_stream", "batch_id", "outcome_is"), [(True, 1, "written"), (False, 0, "skipped")])
@pytest.mark.parametrize("times", [1, 2, 5])
def test_one_whose_end_was_under_way_is_waited_for(is_stream: bool, batch_id: int, outcome_is: str, times: int) -> None:
    """EndTxn is answered before the group hears of it."""
    broker, query = two_batches()
    query.transactional_id = "given"
    broker.offsets_refused = codes.TOPIC_AUTHORIZATION_FAILED
    query.commit(0, is_stream=is_stream)
    broker.core.faults.add(api="OffsetFetch", error="UNSTABLE_OFFSET_COMMIT", count=times)
    assert query.commit(batch_id, is_stream=is_stream).result.outcome == outcome_is
    assert len(broker.read(TOPIC)) == (8 if is_stream else 4)


def test_and_takes_no_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
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


def while_it_is_asked(meanwhile: Callable[[], None]) -> Cut:
    """What happens beside the first question of a commit."""
    return Cut(at=FIRST_STEPS.index(Step.READ_MARKER), how="during", during=meanwhile)


@pytest.mark.parametrize("forgets", [told_nobody, lambda _: nullcontext()], ids=["forgotten", "told"])
def test_one_of_another_driver_that_comes_while_it_is_asked(forgets: Forgets, monkeypatch: pytest.MonkeyPatch) -> None:
    """It commits the batch in between, and nobody hears of it."""
    broker, query = two_batches()
    query.run(until=1)
    other = another_driver(query)

    def meanwhile() -> None:
        with forgets(monkeypatch):
            other.commit(1)

    driver = query.commit(1, while_it_is_asked(meanwhile))
    assert driver.result.outcome == "skipped"
    assert_exactly_once(broker)


def test_one_of_another_driver_that_comes_between_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """At first rows alone are open; once they are told, another driver commits the batch, and its group alone does not hear of it."""
    broker, query = two_batches()
    with forgets_rows(monkeypatch):
        query.commit(0)
    other = another_driver(query)
    seen: list[WriteMarkers] = []

    def between(self: Driver, operation: Operation) -> object:
        value = EFFECT(self, operation)
        if isinstance(operation, WriteMarkers) and not seen:
            seen.append(operation)
            with forgets_the_marker(monkeypatch):
                other.commit(1)
        return value

    monkeypatch.setattr(Driver, "effect", between)
    assert query.commit(1).result.outcome == "skipped"
    assert_exactly_once(broker)


@pytest.mark.parametrize("batch_id", [0, 1])
def test_a_batch_that_writes_nothing_asks_for_it_once_and_leaves_the_rows_to_the_next(
    batch_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its group's coordinator may be away for long."""
    broker, query = two_batches()
    query.batches.insert(1, (outcome({}),))
    with forgets_rows(monkeypatch):
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


def test_nor_does_it_part_rows_from_one_that_has_come_since(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow driver repeats a batch; in the midst of it another commits the next one, dies, and all is forgotten."""
    broker, query = two_batches()
    query.commit(0)
    other = another_driver(query)

    def meanwhile() -> None:
        with told_nobody(monkeypatch), pytest.raises(Killed):
            other.commit(1, Cut(at=ENDS, how="crash_after"))

    skipped = query.commit(0, while_it_is_asked(meanwhile))
    assert (skipped.result.outcome, counted(broker.read(TOPIC))) == ("skipped", counted(FIRST_ROWS))
    other.commit(1)
    assert_exactly_once(broker)


def test_it_is_told_before_rows_that_are_found_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another driver's, which come while it is asked."""
    _, query = two_batches()
    query.commit(0)
    other = another_driver(query)
    written: list[str] = []

    def noted(self: Driver, operation: Operation) -> object:
        if isinstance(operation, WriteMarkers):
            written.extend(left.place.topic for left in operation.places)
        return EFFECT(self, operation)

    def meanwhile() -> None:
        with told_nobody(monkeypatch):
            other.commit(1)

    monkeypatch.setattr(Driver, "effect", noted)
    query.commit(1, while_it_is_asked(meanwhile))
    assert written == ["__consumer_offsets", TOPIC, TOPIC]


def test_that_of_another_transaction_is_not_named_among_what_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    one, two, plan = sharing_an_id(broker)
    dies_before_its_end(one, plan)
    with forgets_the_marker(monkeypatch):
        broker.pass_time(TRANSACTION_TIMEOUT_MAX_MS_DEFAULT)
    with forgets_rows(monkeypatch):
        two.commit(0, group_id="two", **plan)
    monkeypatch.setattr(Driver, "write_markers", lambda _, asked: Told(done=frozenset(left.place for left in asked.places)))
    with pytest.raises(Refusal, match="is still open in 1 partition; this batch is not begun"):
        one.commit(0, group_id="one", **plan)


def test_one_that_is_told_and_stays_is_not_unknown(held_back: tuple[Broker, Query], monkeypatch: pytest.MonkeyPatch) -> None:
    _, query = held_back
    monkeypatch.setattr(Driver, "write_markers", lambda _, asked: Told(done=frozenset(left.place for left in asked.places)))
    monkeypatch.setattr(CommitPlan, "has_own_id", property(lambda _: False))
    with pytest.raises(Refusal, match="TRANSACTION_LEFT_OPEN"):
        query.commit(1)
