"""A task's half of the sink: Arrow batches in, staged record batches and dead letters out (decision 36).

Rows are taken in chunks of about `CHUNK_BYTES`, so that record batches become large although Spark's Arrow batches are not.
Per chunk: to columns, split by topic, partition, validate against the topic's snapshot, set the rejected rows aside, encode
without producer id, stage. Nothing is written to Kafka here, so an attempt may die or run twice without harm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import TopicPartition
from chaffinch.records import batch as batches
from chaffinch.records.batch import TimestampType
from chaffinch.records.columns import RecordColumns
from chaffinch.records.compression import from_name as compression_from_name
from chaffinch.records.validation import ValidationPolicy, validate_columns
from chaffinch.spark.commit_messages import REJECTIONS_NAMED_MAX, Rejection, StagedBatch, TaskOutcome
from chaffinch.spark.dead_letters import Origin, batches_by_partition, dead_letter_batches, dead_letter_records, rows_stream
from chaffinch.spark.row_codec import NO_PARTITION, Rows, rows_of
from chaffinch.spark.snapshot import TopicSnapshot
from chaffinch.spark.staging import StagedWriter, staged_batches
from chaffinch.spark.task_facts import TaskContextFacts

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_BYTES = 16 << 20
LOG_APPEND_TIME = "LogAppendTime"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """What one task has to know. `snapshot_of` finds a topic that the planner did not know: None when there is no such topic."""

    context: TaskContextFacts
    topic: str | None
    compression_type: str
    compression_level: int | None
    batch_bytes: int
    origin: Origin
    dead_letter_target: TopicSnapshot | None
    keeps_dead_rows: bool
    snapshot_of: Callable[[str], TopicSnapshot | None]
    now_ms: int


_Span = tuple[TopicPartition, int, tuple[int, int]]


class TaskStager:
    """Stages the rows of one task attempt. `run` once."""

    def __init__(self, plan: TaskPlan, writer: StagedWriter) -> None:
        self._plan = plan
        self._writer = writer
        self._compression = compression_from_name(plan.compression_type)
        self._spans: list[_Span] = []
        self._dead_spans: list[_Span] = []
        self._dead_row_spans: list[tuple[int, int]] = []
        self._rejected_by_code: Counter[str] = Counter()
        self._rejections: list[Rejection] = []
        self._snapshots: dict[str, TopicSnapshot | None] = {}
        self._row_count = 0
        # Null keys stick to one partition per run of about one batch; tasks begin at different ones.
        self._sticky = plan.context.task

    def run(self, arrow_batches: Iterable[pa.RecordBatch]) -> TaskOutcome:
        """Consumes the rows. Raises Refusal where staging fails, and what `snapshot_of` raises."""
        import pyarrow as pa

        chunk: list[pa.RecordBatch] = []
        chunk_bytes = 0
        for arrow_batch in arrow_batches:
            chunk.append(arrow_batch)
            chunk_bytes += arrow_batch.nbytes
            if chunk_bytes >= CHUNK_BYTES:
                self._stage(pa.Table.from_batches(chunk))
                chunk, chunk_bytes = [], 0
        if chunk:
            self._stage(pa.Table.from_batches(chunk))
        self._writer.close()
        used = tuple(snapshot for snapshot in self._snapshots.values() if snapshot is not None)
        return TaskOutcome(
            context=self._plan.context,
            row_count=self._row_count,
            batches=staged_batches(self._writer, self._spans),
            dead_batches=staged_batches(self._writer, self._dead_spans),
            dead_rows=tuple(self._writer.staged(span) for span in self._dead_row_spans),
            rejected_by_code=dict(self._rejected_by_code),
            rejections=tuple(self._rejections),
            snapshots=used,
        )

    def _stage(self, data: pa.Table) -> None:
        if not data.num_rows:
            return
        rows = rows_of(data, self._plan.topic, timestamp_default_ms=self._plan.now_ms)
        if rows.topic_index is None:
            self._stage_topic(rows.topics[0], rows, np.arange(len(rows), dtype=np.int64))
        else:
            for index in range(-1, len(rows.topics)):
                found = np.flatnonzero(rows.topic_index == index).astype(np.int64, copy=False)
                if len(found):
                    self._stage_topic(rows.topics[index] if index >= 0 else None, rows, found)
        self._row_count += len(rows)

    def _stage_topic(self, topic: str | None, rows: Rows, indices: npt.NDArray[np.int64]) -> None:
        """Rows of one topic; `indices` are theirs within the chunk, ascending."""
        columns = rows.columns if len(indices) == len(rows) else rows.columns.take(indices)
        if topic is None:
            self._reject_all(columns, indices, "", codes.INVALID_TOPIC_EXCEPTION, "the row's topic is null and there is no option topic")
            return
        snapshot = self._snapshot(topic)
        if snapshot is None:
            self._reject_all(columns, indices, topic, codes.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic!r}")
            return
        wanted = None if rows.partitions is None else rows.partitions[indices]
        partitions = self._partitions(columns, wanted, snapshot)
        faults = self._faults(columns, partitions, snapshot)
        for row in np.flatnonzero(np.isin(indices, rows.keyless_headers)).tolist():
            faults.setdefault(row, (codes.INVALID_RECORD, "a header without a key; the row's headers are left out"))
        if faults:
            bad = np.array(sorted(faults), np.int64)
            self._reject(columns.take(bad), [
                Rejection(
                    row=self._row_count + int(indices[row]),
                    topic_partition=TopicPartition(topic, int(partitions[row])),
                    code=faults[int(row)][0],
                    message=faults[int(row)][1],
                )
                for row in bad
            ])  # fmt: skip
            good = np.setdiff1d(np.arange(len(columns), dtype=np.int64), bad, assume_unique=True)
            columns, partitions = columns.take(good), partitions[good]
        limit = min(self._plan.batch_bytes, snapshot.batch_bytes_max)
        for partition, part in batches_by_partition(columns, partitions, limit):
            encoded = batches.encode(part, compression=self._compression, level=self._plan.compression_level, is_transactional=True)
            self._spans.append((TopicPartition(topic, partition), len(part), self._writer.append(encoded)))

    def _partitions(self, columns: RecordColumns, wanted: npt.NDArray[np.int32] | None, snapshot: TopicSnapshot) -> npt.NDArray[np.int32]:
        """The column's partition, else the key's as every Kafka client has it, else the sticky one."""
        partitions = columns.murmur2_partitions(snapshot.partition_count)
        keyless = partitions < 0
        if wanted is not None:
            partitions = np.where(wanted == NO_PARTITION, partitions, wanted)
            keyless &= wanted == NO_PARTITION
        if keyless.any():
            runs = np.cumsum(np.where(keyless, columns.sizes(), 0)) // self._plan.batch_bytes
            partitions = np.where(keyless, (self._sticky + runs) % snapshot.partition_count, partitions).astype(np.int32)
            self._sticky += int(runs[-1]) + 1
        return partitions

    def _faults(
        self, columns: RecordColumns, partitions: npt.NDArray[np.int32], snapshot: TopicSnapshot
    ) -> dict[int, tuple[ErrorCode, str]]:
        """Rows that the target would refuse, with the reason; at most one per row."""
        plan = self._plan
        policy = ValidationPolicy(
            topic_partition=TopicPartition(snapshot.topic, NO_PARTITION),
            is_compacted=snapshot.is_compacted,
            timestamp_type=TimestampType.LOG_APPEND_TIME if snapshot.timestamp_type == LOG_APPEND_TIME else TimestampType.CREATE_TIME,
            timestamp_before_max_ms=snapshot.timestamp_before_max_ms,
            timestamp_after_max_ms=snapshot.timestamp_after_max_ms,
            batch_bytes_max=snapshot.batch_bytes_max,
        )
        found = validate_columns(columns, policy, plan.now_ms, compression=self._compression, level=plan.compression_level)
        faults = {culprit.batch_index: (culprit.code, reason_of(culprit.message)) for culprit in found}
        for row in np.flatnonzero((partitions < 0) | (partitions >= snapshot.partition_count)).tolist():
            seen = "a negative partition" if partitions[row] < 0 else f"partition {int(partitions[row])}"
            text = f"{seen} of topic {snapshot.topic!r}, which has {snapshot.partition_count}"
            faults.setdefault(row, (codes.UNKNOWN_TOPIC_OR_PARTITION, text))
        return faults

    def _snapshot(self, topic: str) -> TopicSnapshot | None:
        if topic not in self._snapshots:
            self._snapshots[topic] = self._plan.snapshot_of(topic)
        return self._snapshots[topic]

    def _reject_all(self, columns: RecordColumns, indices: npt.NDArray[np.int64], topic: str, code: ErrorCode, message: str) -> None:
        where = TopicPartition(topic, -1)
        self._reject(columns, [
            Rejection(row=self._row_count + int(index), topic_partition=where, code=code, message=message) for index in indices
        ])  # fmt: skip

    def _reject(self, columns: RecordColumns, rejections: list[Rejection]) -> None:
        """Row i of `columns` is set aside for `rejections[i]`."""
        plan = self._plan
        self._rejected_by_code.update(rejection.code.name for rejection in rejections)
        self._rejections.extend(rejections[: REJECTIONS_NAMED_MAX - len(self._rejections)])
        if plan.dead_letter_target is not None:
            target = plan.dead_letter_target
            records = dead_letter_records(columns, rejections, plan.origin, target, plan.now_ms)
            for topic_partition, count, encoded in dead_letter_batches(records, target, plan.context.task):
                self._dead_spans.append((topic_partition, count, self._writer.append(encoded)))
        if plan.keeps_dead_rows:
            self._dead_row_spans.append(self._writer.append(rows_stream(columns, rejections, plan.origin)))


def reason_of(message: str) -> str:
    """Why a record is refused, without its place in a batch: a row's place is told by the row."""
    _, separator, reason = message.partition(" rejected: ")
    return reason if separator else message


def broker_found(
    columns: RecordColumns, rejections: list[Rejection], origin: Origin, target: TopicSnapshot | None, now_ms: int
) -> list[tuple[TopicPartition, int, bytearray]]:
    """Dead letters of records that only the broker could refuse: row i was refused for `rejections[i]`."""
    if target is None:
        return []
    return dead_letter_batches(dead_letter_records(columns, rejections, origin, target, now_ms), target, 0)


__all__ = ["StagedBatch", "TaskPlan", "TaskStager", "broker_found"]
