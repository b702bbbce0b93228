"""What a target would refuse of rows, found as tasks of the sink find it, and nothing written."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chaffinch.spark.commit.messages import REJECTIONS_NAMED_MAX, Rejection

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from chaffinch.spark.sink.options import SinkOptions
    from chaffinch.spark.snapshot import TopicSnapshot
    from chaffinch.spark.tasks.row_check import SnapshotOf


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What would become of the rows. `rejections`: the first of those that would be rejected; what only brokers can tell is not in here.

    `dropped`: what the user's handler would leave out, by error.
    """

    row_count: int
    rejected: Mapping[str, int]
    dropped: Mapping[str, int]
    rejections: tuple[Rejection, ...]

    @property
    def rows_written(self) -> int:
        return self.row_count - sum(self.rejected.values()) - sum(self.dropped.values())


def dry_run_of(options: Mapping[str, str], frame: DataFrame) -> DryRun:
    """The rows of `frame` checked against the topics that the sink's `options`, or the rows, name. Raises Refusal as the sink does."""
    from chaffinch.spark.sink.writers import checked_options
    from chaffinch.spark.target import client_for, forget_client, take_snapshot

    parsed = checked_options(options, frame.schema, is_stream=False)
    try:
        policy = take_snapshot(client_for(parsed.client), [], parsed.block_max_ms).replication_policy
    finally:
        forget_client(parsed.client)

    def checked(arrow_batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        found = pickle.dumps(_checked(parsed, policy, arrow_batches))
        yield pa.RecordBatch.from_arrays([pa.array([found], pa.binary())], names=["found"])

    # Pickled here, in a process of our own: a row says nothing about where a tuple of named rejections came from.
    parts: list[DryRun] = [pickle.loads(row["found"]) for row in frame.mapInArrow(checked, "found binary").collect()]
    rejected: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    for part in parts:
        rejected.update(part.rejected)
        dropped.update(part.dropped)
    named = [rejection for part in parts for rejection in part.rejections]
    return DryRun(
        row_count=sum(part.row_count for part in parts),
        rejected=rejected,
        dropped=dropped,
        rejections=tuple(named[:REJECTIONS_NAMED_MAX]),
    )


def _checked(options: SinkOptions, policy: str | None, arrow_batches: Iterable[pa.RecordBatch]) -> DryRun:
    """One task's rows."""
    from chaffinch.spark.sink.writers import task_facts
    from chaffinch.spark.target import wall_ms
    from chaffinch.spark.tasks.dead_letters import Origin
    from chaffinch.spark.tasks.row_check import BadRows, RowCheck, TaskPlan
    from chaffinch.spark.tasks.row_handler import handler_for

    facts = task_facts()
    nothing: Any = None
    plan = TaskPlan(
        context=facts,
        topic=options.topic,
        compression_type=options.compression_type,
        compression_level=options.compression_level,
        batch_bytes=options.batch_bytes,
        origin=Origin(query="", batch_id=0, task=facts.task),
        dead_letter_target=None,
        keeps_dead_rows=False,
        request_bytes_max=options.request_bytes_max,
        unknown_topic_ms=options.topic_patience_ms,
        snapshot_of=_snapshots(options, policy),
        handler=handler_for(options.handler),
        now_ms=wall_ms(),
    )
    bad_rows = BadRows(plan, nothing, lambda records, target: None)
    check = RowCheck(plan, bad_rows)
    for _ in check.good(arrow_batches):
        pass
    return DryRun(
        row_count=check.row_count,
        rejected=dict(bad_rows.rejected_by_code),
        dropped=dict(bad_rows.dropped_by_code),
        rejections=tuple(bad_rows.named),
    )


def _snapshots(options: SinkOptions, policy: str | None) -> SnapshotOf:
    """Topics as tasks of the sink look them up. Refuses one that acks=all can never write to, as they do."""
    from chaffinch.spark.target import check_replication, client_for, find_topic

    def snapshot_of(topic: str, patience_ms: int) -> TopicSnapshot | None:
        found = find_topic(client_for(options.client), topic, options.block_max_ms, patience_ms)
        if found is not None:
            check_replication(found, policy)
        return found

    return snapshot_of
