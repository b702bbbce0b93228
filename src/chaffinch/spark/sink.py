"""The sink as Spark sees it: writers for streams and for batch writes, of Arrow record batches only.

Spark runs these in Python processes of their own (spark-behaviour 1.1): the planner builds a writer and pickles it; tasks
unpickle it and `write`; for a stream yet another process builds a new writer from the options and commits. So nothing is
kept in a writer between these, and what the committer must know of the query travels in the tasks' messages.

`write` never raises a Kafka error and `abort` never raises anything (decision 43); what is wrong is raised when a writer is
built, before any task, or by `commit`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from chaffinch.errors import ApiException, KafkaException, codes
from chaffinch.errors.codes import Group
from chaffinch.identifiers import TopicPartition
from chaffinch.spark.commit_messages import Failure, TaskContextFacts, TaskOutcome
from chaffinch.spark.commit_protocol import CommitPlan, CommitResult, commit_batch
from chaffinch.spark.folders import Folder, name_of
from chaffinch.spark.refusals import Refusal, nameable
from chaffinch.spark.sink_options import SinkOptions
from chaffinch.spark.snapshot import TargetSnapshot, TopicSnapshot
from chaffinch.spark.staging import StagedWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from chaffinch.spark.commit_shell import ShellPlan

_log = logging.getLogger(__name__)

PUSH_BYTES_PER_S_ASSUMED = 20e6
"""Before anything was measured: slow enough for a far-away cluster, so that time-outs err on the long side."""
_PUSH_MEASURED_BYTES_MIN = 32 << 20
"""Of smaller batches the round trips take the time: their rate would forbid a large batch that fits well."""
MISSING_STAGING = (
    "a task has more than 1 MiB for Kafka and neither stagingLocation nor checkpointLocation is set as an option of the query: "
    "set stagingLocation to a folder that driver and executors share"
)
# What earlier batches of this process reached, by bootstrap servers: a hint for time-outs, never truth.
_push_bytes_per_s: dict[tuple[str, ...], float] = {}


@dataclass(frozen=True)
class CommitMessage(WriterCommitMessage):
    """What PySpark carries from a task to the committer."""

    outcome: TaskOutcome


class _Writer:
    """What both writers share. `query`: the id of a batch write; a stream's is known to tasks only."""

    def __init__(self, options: SinkOptions, snapshot: TargetSnapshot, write_id: str | None) -> None:
        self._options = options
        self._snapshot = snapshot
        self._write_id = write_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        """Stages the rows of one task; every failure travels in the message, and the input is always drained."""
        facts = task_facts()
        try:
            outcome = self._stage(facts, iterator)
        except Refusal as refusal:
            outcome = _failed(facts, Failure(group=refusal.group, name=refusal.name, text=refusal.text))
        except KafkaException as error:
            outcome = _failed(facts, _failure_of(error))
        if outcome.failure is not None:
            for _ in iterator:
                pass
        return CommitMessage(outcome)

    def _stage(self, facts: TaskContextFacts, iterator: Iterable[pa.RecordBatch]) -> TaskOutcome:
        from chaffinch.records.faults import RecordsError
        from chaffinch.spark.dead_letters import Origin
        from chaffinch.spark.target import client_for, find_topic, wall_ms
        from chaffinch.spark.task import TaskPlan, TaskStager

        options = self._options

        def snapshot_of(topic: str) -> TopicSnapshot | None:
            return self._snapshot.topic(topic) or find_topic(client_for(options.client), topic, options.block_max_ms)

        plan = TaskPlan(
            context=facts,
            topic=options.topic,
            compression_type=options.compression_type,
            compression_level=options.compression_level,
            batch_bytes=options.batch_bytes,
            origin=Origin(query=self._query(facts), batch_id=facts.batch_id or 0, task=facts.task),
            dead_letter_target=self._snapshot.topic(options.dead_letter_topic) if options.dead_letter_topic else None,
            keeps_dead_rows=options.dead_letter_path is not None,
            snapshot_of=snapshot_of,
            now_ms=wall_ms(),
        )
        folder = self._staging(facts)
        writer = StagedWriter(None if folder is None else folder, f"task-{facts.task}", missing_folder=MISSING_STAGING)
        try:
            return TaskStager(plan, writer).run(iterator)
        except BaseException as error:
            writer.discard()
            if isinstance(error, RecordsError):
                return _failed(facts, Failure(group=Group.INVALID_CONFIGURATION, name=codes.INVALID_RECORD.name, text=str(error)))
            raise

    def _query(self, facts: TaskContextFacts) -> str:
        return self._write_id or facts.query_id or "unknown"

    def _staging(self, facts: TaskContextFacts) -> Folder | None:
        """Where this batch is staged: what the option says, the checkpoint, or in local mode the temporary folder."""
        options = self._options
        if options.staging_location is not None:
            base = Folder(options.staging_location, "stagingLocation")
        elif options.checkpoint_location is not None:
            base = Folder(options.checkpoint_location, "checkpointLocation").below("chaffinch", "staging")
        elif (facts.master or "").startswith("local"):
            base = Folder(os.path.join(tempfile.gettempdir(), f"chaffinch-staging-{os.getuid()}"), "stagingLocation (temporary folder)")
        else:
            return None
        return base.below(name_of(self._query(facts)), str(facts.batch_id or 0))

    def commit_outcomes(self, outcomes: tuple[TaskOutcome, ...], batch_id: int) -> CommitResult:
        """Runs the commit protocol for one batch. Raises Refusal; afterwards connections begin anew."""
        from chaffinch.spark.commit_shell import CommitShell
        from chaffinch.spark.target import client_for, forget_client

        facts = outcomes[0].context if outcomes else TaskContextFacts(task=-1)
        plan = self._plan(outcomes, facts, batch_id)
        try:
            client = client_for(self._options.client)
            result = CommitShell(self._shell_plan(plan, facts), client).run(commit_batch(plan))
        except BaseException:
            forget_client(self._options.client)
            raise
        self._learn(result)
        _log.info(
            "batch %d %s: %d rows, %d of them rejected, %d bytes, %d ms",
            batch_id, result.outcome, result.row_count, result.rejected_count, result.byte_count, result.push_ms,
        )  # fmt: skip
        self.clean_up(outcomes, batch_id)
        return result

    def _plan(self, outcomes: tuple[TaskOutcome, ...], facts: TaskContextFacts, batch_id: int) -> CommitPlan:
        from chaffinch.spark.target import wall_ms

        options = self._options
        query = self._query(facts)
        is_stream = self._write_id is None
        if is_stream and facts.query_id is None:
            # Its id names the marker's group: a made-up one would let two queries take each other's batches for written.
            text = "Spark told the tasks no query id (local property sql.streaming.queryId); this version of Spark is not supported"
            raise Refusal(Group.INVALID_CONFIGURATION, "QUERY_UNKNOWN", text)
        has_marker = is_stream or options.idempotency_token is not None
        checkpoint = self._checkpoint(facts)
        return CommitPlan(
            batch_id=batch_id,
            wall_ms=wall_ms(),
            writer_id=facts.run_id or secrets.token_hex(8),
            outcomes=outcomes,
            target=self._snapshot,
            transactional_id=options.transactional_id or f"chaffinch-{query}",
            group_id=f"chaffinch-{query}" if has_marker else None,
            marker_partition=TopicPartition(options.marker_topic, 0),
            is_stream=is_stream,
            digest=self._digest(checkpoint, batch_id),
            has_checkpoint=checkpoint is not None,
            writes_without_marker=options.writes_without_marker,
            tolerance=options.tolerance,
            writes_dead_letter_file=options.dead_letter_path is not None,
            transaction_timeout_ms=options.transaction_timeout_ms,
            push_bytes_per_s=_push_bytes_per_s.get(options.client.bootstrap_servers, PUSH_BYTES_PER_S_ASSUMED),
            block_max_ms=options.block_max_ms,
        )

    def _shell_plan(self, plan: CommitPlan, facts: TaskContextFacts) -> ShellPlan:
        from chaffinch.spark.commit_shell import ShellPlan
        from chaffinch.spark.dead_letters import Origin

        options = self._options
        checkpoint = self._checkpoint(facts) if plan.has_checkpoint else None
        return ShellPlan(
            transactional_id=plan.transactional_id,
            request_timeout_ms=options.client.connections.request_timeout_ms,
            batch_id=plan.batch_id,
            origin=Origin(query=self._query(facts), batch_id=plan.batch_id, task=-1),
            staging=self._staging(facts),
            state=None if checkpoint is None else checkpoint.below("chaffinch"),
            dead_letter_folder=Folder(options.dead_letter_path, "errors.dead.letter.path") if options.dead_letter_path else None,
            dead_letter_target=self._snapshot.topic(options.dead_letter_topic) if options.dead_letter_topic else None,
        )

    def _checkpoint(self, facts: TaskContextFacts) -> Folder | None:
        """The query's checkpoint; None where its location is not an option of the query, or the sink cannot see it.

        A location without a scheme is Hadoop's default file system, which need not be the local one: so the folder must hold what
        Spark has written into it before any batch, the query's id.
        """
        location = self._options.checkpoint_location
        if location is None:
            return None
        folder = Folder(location, "checkpointLocation")
        try:
            reason = _not_that_of(facts.query_id, folder.read("metadata"))
        except Refusal as refusal:
            reason = refusal.text
        if reason is not None:
            _log.warning("the checkpoint is not used to recognise batches: %s", reason)
            return None
        return folder

    @staticmethod
    def _digest(checkpoint: Folder | None, batch_id: int) -> str:
        """Of the checkpoint's own record of the batch: which source offsets it covers. Spark writes it once, before the batch runs."""
        found = checkpoint.below("offsets").read(str(batch_id)) if checkpoint is not None else None
        return "" if found is None else hashlib.sha256(found).hexdigest()

    def _learn(self, result: CommitResult) -> None:
        if result.outcome == "written" and result.byte_count >= _PUSH_MEASURED_BYTES_MIN and result.push_ms > 0:
            servers = self._options.client.bootstrap_servers
            measured = 1000 * result.byte_count / result.push_ms
            # From the assumed rate on, so that one batch that met an outage does not forbid the next.
            before = _push_bytes_per_s.get(servers, PUSH_BYTES_PER_S_ASSUMED)
            _push_bytes_per_s[servers] = (before + measured) / 2

    def clean_up(self, outcomes: Iterable[TaskOutcome | None], batch_id: int) -> None:
        """Removes what this batch, and older ones whose committer died, have staged in files. Never raises: it is only space."""
        found = [outcome for outcome in outcomes if outcome is not None and outcome.files()]
        if not found:
            return
        with suppress(Refusal, OSError, ValueError):
            folder = self._staging(found[0].context)
            assert folder is not None, "files were staged somewhere"
            folder.remove_all()
            query_folder = folder.parent()
            for name in query_folder.names():
                if name.isdigit() and int(name) < batch_id:
                    query_folder.below(name).remove_all()
            if not query_folder.names():
                query_folder.remove_all()


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes micro-batches, each in one Kafka transaction."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.commit_outcomes(_outcomes(messages), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.clean_up([message.outcome for message in messages if isinstance(message, CommitMessage)], batchId)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Writes one DataFrame in one Kafka transaction; with an idempotencyToken at most once per token."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.commit_outcomes(_outcomes(messages), 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.clean_up([message.outcome for message in messages if isinstance(message, CommitMessage)], 0)


def stream_writer(options: SinkOptions) -> StreamWriter:
    """A writer for one micro-batch, with a fresh snapshot of the target. Raises Refusal for what the broker shows to be wrong."""
    return StreamWriter(options, _planned(options), None)


def batch_writer(options: SinkOptions) -> BatchWriter:
    """A writer for one batch write."""
    return BatchWriter(options, _planned(options), options.idempotency_token or f"write-{secrets.token_hex(8)}")


def _planned(options: SinkOptions) -> TargetSnapshot:
    """What can be told before any task runs: the folders can be written, the topics exist and can take what will be sent."""
    from chaffinch.spark.target import client_for, forget_client, take_snapshot

    for location, option in ((options.staging_location, "stagingLocation"), (options.dead_letter_path, "errors.dead.letter.path")):
        _probe_once(location, option)
    topics = {options.marker_topic: "topic" if options.topic == options.marker_topic else "markerTopic"}
    if options.topic is not None:
        topics[options.topic] = "topic"
    if options.dead_letter_topic is not None:
        topics[options.dead_letter_topic] = "errors.dead.letter.queue.topic.name"
    try:
        snapshot = take_snapshot(client_for(options.client), list(topics.items()), options.block_max_ms)
    except BaseException:
        forget_client(options.client)
        raise
    dead_letters = snapshot.topic(options.dead_letter_topic) if options.dead_letter_topic else None
    if dead_letters is not None and dead_letters.is_compacted:
        text = f"errors.dead.letter.queue.topic.name={dead_letters.topic} is compacted: it would refuse rows without a key and drop others"
        raise Refusal(Group.INVALID_CONFIGURATION, "INVALID_CONFIG", f"{text}; set its cleanup.policy to delete")
    return snapshot


_probed: set[str] = set()


def _probe_once(location: str | None, option: str) -> None:
    """A folder is tried out once per process: later failures show when it is used."""
    if location is not None and location not in _probed:
        Folder(location, option).probe()
        _probed.add(location)


def _outcomes(messages: Iterable[WriterCommitMessage | None]) -> tuple[TaskOutcome, ...]:
    found = [message.outcome for message in messages if isinstance(message, CommitMessage)]
    return tuple(sorted(found, key=lambda outcome: outcome.context.task))


def _not_that_of(query_id: str | None, metadata: bytes | None) -> str | None:
    """Why a checkpoint with this file `metadata` is not the query's; None: it is."""
    if metadata is None:
        return "checkpointLocation has no file metadata where the sink looks for it; a file system that only Hadoop knows?"
    try:
        found = json.loads(metadata)["id"]
    except (ValueError, KeyError, TypeError):
        return f"the file metadata in checkpointLocation is damaged: {metadata[:80]!r}"
    return None if found == query_id else f"checkpointLocation belongs to query {found}, this is query {query_id}"


def _failed(facts: TaskContextFacts, failure: Failure) -> TaskOutcome:
    return TaskOutcome(context=facts, failure=failure)


def _failure_of(error: KafkaException) -> Failure:
    name = error.name if isinstance(error, ApiException) else type(error).__name__
    return Failure(group=nameable(error.group), name=name, text=" ".join(str(error).split()))


def task_facts() -> TaskContextFacts:
    """What Spark tells a task about its query, through the local properties of its context."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return TaskContextFacts(task=0)
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    return TaskContextFacts(
        task=context.partitionId(),
        query_id=context.getLocalProperty("sql.streaming.queryId"),
        run_id=context.getLocalProperty("spark.jobGroup.id") if batch_id is not None else None,
        batch_id=None if batch_id is None else int(batch_id),
        master=context.getLocalProperty("spark.master"),
    )


__all__ = ["BatchWriter", "CommitMessage", "StreamWriter", "batch_writer", "stream_writer"]
