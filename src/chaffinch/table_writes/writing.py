"""`write_table`: one table in one Kafka transaction, once per token, without Spark.

It runs the commit protocol of the Spark sink (`spark/commit/protocol.py`) on one task, in the calling thread, with connections of its own.
A write and a batch write of Spark with the same token are the same write.

Internal; may change without notice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Unpack

from chaffinch import plain_text
from chaffinch.client.sync_client import SyncClient
from chaffinch.errors import ConfigException, KafkaException, TableWriteException, codes
from chaffinch.public_names import exported_from
from chaffinch.spark.commit.messages import TaskOutcome
from chaffinch.spark.commit.plan import CommitResult
from chaffinch.spark.folders import Folder
from chaffinch.spark.refusals import Kind, Refusal, refusal_of
from chaffinch.spark.sink.committer import Committer
from chaffinch.spark.sink.options import SinkOptions
from chaffinch.spark.sink.paths import SinkPaths
from chaffinch.spark.sink.planning import plan_of_task, planned_target
from chaffinch.spark.snapshot import TargetSnapshot
from chaffinch.spark.task_facts import TaskContextFacts, host
from chaffinch.spark.tasks.staging import StagedWriter
from chaffinch.spark.tasks.task_stager import TaskStager
from chaffinch.table_writes.options import TABLE, in_own_names, sink_options
from chaffinch.table_writes.rows import batches_of

if TYPE_CHECKING:
    from chaffinch.table_writes.option_types import WriteTableOptions

_log = plain_text.logger("chaffinch.write_table")

STAGED_IN_MEMORY_BYTES = 64 << 20
"""Encoded rows that are kept in memory; more are staged in a file until they are written."""
_LOCAL = "local"


@exported_from("chaffinch")
@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTableResult:
    """Result of `write_table`: every row is in Kafka, a dead letter, or part of an earlier write with the same token.

    Attributes:
        outcome: `written`; `skipped`: the token was used before, nothing was written; `empty`: the table has no rows, and the token
            stays unused.
        written: number of rows written by this call, without dead letters.
        rejected: number of dead letters of this call by error name, as INVALID_RECORD; with the text of the row if `reason_column` had one.
    """

    outcome: Literal["written", "skipped", "empty"]
    written: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)


@exported_from("chaffinch")
def write_table(
    table: Any,
    topic: str | None = None,
    *,
    idempotency_token: str,
    dead_letters: str | None = None,
    dead_letter_path: str | os.PathLike[str] | None = None,
    rejected_max: int | str | None = None,
    reason_column: str | None = None,
    marker_topic: str | None = None,
    staging_location: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
    **keywords: Unpack[WriteTableOptions],
) -> WriteTableResult:
    """Write a table to Kafka exactly once: all rows, their dead letters and a marker of the token in one transaction.

    Call it again with the same token and the same table after any failure, also one of the process or the machine: a token is written
    once. Writers of the same token exclude each other. The marker is an offset of the group `chaffinch-TOKEN`; it expires after
    `offsets.retention.minutes` of the broker (7 days by default), and then the token can be written again.

    Args:
        table: a pyarrow Table, RecordBatch or RecordBatchReader, or an object with the Arrow stream interface: data frames of pandas and
            polars, relations of DuckDB. Columns: value; optionally key, timestamp, headers, partition, topic.
        topic: topic of all rows; it overrides the column topic. None: each row names its own.
        idempotency_token: name of this write, such as the name and date of a scheduled run.
        dead_letters: topic for rows that the target would refuse, in the same transaction; it must exist. Without it, and without
            `dead_letter_path`, the first such row fails the write.
        dead_letter_path: folder or URI for the same rows as a Parquet file; it appears when the transaction is committed.
        rejected_max: largest count (100) or share ('5%') of dead letters; with more the write fails.
        reason_column: name of a nullable string column: a row with text in it becomes a dead letter with that reason.
        marker_topic: existing topic whose partition 0 carries the marker. Default: `topic`.
        staging_location: folder or URI for encoded rows beyond 64 MiB, until they are written. Default: the system's temporary folder.
        options: options of the client by Kafka's names, such as `{"bootstrap.servers": "..."}`; those of a producer are accepted.
        keywords: further options, such as `bootstrap_servers`.

    Returns:
        A WriteTableResult: whether this call has written the table, and how many rows.

    Raises:
        TableWriteException: the table was not written, or it is unknown whether it was. `error_name` is the error, and `group` shows
            whether a retry can help.
        InvalidColumn: a column is unknown, missing, or of the wrong type.
        ConfigException: an option or argument is wrong.
        TypeError: `table` is not a table, or an argument has the wrong type.
    """
    settings = TABLE.parse(options, **keywords)
    chosen = sink_options(
        topic,
        token=idempotency_token,
        dead_letters=dead_letters,
        dead_letter_path=dead_letter_path,
        rejected_max=rejected_max,
        reason_column=reason_column,
        marker_topic=marker_topic,
        staging_location=staging_location,
        settings=settings,
    )
    for name in sorted(settings.ignored):
        _log.warning("option %s is known to Apache Kafka and without effect here", name)
    batches = batches_of(table, topic, reason_column)
    try:
        result = _written(chosen, batches)
    except Refusal as refusal:
        raise _exception(refusal) from refusal.__cause__
    except ConfigException:
        raise
    except KafkaException as error:
        raise _exception(refusal_of(error)) from error
    counts = result.counts
    _log.info("%s", in_own_names(f"write {idempotency_token}: {counts.line(0, result.outcome).removeprefix('batch 0: ')}"))
    if result.outcome != "written":
        return WriteTableResult(outcome=result.outcome)
    return WriteTableResult(outcome="written", written=counts.rows_written, rejected=dict(counts.rejected))


def _written(options: SinkOptions, batches: Any) -> CommitResult:
    client = SyncClient(
        options.client.bootstrap_servers,
        connections=options.client.connections,
        retry_backoff=options.client.retry_backoff,
        reconnect_backoff=options.client.reconnect_backoff,
        on_wait=lambda text: _log.warning("bootstrap.servers=%s: %s", ",".join(options.client.bootstrap_servers), text),
    )
    try:
        for location, name in ((options.dead_letter_path, "dead_letter_path"), (options.staging_location, "staging_location")):
            if location is not None:
                Folder(location, name).probe()
        return _committed(options, planned_target(options, client), client, batches)
    finally:
        client.close()


def _committed(options: SinkOptions, target: TargetSnapshot, client: SyncClient, batches: Any) -> CommitResult:
    token = options.idempotency_token
    assert token is not None
    facts = TaskContextFacts(task=0, master=_LOCAL, host=host())
    paths = SinkPaths(options, is_stream=False)
    outcome = _staged(options, target, client, facts, paths, batches)
    committer = Committer(options, target, token, paths)
    try:
        return committer.commit(committer.plan((outcome,), facts, 0), facts, client)
    except BaseException:
        committer.discard_staged([outcome])
        raise


def _staged(
    options: SinkOptions, target: TargetSnapshot, client: SyncClient, facts: TaskContextFacts, paths: SinkPaths, batches: Any
) -> TaskOutcome:
    """Check, encode and stage all rows."""
    token = str(options.idempotency_token)
    plan = plan_of_task(options, target, facts, token, lambda: client)
    writer = StagedWriter(lambda: paths.spill(facts, token), "table", inline_bytes_max=STAGED_IN_MEMORY_BYTES)
    try:
        return TaskStager(plan, writer).run(batches)
    except BaseException:
        with suppress(Refusal):
            writer.discard()
        raise


def _exception(refusal: Refusal) -> KafkaException:
    """The exception for users, with their names of arguments and options."""
    text = in_own_names(refusal.worded_for(Kind.BATCH_ONCE).text)
    try:
        code = codes.by_name(refusal.name)
    except KeyError:  # An error of Chaffinch, such as ROWS_REJECTED.
        code = None
    return TableWriteException(text, error_name=refusal.name, code=code, group=refusal.group)
