"""Sending a whole table: split by topic and partition, encoded batch by batch on the caller's thread, handed to the accumulator.

The sender thread is sending the first batches while the next are being made; both run outside Python's lock for most of their time. A
table's rows become columns, are measured, partitioned and encoded piece by piece, so that the first batches leave at once; those without
keys, which may go anywhere, fill one batch after the other and are not measured before. Looked at as a
whole are before that only types, how many bytes there are, and the columns partition and topic. The records of two kinds of tables are
made columns all at once, too: those that may be refused for a value (with headers, or timestamps in seconds), so that nothing is sent of
one that is, and those for several topics. A stream is read piece by piece, each as a table of its own, and waits with its reading while
`buffer.memory` is full; a piece of a slow one is what came in a short time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chaffinch.errors import InvalidTimestampException, KafkaException, Stored, UnknownTopicOrPartitionException
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core.batches.accumulator import BATCH_OVERHEAD_BYTES
from chaffinch.producer.core.batches.batch import ProducerBatch
from chaffinch.producer.core.refusals.record_errors import ScreenedErrors
from chaffinch.producer.door import Door
from chaffinch.producer.futures import RecordFuture
from chaffinch.producer.handler_calls import Stop
from chaffinch.producer.records import ProducerRecord
from chaffinch.producer.tables.columns import GATHERED_MS, TableParts, check_columns, pieces_of, read_table
from chaffinch.producer.tables.result import SendTableResult, TableOutcome
from chaffinch.producer.tables.split import Run, piece_bounds, record_bytes, rows_by_topic, runs
from chaffinch.records.byte_columns import Bytes
from chaffinch.records.columns import RECORD_BYTES_MIN, RecordColumns

Rows = npt.NDArray[np.int64]
NO_PARTITION = -1


class _Share(NamedTuple):
    """The rows of a piece for one topic (None: all), and the partitions they ask for, if any does (-1: none)."""

    topic: str
    rows: Rows | None
    asked: Rows | None

    def row(self, index: int) -> int:
        """The row of the piece that is this one's number `index`."""
        return index if self.rows is None else int(self.rows[index])

    @property
    def highest(self) -> int:
        return NO_PARTITION if self.asked is None else int(self.asked.max())


class _Waited(NamedTuple):
    """What came of waiting: why no row of a topic can be sent, and why none to partitions that it has not."""

    stop: Stop | None
    beyond: Stop | None
    waited_ms: int


NOT_WAITED = _Waited(None, None, 0)


@dataclass(slots=True)
class _Piece:
    """Neighbouring rows of one topic."""

    topic: str
    columns: RecordColumns
    numbers: Rows
    """In the table."""
    asked: Rows | None
    """The partitions that they ask for, as in `_Share`."""
    partition_count: int
    """As far as is known."""
    waited: _Waited


def send_table(
    door: Door, topic: str | None, table: Any, batch_bytes: int, linger_ms: int, timestamp_default_ms: int
) -> RecordFuture[SendTableResult]:
    """All rows of a table; the future has the outcome of each. InvalidColumn and TypeError for what is no table of records.

    A stream that fails half-way raises at the call; rows before the failure are on their way then, and the error says how many.
    """
    sending = _Sending(door, batch_bytes)
    schema, pieces = pieces_of(table, sending.batch_bytes, door.clock.steady_ms, max(linger_ms, GATHERED_MS))
    check_columns(schema, topic)
    try:
        for piece in pieces:
            if piece.num_rows:
                sending.send(topic, read_table(piece, timestamp_default_ms, sending.outcome.row_count))
    except BaseException as failure:
        door.left()
        if sending.handed_over:
            failure.add_note(f"{sending.handed_over} rows before this were handed over, and are sent")
        raise
    finally:
        sending.outcome.complete()
    return sending.outcome.future


class _Sending:
    """One table on its way through the door."""

    def __init__(self, door: Door, batch_bytes: int) -> None:
        self.outcome = TableOutcome(door.new_future())
        self.handed_over = 0
        """Rows that are on their way."""
        self._handed_over_ms = 0
        """When the caller, or its stream, had given all rows of the piece that is being sent."""
        self._lacking_since_ms: dict[str, int] = {}
        """Topics waited for in vain, so that a stream does not wait again for each of its pieces."""
        limits = (batch_bytes, door.request_bytes_max, door.core.accumulator.memory_bytes)
        self.batch_bytes = max(1, min(limits) - BATCH_OVERHEAD_BYTES)
        self._record_bytes_max = min(limits[1:]) - BATCH_OVERHEAD_BYTES
        self._door = door
        self._begun = door.begun()

    def send(self, topic: str | None, parts: TableParts) -> None:
        """All rows of one piece: first those that can go at once, then those whose topics or partitions are to be waited for."""
        self._handed_over_ms = self._door.clock.steady_ms()
        shares = [
            _Share(name, rows, parts.partitions if parts.partitions is None or rows is None else parts.partitions[rows])
            for name, rows in rows_by_topic(parts.topics, topic, self.outcome.row_count)
        ]
        first = self.outcome.add(parts.count)
        lacking = {share.topic: share for share in shares if self._is_lacking(share)}
        for share in shares:
            if share.topic not in lacking:
                self._send_share(share, parts, first, NOT_WAITED)
        for share, waited in zip(lacking.values(), self._wait_for(list(lacking.values()), parts), strict=True):
            self._send_share(share, parts, first, waited)

    def _is_lacking(self, share: _Share) -> bool:
        """Whether its topic, or a partition that it asks for, is not known."""
        with self._door.lock:
            if self._door.refusal("send_table") is not None:
                return False
            count = self._door.core.wiring.cluster.partition_count(share.topic)
        return count is None or count <= share.highest

    def _wait_for(self, lacking: list[_Share], parts: TableParts) -> list[_Waited]:
        """Wait for all of them together: each is asked for from the beginning on."""
        door, steady_ms = self._door, self._door.clock.steady_ms()
        door.ask_for_topics([share.topic for share in lacking])
        found = []
        for share in lacking:
            since_ms = self._lacking_since_ms.setdefault(share.topic, steady_ms)
            # One answer for all of them: the first row stands for the topic, the first one for the highest partition for its like.
            stop = door.wait_for_topic(share.topic, None, _record_in(parts, share.topic, share.row(0)), since_ms, "send_table")
            beyond: Stop | None = None
            if stop is None and self._is_lacking(share):
                assert share.asked is not None, "it asks for a partition"
                record_of = _record_in(parts, share.topic, share.row(int(share.asked.argmax())))
                beyond = door.wait_for_topic(share.topic, share.highest, record_of, since_ms, "send_table")
            if stop is None and beyond is None:
                del self._lacking_since_ms[share.topic]
            found.append(_Waited(stop, beyond, door.clock.steady_ms() - since_ms))
        return found

    def _send_share(self, share: _Share, parts: TableParts, first: int, waited: _Waited) -> None:
        """The rows of one topic; `first` is the number of the piece's first row in the table."""
        door, cluster, topic, rows = self._door, self._door.core.wiring.cluster, share.topic, share.rows
        count = parts.count if rows is None else len(rows)
        with door.lock:
            stop: Stop | None = door.refusal("send_table") or waited.stop
            partition_count = cluster.partition_count(topic)
        while stop is None and partition_count is None:  # Only for a topic that goes just when it has come.
            stop = door.wait_for_topic(topic, None, _record_in(parts, topic, share.row(0)), call="send_table")
            partition_count = cluster.partition_count(topic)
        if stop is not None:
            self._stop((np.arange(count) if rows is None else rows) + first, TopicPartition(topic, NO_PARTITION), stop)
            return
        assert partition_count is not None, "it is known, or there is a reason to stop"
        taken = None if rows is None else parts.columns.take(rows)
        mean_bytes = parts.record_bytes if taken is None else record_bytes(taken)
        for start, end in pairwise(piece_bounds(count, mean_bytes, partition_count, self.batch_bytes)):
            columns = parts.rows(start, end) if taken is None else taken.slice(start, end)
            numbers = np.arange(first + start, first + end) if rows is None else rows[start:end] + first
            asked_here = None if share.asked is None else share.asked[start:end]
            self._send_piece(_Piece(topic, columns, numbers, asked_here, partition_count, waited))

    def _send_piece(self, piece: _Piece) -> None:
        door, topic, asked = self._door, piece.topic, piece.asked
        with door.lock:
            # It may grow while a table is sent; should it be deleted, its rows hear of that like records that wait already.
            piece.partition_count = partition_count = door.core.wiring.cluster.partition_count(topic) or piece.partition_count
            with_leader = door.core.availability.partitions(topic)
            reasons = door.core.screening.of_rows(topic, self._handed_over_ms, door.clock.steady_ms())
        if asked is None and not reasons and door.core.partitioner.spreads(piece.columns) and piece.columns.timestamps.min() >= 0:
            self._fill_batches(piece, door.core.partitioner.turns(partition_count, with_leader))
            if not piece.columns.count:
                return
        columns, sizes = piece.columns, piece.columns.sizes()
        partitions: npt.NDArray[Any]
        if asked is not None and (asked >= 0).all():
            partitions = asked
        else:
            choose = door.core.partitioner.choose_for_columns
            partitions = choose(topic, columns, partition_count, with_leader, self.batch_bytes, sizes)
            if asked is not None:
                partitions = np.where(asked >= 0, asked, partitions)
        limits, stays = (self._record_bytes_max, 0, partition_count), None
        if sizes.max() > limits[0] or columns.timestamps.min() < limits[1] or partitions.max() >= limits[2]:
            bad = (sizes > limits[0]) | (columns.timestamps < limits[1]) | (partitions >= limits[2])
            self._set_aside(piece, partitions, sizes, np.flatnonzero(bad))
            stays = ~bad
        if reasons and columns.key_valid is not None:
            stays = self._screen(piece, partitions, columns.key_valid, reasons, stays)
        for run in runs(columns, piece.numbers, partitions, partition_count, self.batch_bytes, sizes, stays):
            self._send_run(topic, run, True if asked is None else asked[np.searchsorted(piece.numbers, run.rows)] < 0)

    def _fill_batches(self, piece: _Piece, turns: Iterator[int]) -> None:
        """Send rows that may go anywhere, batch by batch, with one look at each row, up to one that is larger than a batch. The piece
        keeps the others."""
        columns, numbers = piece.columns, piece.numbers
        start, most = 0, self.batch_bytes // RECORD_BYTES_MIN + 1
        while start < columns.count:
            # No more rows than could fit: where they have headers, to slice them takes as long as there are rows.
            data, count = self._door.core.accumulator.encode_first_rows(columns.slice(start, start + most), self.batch_bytes)
            if not count:
                break
            end = start + count
            self._hand_over(TopicPartition(piece.topic, next(turns)), columns.slice(start, end), numbers[start:end], data)
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
        """Fail the rows without a key for the partitions that have a reason for it; which of all rows stay, of those that do so far."""
        stays = np.ones(piece.columns.count, bool) if stays is None else stays
        keyless = np.flatnonzero((key_valid == 0) & stays)
        theirs = partitions[keyless]
        failed = 0
        for partition in np.unique(theirs).tolist():
            if partition in reasons:
                chosen = keyless[theirs == partition]
                stays[chosen] = False
                rows, place = piece.numbers[chosen], TopicPartition(piece.topic, partition)
                self.outcome.failed(rows, place, None, ScreenedErrors(range(len(rows)), rows, place, reasons[partition]), frozenset())
                failed += len(rows)
        with self._door.lock:
            self._door.core.screening.failed(failed)
        return stays

    def _set_aside(self, piece: _Piece, partitions: npt.NDArray[Any], sizes: Rows, bad: Rows) -> None:
        """Stop rows that cannot be sent whatever the broker says, `bad` by index."""
        topic, columns = piece.topic, piece.columns
        for index in bad.tolist():
            place = TopicPartition(topic, int(partitions[index]))
            if partitions[index] >= piece.partition_count:
                stop = self._beyond(place, piece.waited)
            elif sizes[index] > self._record_bytes_max:
                record_of = _record_of(topic, columns, partitions, index)
                found = self._door.too_large(place, int(sizes[index]), columns.key(index), record_of)
                assert found is not None, "a record above the limit is stopped"
                stop = found
            else:
                text = f"timestamp {columns.timestamps[index]} ms lies before 1970"
                stop = InvalidTimestampException(text, topic_partition=place, stored=Stored.NO, api="Produce")
            self._stop(piece.numbers[index : index + 1], place, stop)

    def _beyond(self, place: TopicPartition, waited: _Waited) -> Stop:
        """Why not to a partition that the topic has not: what was heard of the highest one, with this one's own number."""
        stop, reasons = waited.beyond, self._door.core.reasons
        if isinstance(stop, UnknownTopicOrPartitionException):
            own: KafkaException | None = reasons.unknown_topic(place.topic, place.partition, 0)
        elif stop is None or (isinstance(stop, KafkaException) and isinstance(stop.__cause__, UnknownTopicOrPartitionException)):
            return reasons.waited_in_vain(place.topic, place.partition, waited.waited_ms)
        else:
            return stop
        if own is None:
            return stop
        own.__cause__ = stop.__cause__
        return own

    def _send_run(self, topic: str, run: Run, chosen: bool | npt.NDArray[np.bool_]) -> None:
        data = self._door.core.accumulator.encode_rows(run.columns, run.size_max)
        self._hand_over(TopicPartition(topic, run.partition), run.columns, run.rows, data, chosen)

    def _hand_over(
        self, place: TopicPartition, columns: RecordColumns, rows: Rows, data: bytearray, chosen: bool | npt.NDArray[np.bool_] = True
    ) -> None:
        """A batch to the sender: these records, encoded, which are these rows of the table. `chosen`: as in ProducerBatch."""
        door = self._door
        batch = ProducerBatch(
            topic_partition=place,
            receipt=self.outcome,
            rows=rows,
            timestamps=columns.timestamps,
            data=data,
            created_ms=door.clock.steady_ms(),
            position=0,
            memory_bytes=len(data),
            key_valid=columns.key_valid,
            handed_over_ms=self._handed_over_ms,
            chosen=chosen,
        )
        with door.lock:
            stop = door.refusal("send_table")
            if stop is None and not door.core.accumulator.has_room_for(len(data)):
                stop = door.wait_for_memory(len(data), call="send_table", place=place)
            wants_look = stop is not None or door.core.append_batch(batch, door.clock.steady_ms())
        if stop is not None:
            self._stop(rows, place, stop)
        else:
            self.handed_over += len(rows)
        if wants_look:
            door.wakeup()

    def _stop(self, rows: Rows, place: TopicPartition, stop: Stop) -> None:
        told = self._door.stopped(stop, self._begun, len(rows), "send_table")
        if isinstance(told, KafkaException):
            self.outcome.rejected(rows, place, told)
        else:
            self.outcome.dropped(rows)


def _record_in(parts: TableParts, topic: str, row: int) -> Callable[[], ProducerRecord]:
    """A row of a piece, if it is asked for."""
    asked = None if parts.partitions is None else parts.partitions[row : row + 1]
    return lambda: _record_of(topic, parts.rows(row, row + 1), asked, 0)()


def _record_of(topic: str, columns: RecordColumns, partitions: npt.NDArray[Any] | None, index: int) -> Callable[[], ProducerRecord]:
    def record() -> ProducerRecord:
        partition = None if partitions is None or partitions[index] < 0 else int(partitions[index])
        timestamp_ms = int(columns.timestamps[index])
        return ProducerRecord(topic, columns.value(index), columns.key(index), partition, timestamp_ms, columns.headers(index))

    return record
