"""What a task tells the committing process: what it staged, what it rejected, what went wrong.

Plain data, no PySpark: `sink/writers.py` wraps a `TaskOutcome` into PySpark's own message class. Everything here is picklable and
small; record bytes are inside only up to `INLINE_BYTES_MAX` per task, beyond that in files (decision 36).

Errors of Kafka travel as a `Failure` in here and are decided in `commit()`: raised inside `write()` they would cost
Spark's task retries and reach the user without their class (decision 43).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from chaffinch.errors.codes import ErrorCode, Group
from chaffinch.identifiers import TopicPartition
from chaffinch.settings import shortened
from chaffinch.spark.refusals import Remedy
from chaffinch.spark.snapshot import TopicSnapshot
from chaffinch.spark.task_facts import TaskContextFacts as TaskContextFacts  # A part of the message.

INLINE_BYTES_MAX = 1 << 20
"""Staged bytes that a task hands over inside its message; Spark moves messages of this size at about 200 MB/s."""
STAGING_LOST: Final = "STAGING_LOST"
"""Name of the error that says that what was staged cannot be read back."""
REJECTIONS_NAMED_MAX = 10
"""Rejected rows that a task describes one by one; of the others it keeps the count per error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedBytes:
    """Bytes that a task left behind: `data` itself, or `byte_count` bytes at `position` of `file` (a path below the staging location)."""

    data: bytes | None = None
    file: str | None = None
    position: int = 0
    byte_count: int
    crc: int | None = None
    """CRC-32C of the bytes in the file, by which torn ones are told from those that were staged. None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedBatch:
    """One encoded record batch: transactional bit set, no producer id, epoch or sequence yet."""

    topic_partition: TopicPartition
    record_count: int
    bytes: StagedBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """One row that may not be written: where it is, where it was to go, and why."""

    row: int
    """0-based, within the task (a task-found one) or within the batch (a broker-found one)."""
    topic_partition: TopicPartition
    code: ErrorCode
    message: str
    task: int | None = None
    """Whose row it is, where many tasks' rows are told together."""

    def brief(self) -> Rejection:
        """The same, to be told only: of a text in place of a topic, which may have any length, the begin."""
        topic, partition = self.topic_partition
        return replace(self, topic_partition=TopicPartition(shortened(topic), partition))

    def with_task(self, task: int) -> Rejection:
        """The same, to be told beside those of other tasks."""
        return replace(self, task=task)

    def __str__(self) -> str:
        row = f"row {self.row}" if self.task is None else f"row {self.row} of task {self.task}"
        topic, partition = self.topic_partition
        # A row's own partition may be none, and its topic too; the reason says so.
        where = str(self.topic_partition) if partition >= 0 else topic
        return f"{row}{' for ' if where else ''}{where}: {self.code.name}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a task could not stage its rows. `name`: Kafka's error name or ours; `text`: one line for the user, before its `remedy`."""

    group: Group
    name: str
    text: str
    remedy: Remedy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """The whole message of one task attempt; Spark hands over the winner's only."""

    context: TaskContextFacts
    row_count: int = 0
    batches: tuple[StagedBatch, ...] = ()
    """For the target topics, in the order of the rows per partition."""
    dead_batches: tuple[StagedBatch, ...] = ()
    """For the dead letter topic."""
    dead_rows: tuple[StagedBytes, ...] = ()
    """Arrow IPC streams that `dead_letters.rows_stream` has made, for the Parquet file."""
    rejected_by_code: Mapping[str, int] = field(default_factory=dict)
    dropped_by_code: Mapping[str, int] = field(default_factory=dict)
    """Rejected rows that the user's handler said to leave out; not among the rejected."""
    rejections: tuple[Rejection, ...] = ()
    """The first `REJECTIONS_NAMED_MAX` of them."""
    snapshots: tuple[TopicSnapshot, ...] = ()
    """What the task took for true about its topics: the committer refuses a batch whose tasks disagree (decision 40)."""
    sent_bytes: int = 0
    """Of records that the task sent itself and that were not refused, before compression."""
    sent_ms: int = 0
    """How long it took until all of them had an outcome."""
    failure: Failure | None = None

    @property
    def byte_count(self) -> int:
        return sum(batch.bytes.byte_count for batch in (*self.batches, *self.dead_batches))

    def files(self) -> set[str]:
        """Paths of all files that this task staged into."""
        return {part.file for part in self._staged() if part.file is not None}

    def _staged(self) -> tuple[StagedBytes, ...]:
        return (*(batch.bytes for batch in (*self.batches, *self.dead_batches)), *self.dead_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCounts:
    """What one batch came to."""

    rows_written: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Rows set aside, by the error's name."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Rows that the user's handler said to leave out, by the error's name."""
    byte_count: int = 0
    """Of the record batches in Kafka: rows that are written, and dead letters for the topic."""
    staged_bytes: int = 0
    """Those of them that came from staging files; the rest came inside the tasks' messages."""
    staging_files: int = 0
    """How many files these bytes came from. A file that holds only rows for Parquet is not among them."""
    push_ms: int = 0
    """From the begin of the transaction to the last batch's answer."""
    commit_ms: int = 0
    """From there on, to the answer that the transaction has ended."""

    def line(self, batch_id: int, outcome: str) -> str:
        """The batch's line in the log."""
        if outcome != "written":
            return f"batch {batch_id}: {_NOTHING_WRITTEN_TEXTS[outcome]}"
        parts = [f"{self.rows_written} rows written", _counts_text("rejected", self.rejected)]
        if self.dropped:
            parts.append(_counts_text("dropped", self.dropped))
        parts += [f"{self.byte_count} bytes", f"{self.staged_bytes} of them in {self.staging_files} staging files"]
        parts += [f"push {self.push_ms} ms", f"commit {self.commit_ms} ms"]
        return f"batch {batch_id}: " + ", ".join(parts)

    def __add__(self, other: BatchCounts) -> BatchCounts:
        """What both came to."""
        added: dict[str, Any] = {name: getattr(self, name) + getattr(other, name) for name in _NUMBERS}
        added |= {name: dict(Counter(getattr(self, name)) + Counter(getattr(other, name))) for name in _BY_ERROR}
        return BatchCounts(**added)

    def to_fields(self) -> dict[str, Any]:
        """As JSON has it."""
        return {name: getattr(self, name) for name in _NUMBERS} | {name: dict(getattr(self, name)) for name in _BY_ERROR}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> BatchCounts:
        """From what `to_fields` gave, in this version or another. Errors: ValueError, TypeError, AttributeError for anything else."""
        found: dict[str, Any] = {name: int(fields.get(name, 0)) for name in _NUMBERS}
        found |= {name: {str(key): int(count) for key, count in fields.get(name, {}).items()} for name in _BY_ERROR}
        return cls(**found)


_NOTHING_WRITTEN_TEXTS = {"skipped": "skipped, it is in Kafka already", "empty": "without rows"}
_NUMBERS = ("rows_written", "byte_count", "staged_bytes", "staging_files", "push_ms", "commit_ms")
_BY_ERROR = ("rejected", "dropped")


def _counts_text(what: str, counts: Mapping[str, int]) -> str:
    by_name = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return f"{sum(counts.values())} {what}" + (f" ({by_name})" if by_name else "")
