"""Commit of a micro-batch whose rows were sent by tasks (`at-least-once`, `none`): checks it, writes its dead letters, records it.

A generator with the operations of `protocol.py`, but it sends no record and reads or writes no marker: when Spark repeats a batch, its rows
are already written again before this begins. The record in the checkpoint lets a query return to `exactly-once`.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from dataclasses import replace

from chaffinch.errors.codes import Group
from chaffinch.identifiers import NO_PRODUCER, TopicPartition
from chaffinch.spark.commit import requests
from chaffinch.spark.commit.complete_previous import complete_previous_transaction
from chaffinch.spark.commit.marker import CheckpointState, Remembered
from chaffinch.spark.commit.messages import BatchCounts
from chaffinch.spark.commit.operations import Operation, ReadState, Reply, Step, WriteDeadLetters, WriteState
from chaffinch.spark.commit.plan import Commit, CommitPlan, CommitResult
from chaffinch.spark.commit.timeout import TRANSACTION_TIMEOUT_MIN_MS
from chaffinch.spark.commit.tolerance import Tally
from chaffinch.spark.refusals import Refusal, Remedy
from chaffinch.spark.snapshot import recreated_topic

ROWS_REMAIN = "rows that are already written remain, and the next attempt writes them again"


def finish_direct_batch(plan: CommitPlan) -> Commit:
    """Finishes one batch. Raises Refusal for a failed task, and for more bad rows than tolerated."""
    state = CheckpointState()
    if plan.has_checkpoint:
        state = (yield ReadState(step=Step.READ_STATE)).value
        yield from _end_open_transaction(plan, state)
    for outcome in plan.outcomes:
        if (failure := outcome.failure) is not None:
            raise Refusal(failure.group, failure.name, f"task {outcome.context.task}: {failure.text}; {ROWS_REMAIN}", failure.remedy)
    if recreated := recreated_topic(plan.snapshots(), plan.target):
        text = (
            f"topic {recreated} was deleted and created again while its rows were sent: some are lost with it, others may be in partitions"
        )
        text += f" chosen for the deleted topic; {ROWS_REMAIN}"
        raise Refusal(Group.TRANSACTION_ABORTABLE, "SNAPSHOT_CHANGED", text, Remedy.AGAIN)
    tally = Tally.of(plan.outcomes)
    if refusal := tally.refusal(plan.tolerance, outcome=ROWS_REMAIN):
        raise refusal
    if plan.writes_dead_letter_file:
        rows = tuple(part for outcome in plan.outcomes for part in outcome.dead_rows)
        yield WriteDeadLetters(step=Step.WRITE_DEAD_LETTERS, rows=rows)
    counts = BatchCounts(
        rows_written=plan.row_count - tally.rejected_count - tally.task_dropped.total(),
        rejected=dict(tally.task_found),
        dropped=dict(tally.task_dropped),
        byte_count=sum(outcome.sent_bytes for outcome in plan.outcomes),
        push_ms=max((outcome.sent_ms for outcome in plan.outcomes), default=0),
    )
    if plan.has_checkpoint:
        remembered = Remembered(
            batch_id=plan.batch_id, phase="written", digest=plan.digest, noted_ms=plan.wall_ms, counts=counts, is_without_marker=True
        )
        totals = (state.totals or BatchCounts()) + counts
        # Partitions of the previous transaction are not looked up in a topic with another id.
        left = replace(state.with_newest(remembered), totals=totals, written_to=state.still_existing(plan.topic_ids))
        noted = left.with_topics(plan.topics_used(), plan.topic_ids, plan.partition_counts)
        yield WriteState(step=Step.NOTE_DONE, state=noted)
    return CommitResult(outcome="written" if plan.row_count else "empty", counts=counts)


def _end_open_transaction(plan: CommitPlan, state: CheckpointState) -> Generator[Operation, Reply, None]:
    """Aborts the transaction that a driver in `exactly-once` left open, after a change of the guarantee.

    Otherwise readers of committed records would wait behind it until it times out. A failure is ignored: then they do wait. A committed
    transaction is completed in all its partitions first. If that fails, the coordinator is left alone, so that it keeps the outcome.
    """
    newest = state.remembered
    if state.transactional_id is not None and not (newest is not None and newest.is_without_marker):
        timeout_ms = min(TRANSACTION_TIMEOUT_MIN_MS, plan.target.transaction_timeout_max_ms)
        with suppress(Refusal):
            topic, _, number = ("" if newest is None else newest.marker).rpartition("-")  # Where the marker may be pending.
            group_id, tp = (plan.group_id, TopicPartition(topic, int(number))) if topic else (None, plan.marker_partition)
            left = replace(plan, transactional_id=state.transactional_id, group_id=group_id, marker_partition=tp)
            is_pending = yield from requests.is_marker_pending(Step.READ_MARKER, left)
            yield from complete_previous_transaction(left, state.still_existing(plan.topic_ids), is_pending=is_pending)
            yield from requests.abort(Step.ABORT, left, timeout_ms, NO_PRODUCER)
