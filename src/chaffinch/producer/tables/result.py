"""SendTableResult: offsets of the written rows, and errors of the rejected rows.

`TableOutcome` is the outcome sink of a table's batches. The sender thread adds to it batch by batch, never row by row, and the last batch
completes the future. The tables of the result are built on access.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from chaffinch.errors import KafkaException, TimeoutException, UnknownTopicOrPartitionException, group_of
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.futures import SHARED_LOCK, RecordFuture
from chaffinch.public_names import exported_from

Rows = npt.NDArray[np.int64]

REJECTED_SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("code", pa.int16()),
        ("error", pa.string()),
        ("message", pa.string()),
        ("group", pa.string()),
        ("stored", pa.string()),
    ]
)


class _Written(NamedTuple):
    """Rows of one batch. Consecutive rows are a range, because an array would stay in memory as long as the result."""

    rows: Rows | range
    partition: int
    base_offset: int

    @property
    def where(self) -> Rows | slice:
        return slice(self.rows.start, self.rows.stop) if isinstance(self.rows, range) else self.rows


class _Rejected(NamedTuple):
    """Rows of one batch; those at the indices in `errors` failed."""

    rows: Rows
    topic_partition: TopicPartition
    errors: Mapping[int, KafkaException]

    def each(self) -> dict[int, KafkaException]:
        """The error of each row."""
        return {int(self.rows[index]): error for index, error in self.errors.items()}


@exported_from("chaffinch")
class SendTableResult:
    """Outcome of a table's rows. Every row is in `offsets`, in `rejected`, or in `dropped`."""

    def __init__(self, row_count: int, written: list[_Written], rejected: list[_Rejected], dropped: list[Rows]) -> None:
        self.row_count = row_count
        self.written = sum(len(part.rows) for part in written)
        """Number of rows written."""
        self.dropped = sorted(int(row) for rows in dropped for row in rows)
        """The rows that an exception handler, or `drop.invalid.large.records`, dropped."""
        self._written = written
        self._rejected = rejected

    @property
    def rejected_count(self) -> int:
        """Number of rows in `rejected`."""
        return self.row_count - self.written - len(self.dropped)

    @cached_property
    def offsets(self) -> pa.Table:
        """Table of row, partition and offset of each written row, in the table's order; offset -1 if unknown (acks=0)."""
        offsets = np.full(self.row_count, -1, np.int64)
        partitions = np.full(self.row_count, -1, np.int32)
        for part in self._written:
            offsets[part.where] = -1 if part.base_offset < 0 else np.arange(part.base_offset, part.base_offset + len(part.rows))
            partitions[part.where] = part.partition
        rows = np.flatnonzero(partitions >= 0)
        return pa.table({"row": rows, "partition": partitions[rows], "offset": offsets[rows]})

    @cached_property
    def rejected(self) -> pa.Table:
        """Table of row, topic, partition, code, error, message, group and stored of each rejected row, in the table's order.

        If the wait for an unknown topic or partition timed out, code, error and group are those of the cause, UNKNOWN_TOPIC_OR_PARTITION.
        `errors` has the TimeoutException.
        """
        tps = {row: part.topic_partition for part in self._rejected for row in part.each()}
        entries = sorted(self.errors().items())
        classified = [_classified_error(error) for _, error in entries]
        columns: dict[str, list[Any]] = {
            "row": [row for row, _ in entries],
            "topic": [tps[row].topic for row, error in entries],
            "partition": [tps[row].partition for row, error in entries],
            "code": [error.code.number for error in classified],
            "error": [error.name for error in classified],
            "message": [error.message for row, error in entries],
            "group": [group_of(error).value for error in classified],
            "stored": [error.stored.value for row, error in entries],
        }
        return pa.table(columns, schema=REJECTED_SCHEMA)

    def errors(self) -> dict[int, KafkaException]:
        """The errors of the rejected rows.

        Returns:
            The KafkaException of each rejected row, by row number in the table.
        """
        return {row: error for part in self._rejected for row, error in part.each().items()}

    def __repr__(self) -> str:
        dropped = f", dropped={len(self.dropped)}" if self.dropped else ""
        return f"SendTableResult(written={self.written}, rejected={self.rejected_count}{dropped})"


def _classified_error(error: KafkaException) -> KafkaException:
    """The error that a row's code and group are taken from."""
    cause = error.__cause__
    return cause if isinstance(error, TimeoutException) and isinstance(cause, UnknownTopicOrPartitionException) else error


class TableOutcome:
    """Collects the outcome of one table. The caller's thread may reject rows, and the sender thread completes them.

    Rows are announced with `add` before they get an outcome; `complete` is called after the last ones. Guarded only by the lock of futures:
    a signal handler that interrupts a thread which holds it gets an error, and does not wait for the sender thread.
    """

    def __init__(self, future: RecordFuture[SendTableResult]) -> None:
        self.future = future
        self._row_count = 0
        # Number of rows without an outcome, plus one until the last rows are announced.
        self._open_count = 1
        self._written: list[_Written] = []
        self._rejected: list[_Rejected] = []
        self._dropped: list[Rows] = []

    def add(self, count: int) -> int:
        """Announce the next rows. Returns the number of the first one."""
        with SHARED_LOCK:
            first = self._row_count
            self._row_count += count
            self._open_count += count
        return first

    def complete(self) -> None:
        """All rows are announced."""
        self._settle(1)

    @property
    def row_count(self) -> int:
        """Rows announced so far."""
        return self._row_count

    def written(self, rows: Rows, partition: int, base_offset: int) -> None:
        """These rows are written, the first at `base_offset`, the others after it."""
        first, last = int(rows[0]), int(rows[-1])
        are_neighbours = last - first == len(rows) - 1  # They ascend.
        with SHARED_LOCK:
            self._written.append(_Written(range(first, last + 1) if are_neighbours else rows, partition, base_offset))
        self._settle(len(rows))

    def rejected(self, rows: Rows, topic_partition: TopicPartition, error: KafkaException) -> None:
        """These rows failed, all with the same error."""
        if len(rows):
            rejected = _Rejected(rows, topic_partition, dict.fromkeys(range(len(rows)), error))
            with SHARED_LOCK:
                self._rejected.append(rejected)
            self._settle(len(rows))

    def dropped(self, rows: Rows) -> None:
        """These rows were dropped."""
        with SHARED_LOCK:
            self._dropped.append(rows)
        self._settle(len(rows))

    def failed(
        self,
        rows: Rows,
        topic_partition: TopicPartition,
        error: KafkaException | None,
        errors: Mapping[int, KafkaException],
        dropped: frozenset[int],
    ) -> None:
        """Rows of a batch failed: those at the indices in `errors` with their own error, the others with `error`, if there is one.

        Those at the indices in `dropped` were dropped.
        """
        if dropped:
            self.dropped(rows[sorted(dropped)])
        if errors:
            with SHARED_LOCK:
                self._rejected.append(_Rejected(rows, topic_partition, errors))
            self._settle(len(errors))
        if error is not None:
            completed = [*errors, *dropped]
            self.rejected(np.delete(rows, completed) if completed else rows, topic_partition, error)

    def _settle(self, count: int) -> None:
        with SHARED_LOCK:
            self._open_count -= count
            is_done = self._open_count == 0
            assert self._open_count >= 0, f"{-self._open_count} rows got two outcomes"
        if is_done:
            self.future.complete(SendTableResult(self._row_count, self._written, self._rejected, self._dropped))
