"""Messages of tasks to the committing process: staged batches, rejected rows, and failures.

Plain data, no PySpark: `sink/writers.py` wraps a `TaskOutcome` in PySpark's message class. All of it can be pickled and is small: a message
contains at most `INLINE_BYTES_MAX` of record bytes per task, the rest is in files (decision 36).

Kafka errors travel as a `Failure` and are raised in `commit()`: if raised in `write()`, they would use up Spark's task retries, and reach
the user without their class (decision 43).
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
"""Staged bytes that a task sends inside its message; Spark moves messages of this size at about 200 MB/s."""
STAGING_LOST: Final = "STAGING_LOST"
"""Name of the error for staged bytes that cannot be read back."""
REJECTIONS_NAMED_MAX = 10
"""Rejected rows that a task describes individually; the others are only counted by error."""
REASONS_COUNTED_MAX = 50
"""Different texts of `errors.column` that are counted separately; rows with further texts are counted by their error only. A text may
contain a value of its row, and the counts are kept in the checkpoint and are labels of metrics."""
_REASON_SEPARATOR: Final = ": "


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedBytes:
    """Bytes that a task has staged: `data` itself, or `byte_count` bytes at `position` of `file` (a path below the staging location)."""

    data: bytes | None = None
    file: str | None = None
    position: int = 0
    byte_count: int
    crc: int | None = None
    """CRC-32C of the bytes in the file, to detect torn ones. None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedBatch:
    """One encoded record batch: with the transactional bit, without producer id, epoch or sequence."""

    topic_partition: TopicPartition
    record_count: int
    bytes: StagedBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """One row that cannot be written: its index, its target, and the reason."""

    row: int
    """0-based, within the task (found by the task) or within the batch (found by the broker)."""
    topic_partition: TopicPartition
    code: ErrorCode
    message: str
    task: int | None = None
    """The task of the row, if rows of several tasks are reported together."""
    is_from_row: bool = False
    """The message is the row's own text in the column that `errors.column` names."""

    @property
    def count_name(self) -> str:
        """The name under which the row is counted: its error, and its own text if it has one."""
        return f"{self.code.name}{_REASON_SEPARATOR}{shortened(self.message)}" if self.is_from_row else self.code.name

    def brief(self) -> Rejection:
        """A copy for reports only: a topic name and a text from a row may have any length, and are shortened."""
        topic, partition = self.topic_partition
        message = shortened(self.message) if self.is_from_row else self.message
        return replace(self, topic_partition=TopicPartition(shortened(topic), partition), message=message)

    def with_task(self, task: int) -> Rejection:
        """A copy for a report with rows of several tasks."""
        return replace(self, task=task)

    def __str__(self) -> str:
        row = f"row {self.row}" if self.task is None else f"row {self.row} of task {self.task}"
        topic, partition = self.topic_partition
        # A row's own partition may be missing, and its topic too; the message says so.
        where = str(self.topic_partition) if partition >= 0 else topic
        return f"{row}{' for ' if where else ''}{where}: {self.code.name}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a task could not stage its rows. `name`: error name of Kafka or Chaffinch; `text`: one line for the user, before its `remedy`."""

    group: Group
    name: str
    text: str
    remedy: Remedy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """The complete message of one task attempt; Spark passes on only that of the successful attempt."""

    context: TaskContextFacts
    row_count: int = 0
    batches: tuple[StagedBatch, ...] = ()
    """For the target topics, in row order within each partition."""
    dead_batches: tuple[StagedBatch, ...] = ()
    """For the dead letter topic."""
    dead_rows: tuple[StagedBytes, ...] = ()
    """Arrow IPC streams from `dead_letters.rows_stream`, for the Parquet file."""
    rejected_by_code: Mapping[str, int] = field(default_factory=dict)
    dropped_by_code: Mapping[str, int] = field(default_factory=dict)
    """Rows that the user's handler dropped; not counted as rejected."""
    rejections: tuple[Rejection, ...] = ()
    """The first `REJECTIONS_NAMED_MAX` rejected rows."""
    snapshots: tuple[TopicSnapshot, ...] = ()
    """Topics as the task saw them: the committer refuses a batch whose tasks disagree (decision 40)."""
    sent_bytes: int = 0
    """Bytes of records that the task itself sent and that were not refused, before compression."""
    sent_ms: int = 0
    """Time until all of them had an outcome."""
    failure: Failure | None = None

    @property
    def byte_count(self) -> int:
        return sum(batch.bytes.byte_count for batch in (*self.batches, *self.dead_batches))

    def files(self) -> set[str]:
        """Paths of all files that this task has staged to."""
        return {part.file for part in self._staged() if part.file is not None}

    def _staged(self) -> tuple[StagedBytes, ...]:
        return (*(batch.bytes for batch in (*self.batches, *self.dead_batches)), *self.dead_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCounts:
    """Counts of one batch."""

    rows_written: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Rejected rows, by error name."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Rows that the user's handler dropped, by error name."""
    byte_count: int = 0
    """Bytes of record batches in Kafka: written rows, and dead letters for the topic."""
    staged_bytes: int = 0
    """The bytes of these that were staged in files; the rest was inside the tasks' messages."""
    staging_files: int = 0
    """Number of files with these bytes. A file with only rows for Parquet does not count."""
    push_ms: int = 0
    """From the start of the transaction to the last batch's response."""
    commit_ms: int = 0
    """From then until the response that the transaction has ended."""

    def line(self, batch_id: int, outcome: str) -> str:
        """The log line of the batch."""
        if outcome != "written":
            return f"batch {batch_id}: {_NOTHING_WRITTEN_TEXTS[outcome]}"
        parts = [f"{self.rows_written} rows written", _counts_text("rejected", self.rejected)]
        if self.dropped:
            parts.append(_counts_text("dropped", self.dropped))
        parts += [f"{self.byte_count} bytes", f"{self.staged_bytes} of them in {self.staging_files} staging files"]
        parts += [f"push {self.push_ms} ms", f"commit {self.commit_ms} ms"]
        return f"batch {batch_id}: " + ", ".join(parts)

    def __add__(self, other: BatchCounts) -> BatchCounts:
        """The sum of both."""
        added: dict[str, Any] = {name: getattr(self, name) + getattr(other, name) for name in _NUMBERS}
        for name in _BY_ERROR:
            counts = Counter(getattr(self, name))
            add_counts(counts, getattr(other, name))
            added[name] = dict(counts)
        return BatchCounts(**added)

    def to_fields(self) -> dict[str, Any]:
        """The fields for JSON."""
        return {name: getattr(self, name) for name in _NUMBERS} | {name: dict(getattr(self, name)) for name in _BY_ERROR}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> BatchCounts:
        """From the result of `to_fields` of any version. Raises ValueError, TypeError or AttributeError for anything else."""
        found: dict[str, Any] = {name: int(fields.get(name, 0)) for name in _NUMBERS}
        found |= {name: {str(key): int(count) for key, count in fields.get(name, {}).items()} for name in _BY_ERROR}
        return cls(**found)


def add_counts(counts: Counter[str], more: Mapping[str, int]) -> None:
    """Add counts of rows by `Rejection.count_name`, with at most `REASONS_COUNTED_MAX` different texts of rows."""
    room = REASONS_COUNTED_MAX - sum(_REASON_SEPARATOR in name for name in counts)
    for name, count in more.items():
        if _REASON_SEPARATOR in name and name not in counts:
            if room <= 0:
                name = name.partition(_REASON_SEPARATOR)[0]
            else:
                room -= 1
        counts[name] += count


_NOTHING_WRITTEN_TEXTS = {"skipped": "skipped, it is in Kafka already", "empty": "without rows"}
_NUMBERS = ("rows_written", "byte_count", "staged_bytes", "staging_files", "push_ms", "commit_ms")
_BY_ERROR = ("rejected", "dropped")


def _counts_text(what: str, counts: Mapping[str, int]) -> str:
    by_name = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return f"{sum(counts.values())} {what}" + (f" ({by_name})" if by_name else "")
