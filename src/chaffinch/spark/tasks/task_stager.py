"""TaskStager: stages a task's rows for the exactly-once sink. Arrow batches in, staged record batches and dead letters out (decision 36).

For each chunk, bad rows become dead letters (`row_check.py`). Good rows are encoded per partition without a producer id, and staged.
Tasks write nothing to Kafka, so an attempt can die or run twice without harm.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from chaffinch.identifiers import TopicPartition
from chaffinch.records import batch as batches
from chaffinch.records.columns import RecordColumns
from chaffinch.records.compression import from_name as compression_from_name
from chaffinch.spark.commit.messages import TaskOutcome
from chaffinch.spark.snapshot import TopicSnapshot
from chaffinch.spark.tasks.dead_letters import dead_letter_batches, groups_by_partition
from chaffinch.spark.tasks.plan import TaskPlan
from chaffinch.spark.tasks.row_check import BadRows, GoodRows, RowCheck
from chaffinch.spark.tasks.staging import StagedWriter, staged_batches

if TYPE_CHECKING:
    import pyarrow as pa

_Span = tuple[TopicPartition, int, tuple[int, int]]


class TaskStager:
    """Stages the rows of one task attempt. Call `run` once."""

    def __init__(self, plan: TaskPlan, writer: StagedWriter) -> None:
        self._plan = plan
        self._writer = writer
        self._compression = compression_from_name(plan.options.compression_type)
        self._spans: list[_Span] = []
        self._dead_spans: list[_Span] = []

    def run(self, arrow_batches: Iterable[pa.RecordBatch]) -> TaskOutcome:
        """Stage all rows. Raises Refusal if staging fails, and exceptions of `snapshot_of`."""
        check = RowCheck(self._plan, BadRows(self._plan, self._writer, self._stage_dead_letters))
        for good in check.good(arrow_batches):
            self._stage_rows(good)
        self._writer.close()
        return replace(
            check.outcome(),
            batches=staged_batches(self._writer, self._spans),
            dead_batches=staged_batches(self._writer, self._dead_spans),
        )

    def _stage_rows(self, good: GoodRows) -> None:
        """Encode good rows into batches by partition, and append these to the staging."""
        limit = min(self._plan.options.batch_bytes, good.snapshot.batch_bytes_max)
        for partition, rows, size_max in groups_by_partition(good.columns, good.partitions, limit, good.picked):
            encoded = batches.encode_measured(
                good.columns,
                size_max,
                rows=rows,
                compression=self._compression,
                level=self._plan.options.compression_level,
                is_transactional=True,
            )
            self._spans.append((TopicPartition(good.snapshot.topic, partition), len(rows), self._writer.append(encoded)))

    def _stage_dead_letters(self, records: RecordColumns, target: TopicSnapshot) -> None:
        for topic_partition, count, encoded in dead_letter_batches(records, target, self._plan.origin.first_partition):
            self._dead_spans.append((topic_partition, count, self._writer.append(encoded)))
