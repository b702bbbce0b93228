"""The commit protocol: writes one micro-batch in one Kafka transaction. `commit_batch` contains all of it (decisions 36 to 40).

No I/O, no clock, no PySpark: a generator that yields operations (`operations.py`) and receives their results. `sink/commit_shell.py` drives
it in a Spark worker; tests and the simulation drive it directly, and can interrupt it at any step.

Each row is written exactly once, wherever the commit is interrupted:
- Rows, dead letters and the marker become visible together, with one EndTxn.
- InitProducerId fences every earlier writer and waits for the end of its transaction. Only then is the marker read, as a stable offset.
  If the marker shows that the batch is in Kafka, nothing is written.
- A committed transaction that is still open in a partition is committed there before InitProducerId (`complete_previous.py`). Open
  transactions of an earlier attempt are aborted before anything is written to their partitions (`hanging_transactions.py`).
- EndTxn without a response is retried, never followed by an abort. If all attempts fail, the next run reads the marker.
- The Parquet file of dead letters is hidden, and belongs to its writer, until the batch is committed. A run that finds the marker renames
  the hidden file of the writer that the marker names; the file may have been renamed already.
- Until EndTxn, everything can be discarded: the staging is complete, and an abort is InitProducerId with our own id and epoch, which never
  fences another writer.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from chaffinch.errors import codes
from chaffinch.errors.codes import Group
from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.spark.commit import requests
from chaffinch.spark.commit.complete_previous import complete_previous_transaction, marker_outcome_unknown
from chaffinch.spark.commit.hanging_transactions import Search
from chaffinch.spark.commit.marker import CheckpointState, Marker, Phase, Remembered
from chaffinch.spark.commit.messages import STAGING_LOST, BatchCounts, Rejection, StagedBatch, StagedBytes
from chaffinch.spark.commit.operations import (
    CallHandler,
    DeadLetters,
    HangingTransaction,
    MakeDeadLetters,
    NameDeadLetters,
    Operation,
    ReadState,
    Reply,
    Step,
    WriteDeadLetters,
    WriteState,
)
from chaffinch.spark.commit.plan import Commit, CommitPlan, CommitResult
from chaffinch.spark.commit.push import Fenced, Push, Pushed, RestartTransaction
from chaffinch.spark.commit.timeout import timeout_refused, transaction_timeout_ms
from chaffinch.spark.commit.tolerance import Tally
from chaffinch.spark.commit.verdict import Verdict, check_not_lost, judge
from chaffinch.spark.refusals import Refusal, Remedy
from chaffinch.spark.snapshot import changed_topic, recreated_topic

ATTEMPTS_MAX = 3
"""How many times one commit pushes the batch if its transaction must be restarted; after that the query fails and may be restarted."""


def commit_batch(plan: CommitPlan) -> Commit:
    """Commits one batch. Returns if all of it is in Kafka, raises Refusal if it is not or if that is unknown.

    After a Refusal no transaction of ours is open, as far as the coordinator could be reached.
    """
    state = yield from _read_state(plan)
    marker, is_outcome_known = yield from _complete_previous(plan, state)
    yield from _check_marker_not_deleted(plan, marker, state)
    if judge(plan, marker, state) is Verdict.SKIP:
        return (yield from _skipped(plan, marker))

    tally = _check_outcomes(plan)
    if _is_empty(plan):
        if plan.writes_dead_letter_file:
            # Only this writer's own file, from a failed attempt: without fencing, other writers may be about to commit theirs.
            yield WriteDeadLetters(step=Step.WRITE_DEAD_LETTERS, rows=(), writer_id=plan.writer_id)
        yield from _write_state(plan, Step.NOTE_DONE, "empty", state)
        return CommitResult(outcome="empty")

    timeout_ms = transaction_timeout_ms(plan)
    if plan.has_checkpoint and state.transactional_id is None:
        yield WriteState(step=Step.FIX_TRANSACTIONAL_ID, state=replace(state, transactional_id=plan.transactional_id))
    identity, steady_ms = yield from _fence(plan, timeout_ms)
    writer = _Writer(
        plan=plan, tally=tally, marker=marker, is_outcome_known=is_outcome_known, identity=identity, first=identity, began_ms=steady_ms,
        timeout_ms=timeout_ms, state=state,
    )  # fmt: skip
    try:
        writer.marker = yield from writer.read_marker_again()
        if judge(plan, writer.marker, state) is Verdict.SKIP:
            return (yield from _skipped(plan, writer.marker))
        check_not_lost(plan, writer.marker, state)
        result = yield from writer.write()
    except Fenced as fenced:
        yield from _after_fencing(plan, writer.marker, fenced, may_be_committed=writer.may_be_committed)
        result = CommitResult(outcome="written", counts=_counts(plan, tally, writer.pushed))
    except (Refusal, RestartTransaction) as failure:
        if not writer.may_be_committed:
            yield from requests.abort(Step.ABORT, plan, writer.timeout_ms, writer.identity)
        if isinstance(failure, RestartTransaction):
            text = f"{failure.text}; the transaction is aborted, no rows of the batch are visible"
            raise Refusal(Group.TRANSACTION_ABORTABLE, failure.name, text, Remedy.AGAIN) from None
        if failure.name == STAGING_LOST:
            yield from _after_staging_loss(plan, writer.marker)
        raise
    yield from _name_dead_letters(plan, plan.writer_id if plan.retains_dead_letters or writer._dead_rows() else None)
    yield from _write_state(plan, Step.NOTE_DONE, "written", writer.state, result.counts)
    return result


def _is_empty(plan: CommitPlan) -> bool:
    """Whether there are neither rows nor notes, nor a need for a marker: without a known checkpoint only markers record a stream's batches.
    A frame without rows does not use up its token: it contains nothing to write once.
    """
    has_only_marker = plan.is_stream and plan.group_id is not None and not plan.has_checkpoint
    return plan.row_count == 0 and not plan.notes and not has_only_marker


def _skipped(plan: CommitPlan, marker: Marker | None) -> Commit:
    """The batch is in Kafka. Its writer may have died before it renamed its dead letter file."""
    if marker is not None and marker.batch_id == plan.batch_id:
        yield from _name_dead_letters(plan, marker.writer_id)
    return CommitResult(outcome="skipped")


def _name_dead_letters(plan: CommitPlan, writer_id: str | None) -> Generator[Operation, Reply, None]:
    """Renames the hidden file of the writer that committed the batch to the name of the batch's file.

    Never before the commit is known: a fenced driver learns of the fencing from Kafka only, and a rename sends no request to Kafka.
    """
    if plan.writes_dead_letter_file and plan.group_id is not None:
        yield NameDeadLetters(step=Step.NAME_DEAD_LETTERS, writer_id=writer_id)


def _counts(plan: CommitPlan, tally: Tally, pushed: Pushed, push_ms: int = 0, commit_ms: int = 0) -> BatchCounts:
    dropped = tally.task_dropped + tally.broker_dropped
    return BatchCounts(
        rows_written=plan.row_count - tally.rejected_count - dropped.total(),
        rejected=dict(tally.task_found + tally.broker_found),
        dropped=dict(dropped),
        byte_count=pushed.byte_count,
        staged_bytes=pushed.staged_bytes,
        staging_files=len(pushed.files),
        push_ms=push_ms,
        commit_ms=commit_ms,
    )


@dataclass(slots=True, kw_only=True)
class _Writer:
    """The part between InitProducerId and EndTxn, and the state that its attempts share."""

    plan: CommitPlan
    tally: Tally
    marker: Marker | None
    is_outcome_known: bool
    """The coordinator reported the outcome of the previous transaction, so no committed one is open."""
    identity: ProducerIdentity
    began_ms: int
    timeout_ms: int
    first: ProducerIdentity
    """The first identity of this commit: lower epochs belong to other runs."""
    state: CheckpointState
    """State of the checkpoint at the start of the commit; with the partitions of this transaction from NOTE_ENDING on."""
    search: Search = field(default_factory=Search)
    pushed: Pushed = field(default_factory=Pushed)
    """Amounts that the newest attempt stored."""
    may_be_committed: bool = False
    """EndTxn was sent: from here on there is no abort."""

    def read_marker_again(self) -> Generator[Operation, Reply, Marker | None]:
        """Reads the marker after every earlier transaction has ended.

        A marker that is still pending belongs to a hanging transaction (`hanging_transactions.py`). It is aborted, unless it may be
        committed: raises Refusal if its outcome is unknown.
        """
        plan = self.plan
        try:
            return (yield from requests.read_marker(Step.READ_MARKER_AGAIN, plan, waits=not (self.is_outcome_known and plan.has_own_id)))
        except Refusal as refusal:
            if refusal.name != codes.UNSTABLE_OFFSET_COMMIT.name:
                raise
            raise marker_outcome_unknown(plan, self.identity.producer_id) from None
        except RestartTransaction:
            pass
        yield from requests.add_offsets(Step.FIND_HANGING_TRANSACTIONS, plan, self.identity)
        yield from self._restart_transaction()
        return (yield from requests.read_marker(Step.READ_MARKER_AGAIN, plan))

    def _restart_transaction(self) -> Generator[Operation, Reply, None]:
        self.identity, self.began_ms = yield from requests.restart_transaction(Step.ABORT, self.plan, self.timeout_ms, self.identity)

    def write(self) -> Commit:
        """Pushes and commits; restarts the transaction from the staging a limited number of times."""
        for _ in range(1, ATTEMPTS_MAX):
            with suppress(RestartTransaction):
                return (yield from self._attempt(self.began_ms))
            yield from self._restart_transaction()
        return (yield from self._attempt(self.began_ms))

    def _attempt(self, began_ms: int) -> Commit:
        plan, identity = self.plan, self.identity
        self.search = Search()  # The abort markers of the previous attempt may be lost as well.
        self.tally.reset_broker_found()
        joined: set[TopicPartition] = set()
        yield from self._add_partitions(joined, (*plan.batches(), *plan.dead_batches()))
        began_ms = max(began_ms, self.search.last_response_ms)  # The coordinator's timeout starts with the first partition.

        push = Push(identity, began_ms + self.timeout_ms, f"transaction.timeout.ms={self.timeout_ms}", plan.retry_policy.wait_ms)
        self.pushed = push.pushed
        yield from push.send(Step.PUSH, plan.batches(), self._handle_culprits)
        dead_letters = [*plan.dead_batches(), *self.tally.dead_batches]
        yield from self._add_partitions(joined, dead_letters)
        yield from push.send(Step.PUSH_DEAD_LETTERS, dead_letters, self._raise_dead_letters_refused)
        if plan.writes_dead_letter_file:
            hidden = None if plan.group_id is None else plan.writer_id  # Without a marker the committed writer's file would be unknown.
            yield WriteDeadLetters(step=Step.WRITE_DEAD_LETTERS, rows=self._dead_rows(), writer_id=hidden)

        if plan.group_id is not None:
            dropped = {} if plan.is_stream else dict(self.tally.task_dropped + self.tally.broker_dropped)
            marker = Marker(batch_id=plan.batch_id, writer_id=plan.writer_id, digest=plan.digest, dropped=dropped)
            yield from requests.add_offsets(Step.ADD_OFFSETS, plan, identity)
            yield from requests.commit_marker(Step.COMMIT_MARKER, plan, identity, marker)
        topics = {where.topic for where in joined}
        noted = self.state.with_topics(topics, plan.topic_ids, plan.partition_counts, marker_topic=plan.marker_partition.topic)
        self.state = replace(noted, written_to=tuple(sorted(joined)))
        yield from _write_state(plan, Step.NOTE_ENDING, "ending", self.state)
        ended_ms = pushed_ms = max(began_ms, push.last_response_ms)
        if joined or plan.group_id is not None:
            self.may_be_committed = True
            ended_ms = yield from requests.end_transaction(Step.END_TRANSACTION, plan, identity)
        return CommitResult(outcome="written", counts=_counts(plan, self.tally, self.pushed, pushed_ms - began_ms, ended_ms - pushed_ms))

    def _add_partitions(
        self, joined: set[TopicPartition], batches: tuple[StagedBatch, ...] | list[StagedBatch]
    ) -> Generator[Operation, Reply, None]:
        """Adds the batches' partitions to the transaction, each once; together with hanging transactions there, which are aborted."""
        new = {batch.topic_partition for batch in batches} - joined
        if not new:
            return
        plan, identity = self.plan, self.identity
        found = yield from self.search.find(identity.producer_id, new, plan.topic_partitions(), plan.retry_policy)
        self._check_outcomes_known(found)
        hanging = {transaction.tp for transaction in found}
        joined |= new
        yield from requests.add_partitions(Step.ADD_PARTITIONS, plan, identity, new | hanging)
        if hanging:
            raise RestartTransaction(
                "TRANSACTION_LEFT_OPEN", f"an earlier transaction is still open in {', '.join(map(str, sorted(hanging)))}"
            )

    def _check_outcomes_known(self, found: set[HangingTransaction]) -> None:
        """An open transaction of another run may be committed, and must not be aborted without its outcome. Raises Refusal."""
        first, identity = self.first, self.identity
        older = sorted(
            transaction.tp for transaction in found if identity.producer_id == first.producer_id and transaction.epoch < first.epoch
        )
        if older and not self.is_outcome_known:
            tps = ", ".join(map(str, older))
            raise Refusal(
                Group.INVALID_CONFIGURATION, "TRANSACTION_END_UNKNOWN",
                f"an earlier transaction of {self.plan.transactional_id} is still open in {tps}, and its coordinator does not report "
                "whether it is committed, which requires Apache Kafka 3.0 and Describe on the id; this batch is not written; before the "
                "next start, which may treat it as aborted, read the open records with read_uncommitted, decide which to write again, "
                f"and end it with chaffinch transactions abort, of producer {first.producer_id} only",
            )  # fmt: skip

    def _handle_culprits(self, batch: StagedBatch, culprits: tuple[Rejection, ...]) -> Generator[Operation, Reply, None]:
        """Handles records that the broker blamed: dead letters if that is tolerated, otherwise the batch fails."""
        if self.plan.has_handler:
            reply = yield CallHandler(step=Step.PUSH, batch=batch, culprits=culprits)
            dropped: frozenset[int] = reply.value
            self.tally.drop(culprit for culprit in culprits if culprit.row in dropped)
            culprits = tuple(culprit for culprit in culprits if culprit.row not in dropped)
            if not culprits:
                return
        self.tally.add_broker_found(culprits)
        if refusal := self.tally.refusal(self.plan.tolerance):
            raise refusal
        reply = yield MakeDeadLetters(step=Step.PUSH, batch=batch, culprits=culprits)
        made: DeadLetters = reply.value
        self.tally.add_dead_letters(made)

    def _raise_dead_letters_refused(self, batch: StagedBatch, culprits: tuple[Rejection, ...]) -> Generator[Operation, Reply, None]:
        first = culprits[0]
        what = "notes of this replay" if batch in self.plan.notes else "dead letters"
        raise Refusal(
            Group.INVALID_CONFIGURATION, first.code.name,
            f"the dead letter topic refuses {len(culprits)} of {batch.record_count} {what} for {batch.topic_partition}: "
            f"{first.message}; correct the topic's configuration; the transaction is aborted",
        )  # fmt: skip
        yield

    def _dead_rows(self) -> tuple[StagedBytes, ...]:
        """Rows for the Parquet file; those that the broker found come from the last attempt."""
        return (*(rows for outcome in self.plan.outcomes for rows in outcome.dead_rows), *self.tally.dead_rows)


def _check_outcomes(plan: CommitPlan) -> Tally:
    """Checks before any write to Kafka: failures of tasks, changed topics, too many bad rows. Returns the tally."""
    for outcome in plan.outcomes:
        if outcome.failure is not None:
            failure = outcome.failure
            raise Refusal(failure.group, failure.name, f"task {outcome.context.task}: {failure.text}", failure.remedy)
    if changed := changed_topic(plan.snapshots()):
        raise Refusal(
            Group.TRANSACTION_ABORTABLE, "SNAPSHOT_CHANGED",
            f"topic {changed[0].topic} changed while the batch was staged, from {changed[0]} to {changed[1]}; "
            "nothing was written", Remedy.AGAIN,
        )  # fmt: skip
    if recreated := recreated_topic(plan.snapshots(), plan.target):
        raise Refusal(
            Group.TRANSACTION_ABORTABLE, "SNAPSHOT_CHANGED",
            f"topic {recreated} was deleted and created again while the batch was staged; nothing was written", Remedy.AGAIN,
        )  # fmt: skip
    tally = Tally.of(plan.outcomes)
    if refusal := tally.refusal(plan.tolerance):
        raise refusal
    return tally


def _check_marker_not_deleted(plan: CommitPlan, marker: Marker | None, state: CheckpointState) -> Generator[Operation, Reply, None]:
    """Refuses to write if neither marker nor checkpoint has a record, but the coordinator reports the id's last transaction as committed.

    The marker was then deleted with its topic. Allowed if all rows of the batch go to that topic: their earlier copies are deleted, too.
    """
    topic = plan.marker_partition.topic
    elsewhere = sorted({where.topic for where in plan.partitions()} - {topic})
    is_first = marker is None and state.remembered is None and (plan.batch_id == 0 or not plan.is_stream)
    if not elsewhere or not is_first or plan.writes_without_marker or plan.group_id is None or plan.transactional_id != plan.group_id:
        return
    last = yield from requests.last_transaction(Step.READ_MARKER, plan)
    if last is None or last.transaction_state != "CompleteCommit":
        return
    if (yield from requests.has_offsets(Step.READ_MARKER, plan)):
        return  # It may have been a write to another topic, with its marker there.
    advice = "set onMissingMarker=write for one start to write it" if plan.is_stream else "write it with another idempotencyToken"
    raise Refusal(
        Group.INVALID_CONFIGURATION, "MARKER_MISSING",
        f"group {plan.group_id} has no marker for batch {plan.batch_id}, but the last transaction of {plan.transactional_id} is committed: "
        f"its marker has since been lost, for example because topic {topic!r} was deleted and created again, and its rows may be in "
        f"{', '.join(elsewhere)}; check the topics; if the rows are not there, {advice}",
    )  # fmt: skip


def _read_state(plan: CommitPlan) -> Generator[Operation, Reply, CheckpointState]:
    """The checkpoint's state. Refuses a transactional id that differs from the one fixed there (decision 38)."""
    if not plan.has_checkpoint:
        return CheckpointState()
    reply = yield ReadState(step=Step.READ_STATE)
    state: CheckpointState = reply.value
    if state.transactional_id not in (None, plan.transactional_id):
        raise Refusal(
            Group.INVALID_CONFIGURATION, "TRANSACTIONAL_ID_CHANGED",
            f"kafka.transactional.id is {plan.transactional_id}, this checkpoint was started with {state.transactional_id}: "
            "a different id would not fence a writer with the old one; set it back, or start with a new checkpoint",
        )  # fmt: skip
    return state


def _write_state(
    plan: CommitPlan, step: Step, phase: Phase, before: CheckpointState, counts: BatchCounts | None = None
) -> Generator[Operation, Reply, None]:
    """Writes the checkpoint's state. `before`: the previous state; `counts` of the batch are added to its totals.

    The record of a written batch is for people, and for the case that Kafka loses the batch: the marker decides, so a failed write does
    not fail the batch.
    """
    if plan.has_checkpoint:
        remembered = Remembered(
            batch_id=plan.batch_id, phase=phase, digest=plan.digest, noted_ms=plan.wall_ms, marker=str(plan.marker_partition), counts=counts
        )
        totals = before.totals if counts is None else (before.totals or BatchCounts()) + counts
        noted = replace(before.with_newest(remembered), transactional_id=plan.transactional_id, totals=totals)
        yield WriteState(step=step, state=noted, may_fail=phase == "written")


def _complete_previous(plan: CommitPlan, state: CheckpointState) -> Generator[Operation, Reply, tuple[Marker | None, bool]]:
    """The marker, after the previous committed transaction is visible everywhere; and whether that transaction's outcome is known.

    A batch that writes nothing waits for no partition of the previous one: each may be deleted, or without a leader for hours. But a batch
    write that is in Kafka already does wait: it is a repetition that makes the rows visible, and no other batch follows.
    """
    try:
        marker, is_pending = (yield from requests.read_marker(Step.READ_MARKER, plan, waits=False)), False
    except RestartTransaction:
        marker, is_pending = None, True
    waits = is_pending or not (_is_empty(plan) or (plan.is_stream and judge(plan, marker, state) is Verdict.SKIP))
    is_outcome_known = yield from complete_previous_transaction(
        plan, state.still_existing(plan.topic_ids), is_pending=is_pending, waits=waits
    )
    if is_pending:  # Or the marker belongs to an attempt that is in progress.
        marker = yield from requests.read_marker(Step.READ_MARKER, plan, is_stable=False)
    return marker, is_outcome_known


def _fence(plan: CommitPlan, timeout_ms: int) -> Generator[Operation, Reply, tuple[ProducerIdentity, int]]:
    """Takes a new epoch, which ends every earlier transaction. If two writers do so at the same time, Kafka refuses one of them."""
    try:
        return (yield from requests.init_producer(Step.INIT_PRODUCER, plan, timeout_ms))
    except Fenced as fenced:
        group, name, text = Group.APPLICATION_RECOVERABLE, fenced.code.name, fenced.text
    except RestartTransaction as failure:
        group, name, text = Group.TRANSACTION_ABORTABLE, failure.name, failure.text
    except Refusal as refusal:
        if refusal.name != codes.INVALID_TRANSACTION_TIMEOUT.name:
            raise
        raise timeout_refused(timeout_ms, plan.target, is_given=plan.transaction_timeout_ms is not None) from None
    raise Refusal(group, name, f"{text}; batch {plan.batch_id} was not started, no rows of the batch are visible", Remedy.AGAIN)


def _after_fencing(
    plan: CommitPlan, marker_before: Marker | None, fenced: Fenced, *, may_be_committed: bool
) -> Generator[Operation, Reply, None]:
    """Returns if the marker shows that this run committed the batch; otherwise raises the matching Refusal (decision 38)."""
    if plan.group_id is None and may_be_committed:
        raise Refusal(
            Group.APPLICATION_RECOVERABLE, fenced.code.name,
            f"transactional id {plan.transactional_id} was fenced before it was known how its transaction ended: {fenced.text}; it is "
            "unknown whether the rows are written", Remedy.LOOK,
        )  # fmt: skip
    try:
        marker = yield from requests.read_marker(Step.READ_MARKER_AFTER_FENCING, plan)
    except Refusal:
        if may_be_committed:
            raise
        marker = marker_before  # The other writer is unknown; but nothing of this batch is visible.
    if marker is not None and (marker.batch_id, marker.writer_id) == (plan.batch_id, plan.writer_id):
        return
    if marker != marker_before:
        raise _another_writer(plan, marker)
    raise Refusal(
        Group.APPLICATION_RECOVERABLE, fenced.code.name,
        f"transactional id {plan.transactional_id} was fenced while batch {plan.batch_id} was written: {fenced.text}; no rows of the "
        "batch are visible; the transaction took longer than its timeout, or another writer started with this id; two must not share it",
        Remedy.AGAIN,
    )  # fmt: skip


def _after_staging_loss(plan: CommitPlan, marker_before: Marker | None) -> Generator[Operation, Reply, None]:
    """Staged files are deleted when their batch, or a later one, is in Kafka: if the marker changed, raises the Refusal for that."""
    try:
        marker = yield from requests.read_marker(Step.READ_MARKER_AFTER_FENCING, plan)
    except Refusal:
        return  # Only the loss is known.
    if marker != marker_before:
        raise _another_writer(plan, marker)


def _another_writer(plan: CommitPlan, marker: Marker | None) -> Refusal:
    written = "nothing" if marker is None else f"batch {marker.batch_id} by run {marker.writer_id}"
    text = (
        f"another writer took over transactional id {plan.transactional_id} (the marker now shows {written}, this is batch {plan.batch_id} "
    )
    text += f"of run {plan.writer_id}): "
    if plan.is_stream:
        text += "two queries run from one checkpoint: stop one of them"
    else:
        text += "two writes had one idempotencyToken at the same time; no rows of this one are visible; do not run it again"
    return Refusal(Group.APPLICATION_RECOVERABLE, "ANOTHER_WRITER", text)
