"""Streaming query that writes through the Spark commit protocol, reduced to the parts of Spark that matter for it.

`Query` survives its drivers: the rows of each batch (replayed identically, as Spark's offset log guarantees), Spark's own commit log, and
the checkpoint state. `query_driver.py` is one run of it; `supervisor.py` starts the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from chaffinch.identifiers import TopicPartition
from chaffinch.records import batch as batches
from chaffinch.records.columns import RecordColumns
from chaffinch.spark.commit.marker import CheckpointState
from chaffinch.spark.commit.messages import StagedBatch, StagedBytes
from chaffinch.spark.snapshot import TopicSnapshot

DEAD_LETTER_TOPIC: Final = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row to write. `is_bad`: the broker will refuse it."""

    number: int
    topic_partition: TopicPartition
    key: bytes | None
    value: bytes
    timestamp_ms: int
    is_bad: bool = False


@dataclass(slots=True, kw_only=True)
class Query:
    """State that survives the drivers. `batches[i]` are the rows of batch i, one list per task."""

    name: str
    batches: Sequence[Sequence[Sequence[Row]]]
    marker_partition: TopicPartition
    dead_letter_target: TopicSnapshot
    record_count_max: int = 4
    """Records per staged batch: small, so that there are several per partition."""
    is_stream: bool = True
    """False: `df.write` with an idempotency token, repeated until it succeeds."""
    has_checkpoint: bool = True
    has_handler: bool = False
    """The user's handler swallows every second refused row."""
    committed: int = -1
    """Spark's own commit log: the newest batch that Spark believes to be done."""
    state: CheckpointState = field(default_factory=CheckpointState)
    dead_rows: dict[int, int] = field(default_factory=dict)
    """Parquet files: batch id -> number of rows."""
    dead_rows_of: dict[int, str] = field(default_factory=dict)
    """Their owners: batch id -> driver."""
    pending: dict[tuple[int, str], int] = field(default_factory=dict)
    """Parquet files of batches that are not committed yet: (batch id, driver) -> number of rows."""
    written_by: dict[int, str] = field(default_factory=dict)
    """Batch id -> the driver for which the commit reported that it wrote the batch, if there is one."""
    outcomes: dict[int, list[str]] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return self.committed == len(self.batches) - 1

    @property
    def transactional_id(self) -> str:
        """Also the name of the marker's group."""
        return f"chaffinch-{self.name}"

    def swallows(self, row: Row) -> bool:
        """Whether the handler swallows this row if the broker refuses it."""
        return self.has_handler and row.number % 2 == 1

    def is_dead_letter(self, row: Row) -> bool:
        """Whether this row ends in the dead letters."""
        return row.is_bad and not self.swallows(row)

    def rows(self) -> list[Row]:
        return [row for tasks in self.batches for rows in tasks for row in rows]


def staged(rows: Sequence[Row], record_count_max: int) -> list[StagedBatch]:
    """Encoded batches of a task's rows, in order per partition."""
    by_partition: dict[TopicPartition, list[Row]] = {}
    for row in rows:
        by_partition.setdefault(row.topic_partition, []).append(row)
    staged = []
    for topic_partition, found in by_partition.items():
        for start in range(0, len(found), record_count_max):
            part = found[start : start + record_count_max]
            columns = RecordColumns.from_lists([row.key for row in part], [row.value for row in part], [row.timestamp_ms for row in part])
            data = batches.encode(columns, is_transactional=True)
            staged.append(StagedBatch(topic_partition=topic_partition, record_count=len(part), bytes=inline(data)))
    return staged


def inline(data: bytes | bytearray) -> StagedBytes:
    return StagedBytes(data=bytes(data), byte_count=len(data))
