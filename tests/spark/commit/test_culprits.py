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
from tests.spark.commit.commit_world import DEAD, RETRY_POLICY, TOPIC, Broker, Cut, Driver, Killed, Query, counted, outcome

ROWS = {0: [(b"k1", b"a"), (None, b"b"), (b"k3", b"c")], 1: [(None, b"d"), (b"k5", b"e")]}
GOOD, BAD = {b"a", b"c", b"e"}, {b"b", b"d"}
ALL = Tolerance(tolerates=True)


def compacted_during_commit(
    rows: Mapping[int, Sequence[tuple[bytes | None, bytes]]] = ROWS, tolerance: Tolerance = ALL, **fields: Any
) -> tuple[Broker, Query]:
    """A query whose topic became compacted after its rows were staged: null keys are refused by the broker only."""
    broker = Broker()
    query = Query(broker, [(outcome(rows, per_batch=3),)], tolerance=tolerance, dead_letter_topic=DEAD, **fields)
    broker.core.topics.alter(TOPIC, {"cleanup.policy": "compact"})
    return broker, query


def steps() -> list[Step]:
    _, query = compacted_during_commit()
    return query.commit(0).steps


OPERATIONS = len(steps())
FIRST_SEND = steps().index(Step.PUSH)


def assert_sorted_out(broker: Broker) -> None:
    assert counted(broker.read(TOPIC)) == dict.fromkeys(GOOD, 1)
    assert counted(broker.read(DEAD)) == dict.fromkeys(BAD, 1)


def test_culprits_become_dead_letters_and_innocents_are_written() -> None:
    broker, query = compacted_during_commit()
    driver = query.commit(0)
    assert_sorted_out(broker)
    assert (driver.result.counts.rows_written, driver.result.counts.rejected) == (3, {"INVALID_COMPACTION_KEY": 2})


def test_bytes_are_counted_of_what_kafka_holds() -> None:
    """Neither the records that the broker refused, nor the rows for Parquet; the dead letters for the topic are counted."""
    broker, query = compacted_during_commit()
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
def test_crash_at_each_operation_leaves_each_row_once(how: str, at: int) -> None:
    broker, query = compacted_during_commit()
    with pytest.raises(Killed):
        query.run(Cut(at=at, how=how))
    query.run()
    assert_sorted_out(broker)


@pytest.mark.parametrize("how", ["lose_request", "lose_answer", "broker_killed"])
@pytest.mark.parametrize("at", range(OPERATIONS))
def test_lost_response_or_broker_at_each_operation_leaves_each_row_once(how: str, at: int) -> None:
    broker, query = compacted_during_commit()
    query.run(Cut(at=at, how=how))
    assert_sorted_out(broker)


def test_topic_compacted_between_two_attempts() -> None:
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
    broker, query = compacted_during_commit(rows)
    query.run()
    assert broker.read(TOPIC) == []
    assert counted(broker.read(DEAD)) == dict.fromkeys(BAD, 1)
    assert query.commit(0).result.outcome == "skipped"


class TestTolerance:
    def test_none_fails_with_the_reasons_and_leaves_nothing(self) -> None:
        broker, query = compacted_during_commit(tolerance=Tolerance(tolerates=False))
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
        broker, query = compacted_during_commit(tolerance=Tolerance.parse("all", cap))
        if fails:
            with pytest.raises(Refusal, match="rows are rejected"):
                query.commit(0)
            assert broker.read(TOPIC) == []
        else:
            query.commit(0)
            assert_sorted_out(broker)

    def test_culprits_of_tasks_fail_before_any_write(self) -> None:
        broker = Broker()
        query = Query(broker, [(outcome({0: [(b"k", b"v")]}, rejected_by_code={"INVALID_TIMESTAMP": 3}),)])
        with pytest.raises(Refusal, match="3 of 1 rows are rejected"):
            query.commit(0)
        assert query.state.transactional_id is None


def test_lowered_limit_splits_batches_and_rejects_large_records() -> None:
    broker = Broker()
    rows = {0: [(b"k1", b"a" * 100), (b"k2", b"b" * 3000), (b"k3", b"c" * 100)]}
    query = Query(broker, [(outcome(rows, per_batch=3),)], tolerance=ALL, dead_letter_topic=DEAD)
    broker.core.topics.alter(TOPIC, {"max.message.bytes": "500"})
    query.run()
    assert counted(broker.read(TOPIC)) == {b"a" * 100: 1, b"c" * 100: 1}
    assert counted(broker.read(DEAD)) == {b"b" * 3000: 1}


def test_refused_dead_letters_fail_the_batch() -> None:
    broker, query = compacted_during_commit()
    broker.core.topics.alter(DEAD, {"cleanup.policy": "compact"})
    with pytest.raises(Refusal, match="the dead letter topic refuses") as caught:
        query.commit(0)
    assert caught.value.group is Group.INVALID_CONFIGURATION
    assert broker.read(TOPIC) == []


def test_different_topic_snapshots_fail_the_batch() -> None:
    broker = Broker()
    before = TopicSnapshot(topic=TOPIC, topic_id=bytes(16), partition_count=2)
    after = TopicSnapshot(topic=TOPIC, topic_id=bytes(16), partition_count=2, is_compacted=True)
    tasks = tuple(outcome({task: [(b"k", b"v")]}, task=task, snapshots=(seen,)) for task, seen in enumerate((before, after)))
    with pytest.raises(Refusal, match="changed while the batch was staged") as caught:
        Query(broker, [tasks]).commit(0)
    assert caught.value.group is Group.TRANSACTION_ABORTABLE


def test_recreated_topic_fails_the_batch() -> None:
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
    def test_lost_transaction_is_restarted_from_staging(self, error: str) -> None:
        broker, query = self.plain()
        broker.core.faults.add(api="Produce", error=error, count=1)
        driver = query.commit(0)
        assert Step.ABORT in driver.steps
        assert counted(broker.read(TOPIC)) == {b"v": 1, b"w": 1}

    def test_push_fails_at_transaction_timeout(self) -> None:
        broker, query = self.plain()
        broker.core.faults.add(api="Produce", error="NOT_ENOUGH_REPLICAS", count=2_000)
        with pytest.raises(
            Refusal, match=r"not acknowledged within transaction\.timeout\.ms=60000; the last error was: NOT_ENOUGH_REPLICAS"
        ):
            query.commit(0)

    def test_restarts_are_limited(self) -> None:
        broker, query = self.plain()
        broker.core.faults.add(api="Produce", error="TRANSACTION_ABORTABLE", count=100)
        with pytest.raises(Refusal, match="the transaction is aborted") as caught:
            query.commit(0)
        assert caught.value.group is Group.TRANSACTION_ABORTABLE
        assert broker.read(TOPIC) == []

    @pytest.mark.parametrize("api", ["InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn", "OffsetFetch"])
    @pytest.mark.parametrize("error", ["COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE"])
    def test_moved_coordinator_is_looked_up_again(self, api: str, error: str) -> None:
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
    def test_final_error_has_its_error_class(self, api: str, error: str, group: Group) -> None:
        broker, query = self.plain()
        broker.core.faults.add(api=api, error=error, count=1)
        with pytest.raises(Refusal, match=error) as caught:
            query.commit(0)
        assert caught.value.group is group
        query.run()
        assert counted(broker.read(TOPIC)) == {b"v": 1, b"w": 1}

    @pytest.mark.parametrize("error", ["PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "TRANSACTION_ABORTABLE", "INVALID_TXN_STATE"])
    def test_concurrent_first_init_producer_id_has_its_error_class(self, error: str) -> None:
        """Two InitProducerId at the same time: Kafka returns a fencing error to one of them, although it sent no epoch."""
        broker, query = self.plain()
        broker.core.faults.add(api="InitProducerId", error=error, count=1)
        with pytest.raises(Refusal, match="no rows of the batch are visible") as caught:
            query.commit(0)
        assert caught.value.group in (Group.APPLICATION_RECOVERABLE, Group.TRANSACTION_ABORTABLE)
        query.run()
        assert counted(broker.read(TOPIC)) == {b"v": 1, b"w": 1}

    @pytest.mark.parametrize("api", ["InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"])
    def test_fencing_error_is_the_same_for_every_coordinator_version(self, api: str) -> None:
        """Those before Kafka 2.7 say INVALID_PRODUCER_EPOCH (KIP-588)."""
        broker, query = self.plain()
        errors = []
        for error in ("INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED"):
            broker.core.faults.add(api=api, error=error, count=1)
            with pytest.raises(Refusal) as caught:
                query.commit(0)
            errors.append((caught.value.group, caught.value.name))
        assert errors == [(Group.APPLICATION_RECOVERABLE, "PRODUCER_FENCED")] * 2
        query.run()
        assert counted(broker.read(TOPIC)) == {b"v": 1, b"w": 1}

    def test_end_txn_without_response_is_neither_success_nor_abort(self) -> None:
        broker, query = self.plain()
        broker.core.faults.add(api="EndTxn", action="drop_after", count=10_000)
        driver = Driver(broker, query)
        with pytest.raises(Refusal, match="it is unknown whether the batch is written") as caught:
            driver.run(query.plan(0, "run-1"))
        assert caught.value.group is Group.REFRESH_RETRIABLE
        assert Step.ABORT not in driver.steps
        broker.core.faults.clear()
        assert counted(broker.read(TOPIC)) == {b"v": 1, b"w": 1}
        assert query.commit(0).result.outcome == "skipped"

    def test_failure_before_end_txn_aborts(self) -> None:
        """Readers of committed records are not held up until the time-out."""
        broker, query = self.plain()
        broker.core.faults.add(api="TxnOffsetCommit", error="GROUP_AUTHORIZATION_FAILED", count=1)
        with pytest.raises(Refusal):
            query.commit(0)
        partition = broker.core.topics.partition(TOPIC, 0)
        assert partition is not None
        log = partition.log
        assert log.last_stable_offset == log.log_end_offset

    def test_pending_marker_of_other_transactional_id_is_waited_for(self) -> None:
        """Without a checkpoint the id cannot be kept; the stable read is what is left against the old writer's late EndTxn."""
        broker = Broker()
        tasks: list[tuple[TaskOutcome, ...]] = [(outcome({0: [(b"k", b"v")]}),)]
        old = Query(broker, tasks, transactional_id="old", has_checkpoint=False)
        with pytest.raises(Killed):
            old.run(Cut(at=old_operation(Step.COMMIT_MARKER), how="crash_after"))
        began_ms = broker.steady_ms
        Query(broker, tasks, transactional_id="new", has_checkpoint=False).commit(
            0, retry_policy=replace(RETRY_POLICY, block_max_ms=100_000)
        )
        assert broker.steady_ms - began_ms >= 60_000
        assert counted(broker.read(TOPIC)) == {b"v": 1}


def old_operation(step: Step) -> int:
    query = Query(Broker(), [(outcome({0: [(b"k", b"v")]}),)], has_checkpoint=False)
    return query.commit(0).steps.index(step)


def test_refused_note_fails_the_batch() -> None:
    """Whatever is tolerated: rows without their note would be written again by the next replay."""
    broker, query = compacted_during_commit()
    broker.core.topics.alter(DEAD, {"max.message.bytes": "100"})
    said = r"MESSAGE_TOO_LARGE: the dead letter topic refuses 1 of 1 notes of this replay for orders-dead-0: .* allows 100 bytes"
    notes = ReplayNotes(ends={0: 23}, run="r").staged(DEAD, "replay-d", broker.steady_ms)
    with pytest.raises(Refusal, match=said):
        query.commit(0, notes=notes)
    assert (broker.read(TOPIC), broker.read(DEAD)) == ([], [])
    broker.core.topics.alter(DEAD, {"max.message.bytes": "1000"})
    query.commit(0, notes=notes)
    assert counted(broker.read(TOPIC)) == dict.fromkeys(GOOD, 1)
    assert counted(broker.read(DEAD)) == {**dict.fromkeys(BAD, 1), b"r": 1}


class TestHandler:
    """What it swallows is written nowhere, and is no bad row."""

    def test_handler_drops_some_records(self) -> None:
        broker, query = compacted_during_commit(left_out=frozenset({b"b"}))
        counts = query.commit(0).result.counts
        assert counted(broker.read(TOPIC)) == dict.fromkeys(GOOD, 1)
        assert counted(broker.read(DEAD)) == {b"d": 1}
        assert (counts.rows_written, counts.rejected, counts.dropped) == (3, {"INVALID_COMPACTION_KEY": 1}, {"INVALID_COMPACTION_KEY": 1})

    def test_handler_drops_all_records_without_tolerance(self) -> None:
        broker, query = compacted_during_commit(left_out=frozenset(BAD), tolerance=Tolerance(tolerates=False))
        driver = query.commit(0)
        assert Step.PUSH_DEAD_LETTERS not in driver.steps
        assert (counted(broker.read(TOPIC)), counted(broker.read(DEAD))) == (dict.fromkeys(GOOD, 1), {})

    def test_records_not_dropped_count_against_the_cap(self) -> None:
        _, query = compacted_during_commit(left_out=frozenset({b"b"}), tolerance=Tolerance(tolerates=True, count_max=0))
        with pytest.raises(Refusal, match=r"max=0 allows fewer; nothing was written; correct them, or allow more; "):
            query.commit(0)

    @pytest.mark.parametrize("how", ["crash_before", "crash_after"])
    def test_crash_at_each_operation(self, how: str) -> None:
        _, query = compacted_during_commit(left_out=frozenset({b"b"}))
        for at in range(len(query.commit(0).steps)):
            broker, query = compacted_during_commit(left_out=frozenset({b"b"}))
            with pytest.raises(Killed):
                query.run(Cut(at=at, how=how))
            query.run()
            assert counted(broker.read(TOPIC)) == dict.fromkeys(GOOD, 1)
            assert counted(broker.read(DEAD)) == {b"d": 1}
