"""Rows that only the broker can refuse, because the topic changed after the tasks had looked at it; and failures during a commit."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from chaffinch.errors import codes
from chaffinch.errors.codes import Group
from chaffinch.spark.commit.messages import StagedBytes, TaskOutcome
from chaffinch.spark.commit.operations import SendBatch, Step
from chaffinch.spark.commit.tolerance import Tolerance
from chaffinch.spark.refusals import Refusal
from chaffinch.spark.snapshot import TargetSnapshot, TopicSnapshot
from chaffinch.spark.tasks.replay_notes import ReplayNotes
from tests.spark.commit.commit_world import DEAD, PATIENCE, TOPIC, Broker, Cut, Driver, Killed, Query, counted, outcome

ROWS = {0: [(b"k1", b"a"), (None, b"b"), (b"k3", b"c")], 1: [(None, b"d"), (b"k5", b"e")]}
GOOD, BAD = {b"a", b"c", b"e"}, {b"b", b"d"}
ALL = Tolerance(tolerates=True)


def compacted_meanwhile(
    rows: Mapping[int, Sequence[tuple[bytes | None, bytes]]] = ROWS, tolerance: Tolerance = ALL, **fields: Any
) -> tuple[Broker, Query]:
    """A query whose topic became compacted after its rows were staged: null keys are refused by the broker only."""
    broker = Broker()
    query = Query(broker, [(outcome(rows, per_batch=3),)], tolerance=tolerance, dead_letter_topic=DEAD, **fields)
    broker.core.topics.alter(TOPIC, {"cleanup.policy": "compact"})
    return broker, query


def steps() -> list[Step]:
    _, query = compacted_meanwhile()
    return query.commit(0).steps


OPERATIONS = len(steps())
FIRST_SEND = steps().index(Step.PUSH)


def assert_sorted_out(broker: Broker) -> None:
    assert counted(broker.read(TOPIC)) == dict.fromkeys(GOOD, 1)
    assert counted(broker.read(DEAD)) == dict.fromkeys(BAD, 1)


def test_culprits_become_dead_letters_and_innocents_are_written() -> None:
    broker, query = compacted_meanwhile()
    driver = query.commit(0)
    assert_sorted_out(broker)
    assert (driver.result.counts.rows_written, driver.result.counts.rejected) == (3, {"INVALID_COMPACTION_KEY": 2})


def test_bytes_are_counted_of_what_kafka_holds() -> None:
    """Neither the records that the broker refused, nor the rows for Parquet; the dead letters for the topic are counted."""
    broker, query = compacted_meanwhile()
    for_parquet = StagedBytes(data=b"x" * 5_000, byte_count=5_000)
    query.batches = [tuple(replace(task, dead_rows=(for_parquet,)) for task in tasks) for tasks in query.batches]
    sizes = []

    class Counting(Driver):
        def send(self, operation: SendBatch) -> None:
            super().send(operation)
            sizes.append((self.answers[-1].byte_count or 0) if self.answers[-1].code is codes.NONE else 0)

    counts = Counting(broker, query).run(query.plan(0, "run-0", writes_dead_letter_file=True)).counts
    assert_sorted_out(broker)
    assert 0 < counts.byte_count == sum(sizes) != query.plan(0, "run-0").byte_count
    assert (counts.staged_bytes, counts.staging_files) == (0, 0)


@pytest.mark.parametrize("how", ["crash_before", "crash_after"])
@pytest.mark.parametrize("at", range(OPERATIONS))
def test_a_driver_that_dies_anywhere_leaves_each_row_in_one_place(how: str, at: int) -> None:
    broker, query = compacted_meanwhile()
    with pytest.raises(Killed):
        query.run(Cut(at=at, how=how))
    query.run()
    assert_sorted_out(broker)


@pytest.mark.parametrize("how", ["lose_request", "lose_answer", "broker_killed"])
@pytest.mark.parametrize("at", range(OPERATIONS))
def test_a_lost_answer_or_broker_anywhere_leaves_each_row_in_one_place(how: str, at: int) -> None:
    broker, query = compacted_meanwhile()
    query.run(Cut(at=at, how=how))
    assert_sorted_out(broker)


def test_a_topic_that_becomes_compacted_between_two_attempts() -> None:
    """The first attempt has pushed a batch of good and bad rows; pushed again, the bad ones are refused."""
    broker = Broker()
    query = Query(broker, [(outcome(ROWS, per_batch=3),)], tolerance=ALL, dead_letter_topic=DEAD)

    def disturb() -> None:
        broker.core.topics.alter(TOPIC, {"cleanup.policy": "compact"})
        broker.core.faults.add(api="Produce", error="OUT_OF_ORDER_SEQUENCE_NUMBER", count=1)

    query.run(Cut(at=FIRST_SEND, how="during", during=disturb))
    assert_sorted_out(broker)


def test_all_rows_bad_still_moves_the_marker() -> None:
    rows = {0: [(None, b"b"), (None, b"d")]}
    broker, query = compacted_meanwhile(rows)
    query.run()
    assert broker.read(TOPIC) == []
    assert counted(broker.read(DEAD)) == dict.fromkeys(BAD, 1)
    assert query.commit(0).result.outcome == "skipped"


class TestTolerance:
    def test_none_fails_with_the_reasons_and_leaves_nothing(self) -> None:
        broker, query = compacted_meanwhile(tolerance=Tolerance(tolerates=False))
        with pytest.raises(Refusal) as caught:
            query.commit(0)
        assert (caught.value.group, caught.value.name) == (Group.INVALID_CONFIGURATION, "ROWS_REJECTED")
        assert "1 of 5 rows are rejected (1 INVALID_COMPACTION_KEY), " in str(caught.value)
        assert "null key" in str(caught.value)
        assert "tolerance=none allows none; nothing was written; set errors.tolerance=all and a dead" in str(caught.value)
        assert broker.read(TOPIC) == []
        assert broker.read(DEAD) == []

    @pytest.mark.parametrize(("cap", "fails"), [("2", False), ("1", True), ("40%", False), ("39%", True), ("0", True)])
    def test_the_cap_counts_what_the_broker_refused(self, cap: str, fails: bool) -> None:
        broker, query = compacted_meanwhile(tolerance=Tolerance.parse("all", cap))
        if fails:
            with pytest.raises(Refusal, match="rows are rejected"):
                query.commit(0)
            assert broker.read(TOPIC) == []
        else:
            query.commit(0)
            assert_sorted_out(broker)

    def test_what_tasks_found_fails_before_kafka_is_asked_to_write(self) -> None:
        broker = Broker()
        query = Query(broker, [(outcome({0: [(b"k", b"v")]}, rejected_by_code={"INVALID_TIMESTAMP": 3}),)])
        with pytest.raises(Refusal, match="3 of 1 rows are rejected"):
            query.commit(0)
        assert query.state.transactional_id is None


def test_a_limit_lowered_meanwhile_splits_batches_and_sets_the_large_ones_aside() -> None:
    broker = Broker()
    rows = {0: [(b"k1", b"a" * 100), (b"k2", b"b" * 3000), (b"k3", b"c" * 100)]}
    query = Query(broker, [(outcome(rows, per_batch=3),)], tolerance=ALL, dead_letter_topic=DEAD)
    broker.core.topics.alter(TOPIC, {"max.message.bytes": "500"})
    query.run()
    assert counted(broker.read(TOPIC)) == {b"a" * 100: 1, b"c" * 100: 1}
    assert counted(broker.read(DEAD)) == {b"b" * 3000: 1}


def test_a_dead_letter_topic_that_refuses_fails_the_batch() -> None:
    broker, query = compacted_meanwhile()
    broker.core.topics.alter(DEAD, {"cleanup.policy": "compact"})
    with pytest.raises(Refusal, match="the dead letter topic itself refuses") as caught:
        query.commit(0)
    assert caught.value.group is Group.INVALID_CONFIGURATION
    assert broker.read(TOPIC) == []


def test_tasks_that_saw_different_topics_are_refused() -> None:
    broker = Broker()
    before = TopicSnapshot(topic=TOPIC, topic_id=bytes(16), partition_count=2)
    after = TopicSnapshot(topic=TOPIC, topic_id=bytes(16), partition_count=2, is_compacted=True)
    tasks = tuple(outcome({task: [(b"k", b"v")]}, task=task, snapshots=(seen,)) for task, seen in enumerate((before, after)))
    with pytest.raises(Refusal, match="changed while the batch was staged") as caught:
        Query(broker, [tasks]).commit(0)
    assert caught.value.group is Group.TRANSACTION_ABORTABLE


def test_a_topic_that_was_created_again_is_refused() -> None:
    broker = Broker()
    used = TopicSnapshot(topic=TOPIC, topic_id=bytes(16), partition_count=2)
    query = Query(broker, [(outcome({0: [(b"k", b"v")]}, snapshots=(used,)),)])
    limits = TargetSnapshot(topics=(replace(used, is_compacted=True),))
    with pytest.raises(Refusal, match="was deleted and created again"):
        query.commit(0, target=TargetSnapshot(topics=(replace(used, topic_id=b"x" * 16),)))
    assert query.commit(0, target=limits).result.outcome == "written"


class TestFailures:
    """What the broker answers in the middle, and how the commit ends."""

    def plain(self) -> tuple[Broker, Query]:
        broker = Broker()
        return broker, Query(broker, [(outcome({0: [(b"k", b"v")], 1: [(b"l", b"w")]}),)])

    @pytest.mark.parametrize("error", ["OUT_OF_ORDER_SEQUENCE_NUMBER", "INVALID_TXN_STATE", "TRANSACTION_ABORTABLE"])
    def test_a_transaction_that_is_lost_is_started_again_from_the_staging(self, error: str) -> None:
        broker, query = self.plain()
        broker.core.faults.add(api="Produce", error=error, count=1)
        driver = query.commit(0)
        assert Step.ABORT in driver.steps
        assert counted(broker.read(TOPIC)) == {b"v": 1, b"w": 1}

    def test_a_push_ends_with_the_transaction_s_time(self) -> None:
        broker, query = self.plain()
        broker.core.faults.add(api="Produce", error="NOT_ENOUGH_REPLICAS", count=2_000)
        with pytest.raises(
            Refusal, match=r"not acknowledged within transaction\.timeout\.ms=60000; the last answer was: NOT_ENOUGH_REPLICAS"
        ):
            query.commit(0)

    def test_not_for_ever(self) -> None:
        broker, query = self.plain()
        broker.core.faults.add(api="Produce", error="TRANSACTION_ABORTABLE", count=100)
        with pytest.raises(Refusal, match="the transaction is aborted") as caught:
            query.commit(0)
        assert caught.value.group is Group.TRANSACTION_ABORTABLE
        assert broker.read(TOPIC) == []

    @pytest.mark.parametrize("api", ["InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn", "OffsetFetch"])
    @pytest.mark.parametrize("error", ["COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE"])
    def test_a_coordinator_that_moves_is_asked_again(self, api: str, error: str) -> None:
        broker, query = self.plain()
        broker.core.faults.add(api=api, error=error, count=3)
        query.run()
        assert counted(broker.read(TOPIC)) == {b"v": 1, b"w": 1}

    @pytest.mark.parametrize(
        ("api", "error", "group"),
        [
            ("InitProducerId", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", Group.INVALID_CONFIGURATION),
            ("AddPartitionsToTxn", "TOPIC_AUTHORIZATION_FAILED", Group.INVALID_CONFIGURATION),
            ("OffsetFetch", "GROUP_AUTHORIZATION_FAILED", Group.INVALID_CONFIGURATION),
            ("Produce", "TOPIC_AUTHORIZATION_FAILED", Group.INVALID_CONFIGURATION),
            ("EndTxn", "UNSUPPORTED_VERSION", Group.INVALID_CONFIGURATION),
        ],
    )
    def test_what_is_refused_for_good_carries_its_class(self, api: str, error: str, group: Group) -> None:
        broker, query = self.plain()
        broker.core.faults.add(api=api, error=error, count=1)
        with pytest.raises(Refusal, match=error) as caught:
            query.commit(0)
        assert caught.value.group is group
        query.run()
        assert counted(broker.read(TOPIC)) == {b"v": 1, b"w": 1}

    @pytest.mark.parametrize("error", ["PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "TRANSACTION_ABORTABLE", "INVALID_TXN_STATE"])
    def test_a_first_init_that_meets_another_one_is_an_error_with_its_class(self, error: str) -> None:
        """Two InitProducerId that fence at once: Kafka tells one of them so, although it named no epoch."""
        broker, query = self.plain()
        broker.core.faults.add(api="InitProducerId", error=error, count=1)
        with pytest.raises(Refusal, match="nothing of it is visible") as caught:
            query.commit(0)
        assert caught.value.group in (Group.APPLICATION_RECOVERABLE, Group.TRANSACTION_ABORTABLE)
        query.run()
        assert counted(broker.read(TOPIC)) == {b"v": 1, b"w": 1}

    @pytest.mark.parametrize("api", ["InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"])
    def test_who_is_fenced_is_told_alike_by_coordinators_of_every_version(self, api: str) -> None:
        """Those before Kafka 2.7 say INVALID_PRODUCER_EPOCH (KIP-588)."""
        broker, query = self.plain()
        told = []
        for error in ("INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED"):
            broker.core.faults.add(api=api, error=error, count=1)
            with pytest.raises(Refusal) as caught:
                query.commit(0)
            told.append((caught.value.group, caught.value.name))
        assert told == [(Group.APPLICATION_RECOVERABLE, "PRODUCER_FENCED")] * 2
        query.run()
        assert counted(broker.read(TOPIC)) == {b"v": 1, b"w": 1}

    def test_an_end_that_is_never_answered_is_neither_success_nor_abort(self) -> None:
        broker, query = self.plain()
        broker.core.faults.add(api="EndTxn", action="drop_after", count=10_000)
        driver = Driver(broker, query)
        with pytest.raises(Refusal, match="whether the batch is written is not known") as caught:
            driver.run(query.plan(0, "run-1"))
        assert caught.value.group is Group.REFRESH_RETRIABLE
        assert Step.ABORT not in driver.steps
        broker.core.faults.clear()
        assert counted(broker.read(TOPIC)) == {b"v": 1, b"w": 1}
        assert query.commit(0).result.outcome == "skipped"

    def test_a_failure_before_the_end_aborts_at_once(self) -> None:
        """Readers of committed records are not held up until the time-out."""
        broker, query = self.plain()
        broker.core.faults.add(api="TxnOffsetCommit", error="GROUP_AUTHORIZATION_FAILED", count=1)
        with pytest.raises(Refusal):
            query.commit(0)
        partition = broker.core.topics.partition(TOPIC, 0)
        assert partition is not None
        log = partition.log
        assert log.last_stable_offset == log.log_end_offset

    def test_a_marker_pending_under_another_transactional_id_is_waited_for(self) -> None:
        """Without a checkpoint the id cannot be kept; the stable read is what is left against the old writer's late EndTxn."""
        broker = Broker()
        tasks: list[tuple[TaskOutcome, ...]] = [(outcome({0: [(b"k", b"v")]}),)]
        old = Query(broker, tasks, transactional_id="old", has_checkpoint=False)
        with pytest.raises(Killed):
            old.run(Cut(at=old_operation(Step.COMMIT_MARKER), how="crash_after"))
        began_ms = broker.steady_ms
        Query(broker, tasks, transactional_id="new", has_checkpoint=False).commit(0, patience=replace(PATIENCE, block_max_ms=100_000))
        assert broker.steady_ms - began_ms >= 60_000
        assert counted(broker.read(TOPIC)) == {b"v": 1}


def old_operation(step: Step) -> int:
    query = Query(Broker(), [(outcome({0: [(b"k", b"v")]}),)], has_checkpoint=False)
    return query.commit(0).steps.index(step)


def test_a_note_that_is_refused_ends_the_transaction() -> None:
    """Whatever is tolerated: rows without their note would be written again by the next replay."""
    broker, query = compacted_meanwhile()
    broker.core.topics.alter(DEAD, {"max.message.bytes": "100"})
    said = r"MESSAGE_TOO_LARGE: the dead letter topic itself refuses 1 of 1 notes of this replay for orders-dead-0: .* allows 100 bytes"
    notes = ReplayNotes(ends={0: 23}, run="r").staged(DEAD, "replay-d", broker.steady_ms)
    with pytest.raises(Refusal, match=said):
        query.commit(0, notes=notes)
    assert (broker.read(TOPIC), broker.read(DEAD)) == ([], [])
    broker.core.topics.alter(DEAD, {"max.message.bytes": "1000"})
    query.commit(0, notes=notes)
    assert counted(broker.read(TOPIC)) == dict.fromkeys(GOOD, 1)
    assert counted(broker.read(DEAD)) == {**dict.fromkeys(BAD, 1), b"r": 1}


class TestAHandler:
    """What it swallows is written nowhere, and is no bad row."""

    def test_some_are_left_out(self) -> None:
        broker, query = compacted_meanwhile(left_out=frozenset({b"b"}))
        counts = query.commit(0).result.counts
        assert counted(broker.read(TOPIC)) == dict.fromkeys(GOOD, 1)
        assert counted(broker.read(DEAD)) == {b"d": 1}
        assert (counts.rows_written, counts.rejected, counts.dropped) == (3, {"INVALID_COMPACTION_KEY": 1}, {"INVALID_COMPACTION_KEY": 1})

    def test_all_are_left_out_so_no_tolerance_is_needed(self) -> None:
        broker, query = compacted_meanwhile(left_out=frozenset(BAD), tolerance=Tolerance(tolerates=False))
        driver = query.commit(0)
        assert Step.PUSH_DEAD_LETTERS not in driver.steps
        assert (counted(broker.read(TOPIC)), counted(broker.read(DEAD))) == (dict.fromkeys(GOOD, 1), {})

    def test_those_that_are_not_count_against_the_cap(self) -> None:
        _, query = compacted_meanwhile(left_out=frozenset({b"b"}), tolerance=Tolerance(tolerates=True, count_max=0))
        with pytest.raises(Refusal, match=r"max=0 allows fewer; nothing was written; correct them, or allow more; "):
            query.commit(0)

    @pytest.mark.parametrize("how", ["crash_before", "crash_after"])
    def test_a_driver_that_dies_anywhere(self, how: str) -> None:
        _, query = compacted_meanwhile(left_out=frozenset({b"b"}))
        for at in range(len(query.commit(0).steps)):
            broker, query = compacted_meanwhile(left_out=frozenset({b"b"}))
            with pytest.raises(Killed):
                query.run(Cut(at=at, how=how))
            query.run()
            assert counted(broker.read(TOPIC)) == dict.fromkeys(GOOD, 1)
            assert counted(broker.read(DEAD)) == {b"d": 1}
