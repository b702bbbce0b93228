"""The commit protocol against the real broker core: every operation cut in every way, and each row in Kafka exactly once."""

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from chaffinch.broker.core.groups.offsets import CommittedOffset
from chaffinch.errors.codes import Group
from chaffinch.identifiers import NO_PRODUCER, ProducerIdentity, TopicPartition
from chaffinch.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from chaffinch.spark.commit.operations import Lost, Operation, SendRequest, Step
from chaffinch.spark.commit.tolerance import Tolerance
from chaffinch.spark.refusals import Kind, Refusal, Remedy
from tests.spark.commit.commit_world import DEAD, TOPIC, Broker, Cut, Driver, Killed, Query, counted, outcome

ROWS = [
    {0: [(b"k1", b"a"), (b"k2", b"b"), (b"k3", b"c")], 1: [(b"k4", b"d")]},
    {0: [(b"k1", b"e")], 1: [(b"k5", b"f"), (b"k6", b"g"), (b"k7", b"h")]},
]
FIRST_ROWS = [pair for pairs in ROWS[0].values() for pair in pairs]
ALL_VALUES = {value for rows in ROWS for pairs in rows.values() for _, value in pairs}


def two_batches(**fields: Any) -> tuple[Broker, Query]:
    """Two batches of two tasks each, on a fresh broker."""
    broker = Broker()
    split = [tuple(outcome({partition: pairs}, task=partition) for partition, pairs in rows.items()) for rows in ROWS]
    return broker, Query(broker, split, **fields)


def undisturbed() -> list[Step]:
    _broker, query = two_batches()
    return [step for batch_id in range(2) for step in query.commit(batch_id).steps]


STEPS = undisturbed()
OPERATIONS = len(STEPS)
WITHIN_THE_TRANSACTION = {Step.ADD_PARTITIONS, Step.PUSH, Step.ADD_OFFSETS, Step.COMMIT_MARKER, Step.NOTE_ENDING}


def assert_exactly_once(broker: Broker) -> None:
    assert counted(broker.read(TOPIC)) == dict.fromkeys(ALL_VALUES, 1)


def test_steps_of_undisturbed_commit() -> None:
    _, query = two_batches()
    steps = [step for step, _ in itertools.groupby(query.commit(0).steps)]
    assert steps == [
        Step.READ_STATE,
        Step.READ_MARKER,
        Step.FINISH_COMMIT,
        Step.FIX_TRANSACTIONAL_ID,
        Step.INIT_PRODUCER,
        Step.READ_MARKER_AGAIN,
        Step.FIND_HANGING_TRANSACTIONS,
        Step.ADD_PARTITIONS,
        Step.PUSH,
        Step.ADD_OFFSETS,
        Step.COMMIT_MARKER,
        Step.NOTE_ENDING,
        Step.END_TRANSACTION,
        Step.NOTE_DONE,
    ]


@pytest.mark.parametrize("how", ["crash_before", "crash_after"])
@pytest.mark.parametrize("at", range(OPERATIONS))
def test_crash_at_each_operation_and_restart(how: str, at: int) -> None:
    broker, query = two_batches()
    with pytest.raises(Killed):
        query.run(Cut(at=at, how=how))
    query.run()
    assert_exactly_once(broker)


@pytest.mark.parametrize("how", ["lose_request", "lose_answer"])
@pytest.mark.parametrize("at", range(OPERATIONS))
def test_request_or_response_lost_at_each_operation(how: str, at: int) -> None:
    broker, query = two_batches()
    query.run(Cut(at=at, how=how))
    assert_exactly_once(broker)


@pytest.mark.parametrize("at", range(OPERATIONS))
def test_broker_killed_at_each_operation(at: int) -> None:
    broker, query = two_batches()
    query.run(Cut(at=at, how="broker_killed"))
    assert_exactly_once(broker)


@pytest.mark.parametrize(("first", "second"), list(itertools.product(range(0, OPERATIONS, 3), range(0, OPERATIONS, 4))))
def test_two_crashes(first: int, second: int) -> None:
    broker, query = two_batches()
    with pytest.raises(Killed):
        query.run(Cut(at=first, how="crash_after"))
    # The second run may have fewer operations left than that.
    try:
        query.run(Cut(at=second, how="crash_before"))
    except Killed:
        query.run()
    assert_exactly_once(broker)


@pytest.mark.parametrize("at", range(OPERATIONS))
def test_second_driver_at_each_operation(at: int) -> None:
    """Two queries on one checkpoint: the newer one writes, the older one stops or skips, no row is lost or doubled."""
    broker, query = two_batches()
    other = Query(broker, query.batches, state=query.state)
    cut = Cut(at=at, how="during", during=lambda: other.run() if not other.done else None)
    other.run_count = 100
    stopped = None
    try:
        query.run(cut)
    except Refusal as refusal:
        stopped = refusal
    is_fenced = STEPS[at] in WITHIN_THE_TRANSACTION | {Step.READ_MARKER_AGAIN, Step.FIND_HANGING_TRANSACTIONS}
    if is_fenced:
        assert stopped is not None
        assert (stopped.name, stopped.group) == ("ANOTHER_WRITER", Group.APPLICATION_RECOVERABLE)
    else:  # The marker of a newer batch is found, by one of the two, or that of this one, which is skipped.
        assert stopped is None or stopped.name == "CHECKPOINT_RESTORED"
    assert_exactly_once(broker)


@pytest.mark.parametrize("at", range(OPERATIONS))
def test_transaction_timeout_at_each_operation(at: int) -> None:
    broker, query = two_batches()
    stopped = None
    try:
        query.run(Cut(at=at, how="during", during=lambda: broker.pass_time(120_000)))
    except Refusal as refusal:
        stopped = refusal
        query.run()
    if STEPS[at] in WITHIN_THE_TRANSACTION:
        assert stopped is not None
        assert stopped.name in ("INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")
        assert stopped.group is Group.APPLICATION_RECOVERABLE
        assert ".;" not in str(stopped)
    else:
        assert stopped is None
    assert_exactly_once(broker)


def test_fenced_driver_with_unchanged_marker_may_restart() -> None:
    broker, query = two_batches()
    at = query_operation(Step.PUSH)
    with pytest.raises(Refusal, match=r"no rows of the batch are visible; .*; start the query again") as caught:
        query.run(Cut(at=at, how="during", during=lambda: broker.pass_time(120_000)))
    assert caught.value.group is Group.APPLICATION_RECOVERABLE


@pytest.mark.parametrize(
    ("is_stream", "advice"),
    [
        (True, "two queries run from one checkpoint: stop one of them"),
        (False, "two writes had one idempotencyToken .* do not run it again"),
    ],
)
def test_fenced_driver_with_changed_marker_reports_another_writer(is_stream: bool, advice: str) -> None:
    broker, query = two_batches()
    other = Query(broker, query.batches)
    cut = Cut(at=query_operation(Step.PUSH), how="during", during=lambda: other.commit(0, writer_id="other") if not other.done else None)
    with pytest.raises(Refusal, match=advice) as caught:
        query.commit(0, cut, is_stream=is_stream)
    assert caught.value.name == "ANOTHER_WRITER"
    assert counted(broker.read(TOPIC)) == counted(FIRST_ROWS)


@pytest.mark.parametrize(
    ("event", "can_ask", "name"),
    [
        ("nothing", True, "STAGING_LOST"),
        ("another begins", True, "STAGING_LOST"),
        ("another writes", True, "ANOTHER_WRITER"),
        ("another writes", False, "STAGING_LOST"),
    ],
)
def test_lost_staging_reads_marker_for_another_writer(event: str, can_ask: bool, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, query = two_batches()
    other = Query(broker, query.batches)
    happens: dict[str, Callable[[], object]] = {
        "nothing": int,
        "another begins": lambda: another_init(broker),
        "another writes": lambda: other.commit(0, writer_id="other"),
    }

    def lose() -> None:
        happens[event]()
        raise Refusal(Group.APPLICATION_RECOVERABLE, "STAGING_LOST", "gone", Remedy.AGAIN)

    driver = Driver(broker, query, Cut(at=query_operation(Step.PUSH), how="during", during=lose))
    effect = driver.effect

    def cut_off(operation: Operation) -> object:
        is_asked = operation.step is Step.READ_MARKER_AFTER_FENCING and isinstance(operation, SendRequest)
        return Lost(reason="cut off") if is_asked else effect(operation)

    if not can_ask:
        monkeypatch.setattr(driver, "effect", cut_off)
    with pytest.raises(Refusal) as caught:
        driver.run(query.plan(0, "mine"))
    assert caught.value.name == name
    assert counted(broker.read(TOPIC)) == (counted(FIRST_ROWS) if event == "another writes" else {})


def another_init(broker: Broker, identity: ProducerIdentity = NO_PRODUCER) -> InitProducerIdResponse:
    """Another writer's InitProducerId; the answer."""
    answer = broker.ask(
        InitProducerIdRequest(
            transactional_id="chaffinch-q", transaction_timeout_ms=60_000, producer_id=identity.producer_id, producer_epoch=identity.epoch
        )
    )
    assert isinstance(answer, InitProducerIdResponse)
    return answer


def is_still_the_newest(broker: Broker, answer: InitProducerIdResponse) -> bool:
    """Whether the identity that another writer was given has not been fenced."""
    return another_init(broker, ProducerIdentity(answer.producer_id, answer.producer_epoch)).error_code == 0


def test_driver_fenced_after_commit_succeeds_by_marker() -> None:
    broker, query = two_batches()
    at = query_operation(Step.END_TRANSACTION)
    driver = query.commit(0, Cut(at=at, how="lose_answer", during=lambda: another_init(broker)))
    assert driver.result.outcome == "written"
    assert Step.READ_MARKER_AFTER_FENCING in driver.steps
    assert query.state.remembered is not None
    assert (driver.steps[-1], query.state.remembered.phase) == (Step.NOTE_DONE, "written")
    assert query.state.totals is not None
    assert (driver.result.counts.rows_written, query.state.totals.rows_written) == (4, 4)


@pytest.mark.parametrize(
    ("step", "text"),
    [(Step.PUSH, "no rows of the batch are visible"), (Step.END_TRANSACTION, "it is unknown whether the batch is written")],
)
def test_fenced_driver_without_marker_reports_known_facts(step: Step, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, query = two_batches()
    effect = Driver.effect

    def away(self: Driver, operation: Operation) -> object:
        return (
            Lost(reason="away")
            if operation.step is Step.READ_MARKER_AFTER_FENCING and isinstance(operation, SendRequest)
            else effect(self, operation)
        )

    monkeypatch.setattr(Driver, "effect", away)
    with pytest.raises(Refusal, match=text):
        query.commit(0, Cut(at=query_operation(step), how="lose_answer", during=lambda: another_init(broker)))
    assert bool(broker.read(TOPIC)) is (step is Step.END_TRANSACTION)


def test_end_txn_of_ended_transaction_succeeds_by_marker() -> None:
    broker, query = two_batches()
    at = query_operation(Step.END_TRANSACTION)

    def refuse() -> None:
        broker.core.faults.add(api="EndTxn", error="INVALID_TXN_STATE", count=1)

    assert query.commit(0, Cut(at=at, how="lose_answer", during=refuse)).result.outcome == "written"


def test_abort_fences_no_other_writer() -> None:
    broker, query = two_batches()
    taken: list[InitProducerIdResponse] = []

    def disturb() -> None:
        while not taken or taken[-1].error_code:
            taken.append(another_init(broker))
        broker.core.faults.add(api="Produce", error="TOPIC_AUTHORIZATION_FAILED", count=10)

    with pytest.raises(Refusal, match="TOPIC_AUTHORIZATION_FAILED"):
        query.commit(0, Cut(at=query_operation(Step.ADD_PARTITIONS), how="during", during=disturb))
    assert is_still_the_newest(broker, taken[-1])


def test_restart_fences_no_other_writer() -> None:
    """The other writer comes between the abort and the next InitProducerId."""
    broker, query = two_batches()
    _, twin = two_batches()
    twin.broker.core.faults.add(api="Produce", error="INVALID_TXN_STATE", count=1)
    at = twin.commit(0).steps.index(Step.ABORT)
    broker.core.faults.add(api="Produce", error="INVALID_TXN_STATE", count=1)
    taken: list[InitProducerIdResponse] = []
    with pytest.raises(Refusal, match="was fenced") as caught:
        query.commit(0, Cut(at=at, how="during", during=lambda: taken.append(another_init(broker))))
    assert caught.value.group is Group.APPLICATION_RECOVERABLE
    assert taken[0].error_code == 0
    assert is_still_the_newest(broker, taken[0])


def query_operation(step: Step, batch_id: int = 0) -> int:
    """The index of the first operation of a step in one of the batches."""
    _, query = two_batches()
    return [query.commit(number) for number in range(batch_id + 1)][-1].steps.index(step)


class TestMarker:
    def test_written_batch_is_skipped_without_fencing(self) -> None:
        _broker, query = two_batches()
        query.commit(0)
        driver = query.commit(0)
        assert driver.result.outcome == "skipped"
        assert set(driver.steps) == {Step.READ_STATE, Step.READ_MARKER, Step.FINISH_COMMIT}

    def test_same_batch_with_different_contents_is_refused(self) -> None:
        _broker, query = two_batches()
        query.commit(0)
        query.digests[0] = "another"
        with pytest.raises(Refusal, match="an older copy of the checkpoint was restored") as caught:
            query.commit(0)
        assert (caught.value.group, caught.value.name) == (Group.INVALID_CONFIGURATION, "CHECKPOINT_RESTORED")

    def test_batch_older_than_marker_is_refused(self) -> None:
        _broker, query = two_batches()
        query.run()
        query.state = type(query.state)()
        with pytest.raises(Refusal, match="batch 0 is older than batch 1, which is written according to the marker in group chaffinch-q"):
            query.commit(0)

    def test_missing_marker_of_later_batch_is_refused_without_option(self) -> None:
        _broker, query = two_batches()
        with pytest.raises(Refusal, match="set onMissingMarker=write") as caught:
            query.commit(1)
        assert caught.value.name == "MARKER_MISSING"
        assert query.commit(1, writes_without_marker=True).result.outcome == "written"

    def test_expired_marker_is_replaced_by_checkpoint_state(self) -> None:
        _broker, query = two_batches()
        query.run(until=1)
        other = Broker()
        query.broker = other
        query.run()
        assert counted(other.read(TOPIC)) == {value: 1 for pairs in ROWS[1].values() for _, value in pairs}

    def test_commit_in_progress_long_ago_without_marker_is_refused(self) -> None:
        broker, query = two_batches()
        with pytest.raises(Killed):
            query.run(Cut(at=query_operation(Step.END_TRANSACTION), how="crash_before"))
        broker.pass_time(4 * 24 * 3_600_000)
        with pytest.raises(Refusal, match="too long ago for the marker to decide"):
            query.commit(0)

    def test_commit_in_progress_with_marker_on_another_topic_is_refused(self) -> None:
        """markerTopic changed before the restart: the batch is in Kafka, but its marker is not where it is expected."""
        broker, query = two_batches()
        with pytest.raises(Killed):
            query.run(Cut(at=query_operation(Step.END_TRANSACTION), how="crash_after"))
        with pytest.raises(Refusal, match="with its marker on orders-0, but the marker is now expected on orders-dead-0") as caught:
            query.commit(0, marker_partition=TopicPartition(DEAD, 0))
        assert caught.value.name == "MARKER_MISSING"
        query.run()
        assert_exactly_once(broker)

    def test_acknowledged_batch_lost_by_kafka_is_reported(self) -> None:
        broker, query = two_batches()
        query.run(until=1)
        offsets, marker_place = broker.core.state.offsets, TopicPartition(TOPIC, 0)
        older = offsets.fetch("chaffinch-q", marker_place)
        assert older is not None
        query.run()
        written = counted(broker.read(TOPIC))
        offsets.commit("chaffinch-q", {marker_place: older})
        with pytest.raises(Refusal, match="has the marker of batch 0, but Kafka acknowledged batch 1 ") as caught:
            query.commit(1)
        assert caught.value.name == "MARKER_LOST"
        assert counted(broker.read(TOPIC)) == written
        assert query.commit(1, writes_without_marker=True).result.outcome == "written"

    @pytest.mark.parametrize("since", ["nothing", "an empty batch", "a commit that died", "a commit that died, empty when repeated"])
    def test_lost_acknowledged_batch_is_reported_after_later_batches(self, since: str) -> None:
        _broker, query = two_batches()
        query.batches += [query.batches[1]] * 2
        query.run(until=2)
        if "died" in since:
            with pytest.raises(Killed):
                query.commit(2, Cut(at=query_operation(Step.END_TRANSACTION, 1), how="crash_before"))
        if "empty" in since:
            query.batches[2] = (outcome({}),)
            query.commit(2)
        query.broker = restored = Broker()  # It knows no batch behind 0.
        Query(restored, query.batches).commit(0)
        with pytest.raises(Refusal, match="has the marker of batch 0, but Kafka acknowledged batch 1 ") as caught:
            query.commit(3 if "empty" in since else 2)
        assert caught.value.name == "MARKER_LOST"
        assert counted(restored.read(TOPIC)) == counted(FIRST_ROWS)

    @pytest.mark.parametrize(
        ("metadata", "text"),
        [
            ("not a marker", "that is not a Chaffinch marker"),
            ('{"version":9}', "FORMAT_NEWER: the marker that group chaffinch-q .* has format version 9, this Chaffinch supports versions"),
        ],
    )
    def test_foreign_offset_in_group_is_refused(self, metadata: str, text: str) -> None:
        broker, query = two_batches()
        query.commit(0)
        offset = CommittedOffset(offset=0, leader_epoch=-1, metadata=metadata, committed_ms=0)
        broker.core.state.offsets.commit("chaffinch-q", {TopicPartition(TOPIC, 0): offset})
        with pytest.raises(Refusal, match=text):
            query.commit(1)


class TestTransactionalId:
    def test_changed_id_is_refused(self) -> None:
        _broker, query = two_batches()
        query.commit(0)
        query.transactional_id = "mine"
        with pytest.raises(Refusal, match="this checkpoint was started with chaffinch-q") as caught:
            query.commit(1)
        assert caught.value.group is Group.INVALID_CONFIGURATION

    def test_id_is_fixed_before_any_write(self) -> None:
        _broker, query = two_batches()
        with pytest.raises(Killed):
            query.run(Cut(at=query_operation(Step.INIT_PRODUCER), how="crash_before"))
        assert query.state.transactional_id == "chaffinch-q"


class TestBatchWrites:
    def test_a_token_is_written_once(self) -> None:
        broker, query = two_batches(has_checkpoint=False)
        first = query.commit(0, is_stream=False)
        again = query.commit(0, is_stream=False, writer_id="later")
        assert (first.result.outcome, again.result.outcome) == ("written", "skipped")
        assert counted(broker.read(TOPIC)) == {value: 1 for pairs in ROWS[0].values() for _, value in pairs}

    def test_without_a_token_there_is_no_marker(self) -> None:
        broker, query = two_batches(has_checkpoint=False)
        for _ in range(2):
            driver = query.commit(0, is_stream=False, group_id=None)
            assert not {Step.READ_MARKER, Step.COMMIT_MARKER} & set(driver.steps)
        assert set(counted(broker.read(TOPIC)).values()) == {2}

    @pytest.mark.parametrize(
        ("step", "remedy", "text", "written"),
        [
            (Step.PUSH, Remedy.AGAIN, "no rows of the batch are visible", []),
            (Step.END_TRANSACTION, Remedy.LOOK, "it is unknown whether the rows are written; check the topic before", FIRST_ROWS),
        ],
    )
    def test_fenced_write_without_marker_reports_whether_it_may_be_written(
        self, step: Step, remedy: Remedy, text: str, written: Sequence[tuple[bytes, bytes]]
    ) -> None:
        broker, query = two_batches(has_checkpoint=False)
        changes: dict[str, Any] = {"is_stream": False, "group_id": None}
        _, twin = two_batches(has_checkpoint=False)
        at = twin.commit(0, **changes).steps.index(step)
        with pytest.raises(Refusal) as caught:
            query.commit(0, Cut(at=at, how="lose_answer", during=lambda: another_init(broker)), **changes)
        assert caught.value.remedy is remedy
        assert re.search(text, caught.value.worded_for(Kind.BATCH).text)
        assert counted(broker.read(TOPIC)) == counted(written)


def test_tolerance_max_needs_tolerance_all() -> None:
    with pytest.raises(ValueError, match=r"needs errors\.tolerance=all"):
        Tolerance.parse("none", "5")
