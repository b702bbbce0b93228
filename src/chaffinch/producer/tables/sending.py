"""send_table: splits a table by topic and partition, encodes record batches on the caller's thread, and hands them to the accumulator.

The sender thread sends the first batches while the next ones are made; both run without the GIL for most of the time.

- Rows are converted to columns, measured, partitioned and encoded piece by piece, so that the first batches are sent at once.
- Rows without keys, which may go to any partition, fill one batch after the other and are not measured first.
- Before that only types, the total size, and the columns partition and topic are checked for the whole table.
- All records are converted at once if a value may be refused (headers, timestamps in seconds), so that no row of a refused table is sent.
  The same applies to a table for several topics.
- A stream is read piece by piece, each like a table, and is not read while `buffer.memory` is full. A piece of a slow stream holds the rows
  that arrived within a short time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from chaffinch.errors import InvalidTimestampException, KafkaException, Stored, UnknownTopicOrPartitionException
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core.batches.accumulator import BATCH_OVERHEAD_BYTES
from chaffinch.producer.core.batches.batch import ProducerBatch
from chaffinch.producer.core.refusals.record_errors import ScreenedErrors
from chaffinch.producer.futures import RecordFuture
from chaffinch.producer.handler_calls import Stop
from chaffinch.producer.records import ProducerRecord
from chaffinch.producer.send_gate import SendGate
from chaffinch.producer.tables.columns import GATHERED_MS, TableParts, check_columns, pieces_of, read_table
from chaffinch.producer.tables.result import SendTableResult, TableOutcome
from chaffinch.producer.tables.split import Run, piece_bounds, record_bytes, rows_by_topic, runs
from chaffinch.records.byte_columns import Bytes
from chaffinch.records.columns import RECORD_BYTES_MIN, RecordColumns

Rows = npt.NDArray[np.int64]
NO_PARTITION = -1
T = TypeVar("T")


class _TopicRows(NamedTuple):
    """The rows of a piece for one topic (None: all rows), and their requested partitions, if any (-1: none)."""

    topic: str
    rows: Rows | None
    requested: Rows | None

    def row(self, index: int) -> int:
        """The row of the piece at position `index` of these rows."""
        return index if self.rows is None else int(self.rows[index])

    @property
    def highest(self) -> int:
        return NO_PARTITION if self.requested is None else int(self.requested.max())


class _WaitResult(NamedTuple):
    """Result of a wait for metadata: why no row of the topic can be sent, and why none to partitions that do not exist."""

    stop: Stop | None
    beyond: Stop | None
    waited_ms: int


NOT_WAITED = _WaitResult(None, None, 0)


@dataclass(slots=True)
class _Piece:
    """Consecutive rows of one topic."""

    topic: str
    columns: RecordColumns
    numbers: Rows
    """Row numbers in the table."""
    requested: Rows | None
    """The requested partitions, as in `_TopicRows`."""
    partition_count: int
    """Number of partitions, as far as known."""
    waited: _WaitResult


def send_table(
    gate: SendGate, topic: str | None, table: Any, batch_bytes: int, linger_ms: int, timestamp_default_ms: int
) -> RecordFuture[SendTableResult]:
    """Send all rows of a table; the future has the outcome of each. Raises InvalidColumn and TypeError for an unsuitable table.

    If a stream fails, its exception is raised, with a note about the number of rows that were handed over before and are sent.
    """
    steps, result = send_steps(gate, topic, table, batch_bytes, linger_ms, timestamp_default_ms), None
    try:
        while True:
            try:
                step = steps.send(result)
            except StopIteration as done:
                future: RecordFuture[SendTableResult] = done.value
                return future
            result = _hand_over(gate, step) if isinstance(step, ProducerBatch) else gate.wait_for_topic(*step)
    except BaseException as failure:  # Perhaps KeyboardInterrupt between two steps; after the end of the steps this has no effect.
        steps.throw(failure)
        raise


class TopicWait(NamedTuple):
    """Step of a send: wait until a topic, or a partition of it, is known. The fields are the arguments of `SendGate.wait_for_topic`."""

    topic: str
    partition: int | None
    record_of: Callable[[], ProducerRecord]
    started_ms: int | None = None
    call: str = "send_table"


Steps: TypeAlias = Generator["TopicWait | ProducerBatch", "Stop | None", T]
"""Steps that may have to wait, for the shell to carry out: a wait for metadata, or a batch to hand over once there is memory for it. The
shell sends back why the step was not possible, or None."""


def send_steps(
    gate: SendGate, topic: str | None, table: Any, batch_bytes: int, linger_ms: int, timestamp_default_ms: int
) -> Steps[RecordFuture[SendTableResult]]:
    """The steps of `send_table`, which do not wait themselves."""
    sending = _TableSend(gate, batch_bytes)
    schema, pieces = pieces_of(table, sending.batch_bytes, gate.clock.steady_ms, max(linger_ms, GATHERED_MS))
    check_columns(schema, topic)
    try:
        for piece in pieces:
            if piece.num_rows:
                yield from sending.send(topic, read_table(piece, timestamp_default_ms, sending.outcome.row_count))
    except BaseException as failure:
        gate.left()
        if sending.handed_over:
            failure.add_note(f"{sending.handed_over} rows before this one were handed over and are sent")
        raise
    finally:
        sending.outcome.complete()
    return sending.outcome.future


def _hand_over(gate: SendGate, batch: ProducerBatch) -> Stop | None:
    """Hand a batch over to the accumulator once there is memory for it."""
    with gate.lock:
        stop = gate.refusal("send_table")
        if stop is None and not gate.core.accumulator.has_memory_for(len(batch.data)):
            stop = gate.wait_for_memory(len(batch.data), call="send_table", tp=batch.topic_partition)
        needs_wakeup = stop is not None or gate.core.append_batch(batch, gate.clock.steady_ms())
    if needs_wakeup:
        gate.wakeup()
    return stop


class _TableSend:
    """One call of send_table."""

    def __init__(self, gate: SendGate, batch_bytes: int) -> None:
        self.outcome = TableOutcome(gate.new_future())
        self.handed_over = 0
        """Number of rows handed to the accumulator."""
        self._handed_over_ms = 0
        """When the caller, or its stream, had handed over all rows of the current piece."""
        self._unknown_since_ms: dict[str, int] = {}
        """Topics that a wait did not find, so that a stream does not wait again for each of its pieces."""
        limits = (batch_bytes, gate.request_bytes_max, gate.core.accumulator.memory_bytes)
        self.batch_bytes = max(1, min(limits) - BATCH_OVERHEAD_BYTES)
        self._record_bytes_max = min(limits[1:]) - BATCH_OVERHEAD_BYTES
        self._gate = gate
        self._transaction_number = gate.transaction_number()

    def send(self, topic: str | None, parts: TableParts) -> Steps[None]:
        """Send all rows of one piece: first those of known topics and partitions, then those that have to wait for metadata."""
        self._handed_over_ms = self._gate.clock.steady_ms()
        all_topic_rows = [
            _TopicRows(name, rows, parts.partitions if parts.partitions is None or rows is None else parts.partitions[rows])
            for name, rows in rows_by_topic(parts.topics, topic, self.outcome.row_count)
        ]
        first = self.outcome.add(parts.count)
        unknown = {topic_rows.topic: topic_rows for topic_rows in all_topic_rows if self._is_unknown(topic_rows)}
        for topic_rows in all_topic_rows:
            if topic_rows.topic not in unknown:
                yield from self._send_topic_rows(topic_rows, parts, first, NOT_WAITED)
        all_waited = yield from self._wait_for(list(unknown.values()), parts)
        for topic_rows, waited in zip(unknown.values(), all_waited, strict=True):
            yield from self._send_topic_rows(topic_rows, parts, first, waited)

    def _is_unknown(self, topic_rows: _TopicRows) -> bool:
        """Whether the topic, or a requested partition, is unknown."""
        with self._gate.lock:
            if self._gate.refusal("send_table") is not None:
                return False
            count = self._gate.core.context.cluster.partition_count(topic_rows.topic)
        return count is None or count <= topic_rows.highest

    def _wait_for(self, unknown: list[_TopicRows], parts: TableParts) -> Steps[list[_WaitResult]]:
        """Wait for all unknown topics together: their metadata is requested at once."""
        gate, steady_ms = self._gate, self._gate.clock.steady_ms()
        gate.request_topics([topic_rows.topic for topic_rows in unknown])
        found = []
        for topic_rows in unknown:
            since_ms = self._unknown_since_ms.setdefault(topic_rows.topic, steady_ms)
            # One decision for all rows: the first row stands for the topic, the first row of the highest partition for missing partitions.
            stop = yield TopicWait(topic_rows.topic, None, _record_in(parts, topic_rows.topic, topic_rows.row(0)), since_ms)
            beyond: Stop | None = None
            if stop is None and self._is_unknown(topic_rows):
                assert topic_rows.requested is not None, "a partition is requested"
                record_of = _record_in(parts, topic_rows.topic, topic_rows.row(int(topic_rows.requested.argmax())))
                beyond = yield TopicWait(topic_rows.topic, topic_rows.highest, record_of, since_ms)
            if stop is None and beyond is None:
                del self._unknown_since_ms[topic_rows.topic]
            found.append(_WaitResult(stop, beyond, gate.clock.steady_ms() - since_ms))
        return found

    def _send_topic_rows(self, topic_rows: _TopicRows, parts: TableParts, first: int, waited: _WaitResult) -> Steps[None]:
        """Send the rows of one topic. `first`: number of the piece's first row in the table."""
        gate, cluster, topic, rows = self._gate, self._gate.core.context.cluster, topic_rows.topic, topic_rows.rows
        count = parts.count if rows is None else len(rows)
        with gate.lock:
            stop: Stop | None = gate.refusal("send_table") or waited.stop
            partition_count = cluster.partition_count(topic)
        while stop is None and partition_count is None:  # Only if the topic is deleted right after it has become known.
            stop = yield TopicWait(topic, None, _record_in(parts, topic, topic_rows.row(0)))
            partition_count = cluster.partition_count(topic)
        if stop is not None:
            self._not_sent((np.arange(count) if rows is None else rows) + first, TopicPartition(topic, NO_PARTITION), stop)
            return
        assert partition_count is not None, "it is known, or there is a reason to stop"
        taken = None if rows is None else parts.columns.take(rows)
        mean_bytes = parts.record_bytes if taken is None else record_bytes(taken)
        for start, end in pairwise(piece_bounds(count, mean_bytes, partition_count, self.batch_bytes)):
            columns = parts.rows(start, end) if taken is None else taken.slice(start, end)
            numbers = np.arange(first + start, first + end) if rows is None else rows[start:end] + first
            requested_here = None if topic_rows.requested is None else topic_rows.requested[start:end]
            yield from self._send_piece(_Piece(topic, columns, numbers, requested_here, partition_count, waited))

    def _send_piece(self, piece: _Piece) -> Steps[None]:
        gate, topic, requested = self._gate, piece.topic, piece.requested
        with gate.lock:
            # The topic may grow while a table is sent. If it is deleted, the rows are handled like waiting records.
            piece.partition_count = partition_count = gate.core.context.cluster.partition_count(topic) or piece.partition_count
            with_leader = gate.core.availability.partitions(topic)
            reasons = gate.core.screening.of_rows(topic, self._handed_over_ms, gate.clock.steady_ms())
        if requested is None and not reasons and gate.core.partitioner.spreads(piece.columns) and piece.columns.timestamps.min() >= 0:
            yield from self._fill_batches(piece, gate.core.partitioner.turns(partition_count, with_leader))
            if not piece.columns.count:
                return
        columns, sizes = piece.columns, piece.columns.sizes()
        partitions: npt.NDArray[Any]
        if requested is not None and (requested >= 0).all():
            partitions = requested
        else:
            choose = gate.core.partitioner.choose_for_columns
            partitions = choose(topic, columns, partition_count, with_leader, self.batch_bytes, sizes)
            if requested is not None:
                partitions = np.where(requested >= 0, requested, partitions)
        limits, stays = (self._record_bytes_max, 0, partition_count), None
        if sizes.max() > limits[0] or columns.timestamps.min() < limits[1] or partitions.max() >= limits[2]:
            bad = (sizes > limits[0]) | (columns.timestamps < limits[1]) | (partitions >= limits[2])
            self._reject_rows(piece, partitions, sizes, np.flatnonzero(bad))
            stays = ~bad
        if reasons and columns.key_valid is not None:
            stays = self._screen(piece, partitions, columns.key_valid, reasons, stays)
        for run in runs(columns, piece.numbers, partitions, partition_count, self.batch_bytes, sizes, stays):
            yield from self._send_run(topic, run, True if requested is None else requested[np.searchsorted(piece.numbers, run.rows)] < 0)

    def _fill_batches(self, piece: _Piece, turns: Iterator[int]) -> Steps[None]:
        """Send rows that may go to any partition batch by batch, in one pass, up to a row that is larger than a batch.

        The piece keeps the remaining rows.
        """
        columns, numbers = piece.columns, piece.numbers
        start, most = 0, self.batch_bytes // RECORD_BYTES_MIN + 1
        while start < columns.count:
            # No more rows than could fit: the time to slice rows with headers grows with their number.
            data, count = self._gate.core.accumulator.encode_first_rows(columns.slice(start, start + most), self.batch_bytes)
            if not count:
                break
            end = start + count
            yield from self._hand_over(TopicPartition(piece.topic, next(turns)), columns.slice(start, end), numbers[start:end], data)
            start = end
        piece.columns, piece.numbers = columns.slice(start, columns.count), numbers[start:]

    def _screen(
        self,
        piece: _Piece,
        partitions: npt.NDArray[Any],
        key_valid: Bytes,
        reasons: Mapping[int, str],
        stays: npt.NDArray[np.bool_] | None,
    ) -> npt.NDArray[np.bool_]:
        """Fail the rows without a key for the partitions in `reasons`. Returns the mask of remaining rows, within the given one."""
        stays = np.ones(piece.columns.count, bool) if stays is None else stays
        keyless = np.flatnonzero((key_valid == 0) & stays)
        theirs = partitions[keyless]
        failed = 0
        for partition in np.unique(theirs).tolist():
            if partition in reasons:
                chosen = keyless[theirs == partition]
                stays[chosen] = False
                rows, tp = piece.numbers[chosen], TopicPartition(piece.topic, partition)
                self.outcome.failed(rows, tp, None, ScreenedErrors(range(len(rows)), rows, tp, reasons[partition]), frozenset())
                failed += len(rows)
        with self._gate.lock:
            self._gate.core.screening.failed(failed)
        return stays

    def _reject_rows(self, piece: _Piece, partitions: npt.NDArray[Any], sizes: Rows, bad: Rows) -> None:
        """Fail the rows at the indices `bad`, which no broker would accept."""
        topic, columns = piece.topic, piece.columns
        for index in bad.tolist():
            tp = TopicPartition(topic, int(partitions[index]))
            if partitions[index] >= piece.partition_count:
                stop = self._beyond(tp, piece.waited)
            elif sizes[index] > self._record_bytes_max:
                record_of = _record_of(topic, columns, partitions, index)
                found = self._gate.too_large(tp, int(sizes[index]), columns.key(index), record_of)
                assert found is not None, "a record above the limit is stopped"
                stop = found
            else:
                text = f"timestamp {columns.timestamps[index]} ms lies before 1970"
                stop = InvalidTimestampException(text, topic_partition=tp, stored=Stored.NO, api="Produce")
            self._not_sent(piece.numbers[index : index + 1], tp, stop)

    def _beyond(self, tp: TopicPartition, waited: _WaitResult) -> Stop:
        """The error of a row for a missing partition: that of the highest partition, with this one's number."""
        stop, causes = waited.beyond, self._gate.core.wait_causes
        if isinstance(stop, UnknownTopicOrPartitionException):
            own: KafkaException | None = causes.unknown_topic(tp.topic, tp.partition, 0)
        elif stop is None or (isinstance(stop, KafkaException) and isinstance(stop.__cause__, UnknownTopicOrPartitionException)):
            return causes.topic_timeout(tp.topic, tp.partition, waited.waited_ms)
        else:
            return stop
        if own is None:
            return stop
        own.__cause__ = stop.__cause__
        return own

    def _send_run(self, topic: str, run: Run, chosen: bool | npt.NDArray[np.bool_]) -> Steps[None]:
        data = self._gate.core.accumulator.encode_rows(run.columns, run.size_max)
        yield from self._hand_over(TopicPartition(topic, run.partition), run.columns, run.rows, data, chosen)

    def _hand_over(
        self, tp: TopicPartition, columns: RecordColumns, rows: Rows, data: bytearray, chosen: bool | npt.NDArray[np.bool_] = True
    ) -> Steps[None]:
        """Hand an encoded batch over: its records are these rows of the table. `chosen`: as in ProducerBatch."""
        stop = yield ProducerBatch(
            topic_partition=tp,
            outcome_sink=self.outcome,
            rows=rows,
            timestamps=columns.timestamps,
            data=data,
            created_ms=self._gate.clock.steady_ms(),
            position=0,
            memory_bytes=len(data),
            key_valid=columns.key_valid,
            handed_over_ms=self._handed_over_ms,
            chosen=chosen,
        )
        if stop is not None:
            self._not_sent(rows, tp, stop)
        else:
            self.handed_over += len(rows)

    def _not_sent(self, rows: Rows, tp: TopicPartition, stop: Stop) -> None:
        outcome = self._gate.stopped(stop, self._transaction_number, len(rows), "send_table")
        if isinstance(outcome, KafkaException):
            self.outcome.rejected(rows, tp, outcome)
        else:
            self.outcome.dropped(rows)


def _record_in(parts: TableParts, topic: str, row: int) -> Callable[[], ProducerRecord]:
    """A function that makes the ProducerRecord of a row of a piece."""
    requested = None if parts.partitions is None else parts.partitions[row : row + 1]
    return lambda: _record_of(topic, parts.rows(row, row + 1), requested, 0)()


def _record_of(topic: str, columns: RecordColumns, partitions: npt.NDArray[Any] | None, index: int) -> Callable[[], ProducerRecord]:
    def record() -> ProducerRecord:
        partition = None if partitions is None or partitions[index] < 0 else int(partitions[index])
        timestamp_ms = int(columns.timestamps[index])
        return ProducerRecord(topic, columns.value(index), columns.key(index), partition, timestamp_ms, columns.headers(index))

    return record
