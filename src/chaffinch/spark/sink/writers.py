"""Writers of the sink for Spark: for streams and for batch writes, of Arrow record batches only.

Spark runs them in separate Python processes (spark-behaviour 1.1). The planner builds a writer and pickles it, tasks unpickle it and call
`write`. For a stream, another process builds a new writer from the options and commits. So a writer keeps no state in between: facts that
the committer needs about the query are in the tasks' messages.

`write` never raises a Kafka error and `abort` never raises anything (decision 43). Errors are raised when a writer is built, before any
task, or by `commit`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from chaffinch.errors import ConfigException, KafkaException, codes
from chaffinch.errors.codes import Group
from chaffinch.spark.commit.messages import Failure, Rejection, StagedBatch, StagedBytes, TaskOutcome
from chaffinch.spark.options import ClientOptions
from chaffinch.spark.refusals import Kind, Refusal, invalid, line_first, refusal_of, worded_for
from chaffinch.spark.sink.options import SinkOptions
from chaffinch.spark.sink.paths import SinkPaths, probe_once, write_probe_file
from chaffinch.spark.sink.planning import plan_of_task, planned_target
from chaffinch.spark.snapshot import TargetSnapshot, TopicSnapshot
from chaffinch.spark.task_facts import TaskContextFacts, facts_of, host
from chaffinch.spark.tasks.plan import TaskPlan
from chaffinch.spark.tasks.staging import StagedWriter
from chaffinch.spark.versions import EARLIER, SentToExecutors, received, version_of, versions_differ

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from chaffinch.spark.sink.committer import Committer

MESSAGE_VERSION: Final = version_of(
    SinkOptions, ClientOptions, TargetSnapshot, TopicSnapshot, TaskOutcome, StagedBatch, StagedBytes, Rejection, Failure, TaskContextFacts
)


@dataclass(frozen=True)
class CommitMessage(WriterCommitMessage):
    """The message that PySpark carries from a task to the committer. Versions without the field `version` have none."""

    outcome: TaskOutcome
    version: str = field(default_factory=lambda: MESSAGE_VERSION)


class _Writer(SentToExecutors):
    """Base of both writers. `write_id`: the id of a batch write; the id of a stream's query comes from its tasks."""

    _version = MESSAGE_VERSION

    def __init__(self, options: SinkOptions, snapshot: TargetSnapshot, write_id: str | None) -> None:
        self._options = options
        self._snapshot = snapshot
        self._write_id = write_id
        self._paths = SinkPaths(options, is_stream=write_id is None)

    @property
    def committer(self) -> Committer:
        """The committer of this writer. Planner and tasks do not need it, nor the modules that it imports."""
        from chaffinch.spark.sink.committer import Committer

        return Committer(self._options, self._snapshot, self._write_id, self._paths)

    def __reduce__(self) -> tuple[object, ...]:
        # Versions without `versions.py` have this function, too: they must be able to report that versions differ.
        return _unpickled, super().__reduce__()[1]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        """Stages the rows of one task (`TaskStager`), or sends them (`TaskSender`).

        Failures travel in the message, and the input is always drained. Only one failure is raised, a driver of a different version: it may
        not understand the message.
        """
        self.check_version(host())
        facts = task_facts()
        try:
            facts = self._options.completed_facts(facts)
            outcome = self._run_task(facts, iterator)
        except Refusal as refusal:
            outcome = _failed(facts, failure_of(refusal))
        except KafkaException as error:
            outcome = _failed(facts, failure_of(refusal_of(error)))
        if outcome.failure is not None:
            for _ in iterator:
                pass
        return CommitMessage(outcome)

    def _run_task(self, facts: TaskContextFacts, iterator: Iterable[pa.RecordBatch]) -> TaskOutcome:
        from chaffinch.records.errors import RecordsError

        query = self._options.qualified_name(facts.query(self._write_id))
        plan = task_plan(self._options, self._snapshot, facts, query)
        writer = StagedWriter(lambda: self._paths.spill(facts, query), f"task-{facts.task}")
        try:
            return self._stage_or_send(plan, writer, iterator)
        except BaseException as error:
            writer.discard()
            if isinstance(error, RecordsError):
                return _failed(facts, Failure(group=Group.INVALID_CONFIGURATION, name=codes.INVALID_RECORD.name, text=str(error)))
            raise

    def _stage_or_send(self, plan: TaskPlan, writer: StagedWriter, iterator: Iterable[pa.RecordBatch]) -> TaskOutcome:
        options = self._options
        if options.is_exactly_once:
            from chaffinch.spark.tasks.task_stager import TaskStager

            return TaskStager(plan, writer).run(iterator)
        from chaffinch.spark.tasks.task_sender import TaskSender, forget_producer, producer_for

        try:
            producer = producer_for(options.producer, self._snapshot.topics)
            sender = TaskSender(plan, producer, writer, stops_at_bad_rows=not options.tolerance.tolerates)
            return sender.run(iterator)
        except BaseException:
            forget_producer(options.producer)
            raise


class StreamWriter(_Writer, DataSourceStreamArrowWriter):  # type: ignore[misc]  # Its base class takes rows.
    """Writes micro-batches, each in one Kafka transaction if `deliveryGuarantee` is `exactly-once`."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        with line_first():
            self.committer.run(_outcomes(messages), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.committer.discard_staged(message.outcome for message in messages if isinstance(message, CommitMessage))


class BatchWriter(_Writer, DataSourceArrowWriter):  # type: ignore[misc]  # Its base class takes rows.
    """Writes one DataFrame, with `exactly-once` in one Kafka transaction; with an idempotencyToken at most once per token."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with line_first(), worded_for(_kind(self._options)):
            self.committer.run(_outcomes(messages), self._batch_id)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        outcomes = [message.outcome for message in messages if isinstance(message, CommitMessage)]
        if _kind(self._options) is Kind.BATCH:
            self.committer.clean_up(outcomes, self._batch_id)  # No other writer stages under its name.
        else:
            self.committer.discard_staged(outcomes)

    @property
    def _batch_id(self) -> int:
        return self._options.batch_id or 0


def _unpickled(kind: type[_Writer], version: str, state: bytes) -> _Writer:
    found: _Writer = received(kind, version, state)
    return found


def planned_stream_writer(given: Mapping[str, str], schema: StructType) -> StreamWriter:
    """The writer for `writeStream`: checks options and schema, then the target. Raises Refusal."""
    return stream_writer(checked_options(given, schema, is_stream=True))


def planned_batch_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> BatchWriter:
    """The writer for `write`. Raises Refusal."""
    if overwrite:
        raise invalid(ConfigException('mode("overwrite") cannot be used: a topic is appended to, never replaced; use mode("append")'))
    options = checked_options(given, schema, is_stream=False)
    with worded_for(_kind(options)):
        return batch_writer(options)


def _kind(options: SinkOptions) -> Kind:
    """The kind of run of a batch write, for the advice in its errors."""
    if options.batch_id is not None:
        return Kind.QUERY
    return Kind.BATCH if options.idempotency_token is None else Kind.BATCH_ONCE


def checked_options(given: Mapping[str, str], schema: StructType, *, is_stream: bool) -> SinkOptions:
    """Checks options and columns, as far as that needs no broker. Raises Refusal."""
    from chaffinch.spark.tasks.row_codec import check_schema
    from chaffinch.spark.tasks.row_handler import handler_for

    try:
        options = SinkOptions.parse(given, is_stream=is_stream)
        handler_for(options.handler)
        check_schema(schema, has_topic=options.topic is not None, reason_column=options.reason_column)
    except ConfigException as error:
        raise invalid(error) from None
    return options


def stream_writer(options: SinkOptions) -> StreamWriter:
    """A writer for one micro-batch, with a new snapshot of the target. Raises Refusal for errors that the broker reports."""
    return StreamWriter(options, _planned(options), None)


def batch_writer(options: SinkOptions) -> BatchWriter:
    """A writer for one batch write, or for one micro-batch inside `foreachBatch`."""
    write_id = None if options.batch_id is not None else options.idempotency_token or f"write-{secrets.token_hex(8)}"
    return BatchWriter(options, _planned(options), write_id)


def _planned(options: SinkOptions) -> TargetSnapshot:
    """Checks before any task runs: folders can be written to, topics exist and accept the rows."""
    from chaffinch.spark.target import client_for, forget_client

    if options.staging_location is not None:
        write_probe_file(options.staging_location)
    probe_once(options.dead_letter_path, "errors.dead.letter.path")
    try:
        return planned_target(options, client_for(options.client))
    except ConfigException as error:  # Certificate files are read only now.
        raise invalid(error) from None
    except BaseException:
        forget_client(options.client)
        raise


def _outcomes(messages: Iterable[WriterCommitMessage | None]) -> tuple[TaskOutcome, ...]:
    """Outcomes of all tasks. Raises Refusal if one has a different version: its rows would be missing."""
    for message in messages:
        if message is not None and getattr(message, "version", None) != MESSAGE_VERSION:
            raise _version_refusal(message)
    found = [message.outcome for message in messages if isinstance(message, CommitMessage)]
    return tuple(sorted(found, key=lambda outcome: outcome.context.task))


def _version_refusal(message: WriterCommitMessage) -> Refusal:
    """The error that a task of an earlier version has reported itself, or the error that its version differs."""
    failure = getattr(getattr(message, "outcome", None), "failure", None)
    if isinstance(failure, Failure) and failure.name == "VERSIONS_DIFFER":
        return Refusal(failure.group, failure.name, failure.text)
    return versions_differ("an executor", getattr(message, "version", EARLIER), MESSAGE_VERSION)


def task_plan(options: SinkOptions, target: TargetSnapshot, facts: TaskContextFacts, query: str) -> TaskPlan:
    """The plan of a Spark task, with the client of its process."""
    from chaffinch.spark.target import client_for

    return plan_of_task(options, target, facts, query, lambda: client_for(options.client))


def _failed(facts: TaskContextFacts, failure: Failure) -> TaskOutcome:
    return TaskOutcome(context=facts, failure=failure)


def failure_of(refusal: Refusal) -> Failure:
    """A refusal as a message to the committing process."""
    return Failure(group=refusal.group, name=refusal.name, text=refusal.reason, remedy=refusal.remedy)


def task_facts() -> TaskContextFacts:
    """Facts of the task that runs in this thread."""
    from pyspark import TaskContext

    return facts_of(TaskContext.get())


__all__ = [
    "BatchWriter",
    "CommitMessage",
    "StreamWriter",
    "batch_writer",
    "checked_options",
    "planned_batch_writer",
    "planned_stream_writer",
    "stream_writer",
]
