"""Row validation in a task, before anything is sent: good rows by topic, bad rows with their reasons.

The snapshots of the topics contain the limits (decision 40). The user's exception handler is called for bad rows (`row_handler.py`).
Rows that it swallows are counted as dropped, the others become dead letters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from chaffinch.client.arguments import illegal_topic_error
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core.exception_handler import RetriableResponse
from chaffinch.records import batch as batches
from chaffinch.records.batch import TimestampType
from chaffinch.records.columns import RecordColumns
from chaffinch.records.compression import from_name as compression_from_name
from chaffinch.records.validation import ValidationPolicy, validate_columns
from chaffinch.spark.commit.messages import REJECTIONS_NAMED_MAX, Rejection, StagedBytes, TaskOutcome, add_counts
from chaffinch.spark.snapshot import TopicSnapshot
from chaffinch.spark.tasks.dead_letters import dead_letter_records, rows_stream
from chaffinch.spark.tasks.plan import TaskPlan
from chaffinch.spark.tasks.row_codec import NO_PARTITION, Rows, rows_of
from chaffinch.spark.tasks.staging import StagedWriter

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_BYTES = 16 << 20
"""Rows are processed in chunks of about this size, so that record batches become large although the Arrow batches of Spark are small."""
CHUNK_ROWS = 250_000
"""Row limit of a chunk, for short rows: each bad row of a chunk takes about a hundred extra bytes until its dead letter is staged."""
BAD_ROWS_PER_STEP = 20_000
"""Dead letters are built in steps of this many rows. With 15 headers each they take some 50 MB; those of a whole chunk could take
gigabytes."""
LOG_APPEND_TIME = "LogAppendTime"
_NO_TOPIC = "the row has no topic and the option topic is not set; set it in a replay with --to or --repair topic=..."
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


class GoodRows(NamedTuple):
    """Valid rows of one topic: those of `columns` at `picked`, ascending; None: all.

    `rows` int64[n]: their numbers in the task; `partitions`: their target partitions.
    """

    snapshot: TopicSnapshot
    rows: Int64s
    columns: RecordColumns
    partitions: Int32s
    picked: Int64s | None


class BadRows:
    """Rejected rows of a task: counts them, keeps the first reasons, and makes dead letters.

    `write_dead_letters` receives dead letters for the topic; rows for Parquet go to `writer`.
    """

    def __init__(self, plan: TaskPlan, writer: StagedWriter, write_dead_letters: Callable[[RecordColumns, TopicSnapshot], None]) -> None:
        self.rejected_by_code: Counter[str] = Counter()
        self.dropped_by_code: Counter[str] = Counter()
        self.named: list[Rejection] = []
        self._plan = plan
        self._writer = writer
        self._write_dead_letters = write_dead_letters
        self._dead_row_spans: list[tuple[int, int]] = []

    def add(self, columns: RecordColumns, rejections: Sequence[Rejection], swallowed: frozenset[int] = frozenset()) -> None:
        """Row i of `columns` becomes a dead letter for `rejections[i]`, or is dropped if i is in `swallowed`."""
        self.dropped_by_code.update(rejections[index].code.name for index in swallowed)
        if swallowed:
            not_swallowed = [index for index in range(len(rejections)) if index not in swallowed]
            columns, rejections = columns.take(np.array(not_swallowed, np.int64)), [rejections[index] for index in not_swallowed]
        add_counts(self.rejected_by_code, Counter(rejection.count_name for rejection in rejections))
        self.named.extend(rejection.brief() for rejection in rejections[: REJECTIONS_NAMED_MAX - len(self.named)])
        for start in range(0, len(rejections), BAD_ROWS_PER_STEP):
            stop = min(start + BAD_ROWS_PER_STEP, len(rejections))
            self._write_rejected(columns.slice(start, stop), rejections[start:stop])

    def _write_rejected(self, columns: RecordColumns, rejections: Sequence[Rejection]) -> None:
        plan = self._plan
        if plan.dead_letter_target is not None:
            records = dead_letter_records(columns, rejections, plan.origin, plan.dead_letter_target, plan.wall_ms)
            self._write_dead_letters(records, plan.dead_letter_target)
        if plan.options.dead_letter_path is not None:
            self._dead_row_spans.append(self._writer.append(rows_stream(columns, rejections, plan.origin)))

    def staged_dead_rows(self) -> tuple[StagedBytes, ...]:
        """The dead letters for the Parquet file, as staged bytes. Call it after the writer is closed."""
        return tuple(self._writer.staged(span) for span in self._dead_row_spans)


class RowCheck:
    """Validates the rows of one task, chunk by chunk."""

    def __init__(self, plan: TaskPlan, bad_rows: BadRows) -> None:
        self.row_count = 0
        self._plan = plan
        self._bad_rows = bad_rows
        self._compression = compression_from_name(plan.options.compression_type)
        self._snapshots: dict[str, TopicSnapshot | None] = {}
        self._swallowed_topics: set[str] = set()
        self._has_waited = False
        # Rows with null keys go to one partition until about one batch is full.
        self._sticky = plan.origin.first_partition

    def good(self, arrow_batches: Iterable[pa.RecordBatch]) -> Iterator[GoodRows]:
        """Validate the rows and yield the good ones. Raises the exceptions of `snapshot_of`."""
        for data in _chunks(arrow_batches):
            self._has_waited = False
            options = self._plan.options
            rows = rows_of(data, options.topic, timestamp_default_ms=self._plan.wall_ms, reason_column=options.reason_column)
            self._reject_with_reasons(rows)
            for topic, indices in _by_topic(rows):
                yield from self._of_topic(topic, rows, indices)
            self.row_count += len(rows)

    def outcome(self) -> TaskOutcome:
        """The outcome of the rows so far, without the written batches. Call it after the writer of the bad rows is closed."""
        bad_rows = self._bad_rows
        return TaskOutcome(
            context=self._plan.context,
            row_count=self.row_count,
            dead_rows=bad_rows.staged_dead_rows(),
            rejected_by_code=dict(bad_rows.rejected_by_code),
            dropped_by_code=dict(bad_rows.dropped_by_code),
            rejections=tuple(bad_rows.named),
            snapshots=tuple(snapshot for snapshot in self._snapshots.values() if snapshot is not None),
        )

    def _reject_with_reasons(self, rows: Rows) -> None:
        """Reject the rows that contain their own reason, whatever their other faults. The handler is not called for them."""
        if not rows.reasons:
            return
        indices = np.array(list(rows.reasons), np.int64)
        rejections = [
            Rejection(
                row=index + self.row_count,
                topic_partition=TopicPartition(rows.topic_at(index) or "", -1),
                code=codes.INVALID_RECORD,
                message=reason,
                is_from_row=True,
            )
            for index, reason in rows.reasons.items()
        ]
        self._bad_rows.add(rows.columns.take(indices), rejections)

    def _of_topic(self, topic: str | None, rows: Rows, indices: Int64s) -> Iterator[GoodRows]:
        """Validate rows of one topic; `indices` are their positions in the chunk, ascending."""
        columns = rows.columns if len(indices) == len(rows) else rows.columns.take(indices)
        numbers = indices + self.row_count
        if topic is None:
            self._reject_all(columns, numbers, TopicPartition("", -1), codes.INVALID_TOPIC_EXCEPTION, _NO_TOPIC)
            return
        if (illegal := illegal_topic_error(topic)) is not None:  # Such a topic cannot exist, so no wait and no handler call.
            self._reject_all(columns, numbers, TopicPartition(topic, -1), codes.INVALID_TOPIC_EXCEPTION, illegal.message)
            return
        snapshot = self._snapshot(topic, columns, numbers)
        if snapshot is None:
            is_swallowed = topic in self._swallowed_topics
            self._reject_all(columns, numbers, *_unknown(topic), is_swallowed=is_swallowed)
            return
        partitions = self._partitions(columns, None if rows.partitions is None else rows.partitions[indices], snapshot)
        is_keyless = np.isin(indices, rows.keyless_headers) if len(rows.keyless_headers) else np.zeros(0, bool)
        good = self._without_bad(columns, numbers, partitions, snapshot, np.flatnonzero(is_keyless))
        if good is not None:
            numbers, partitions = numbers[good], partitions[good]
        if len(numbers):
            yield GoodRows(snapshot, numbers, columns, partitions, good)

    def _without_bad(
        self, columns: RecordColumns, numbers: Int64s, partitions: Int32s, snapshot: TopicSnapshot, keyless: Int64s
    ) -> Int64s | None:
        """Indices of the good rows; None: all. The others are added to the bad rows."""
        large = self._too_large(columns)
        faults = self._faults(columns, partitions, snapshot)
        for row in keyless.tolist():
            faults.setdefault(row, (codes.INVALID_RECORD, "a header without a key; the dead letter has none of the row's headers"))
        for row in large:
            faults.pop(row, None)
        handler = self._plan.handler
        for found, ask in ((large, handler and handler.too_large), (faults, handler and handler.rejected)):
            if found:
                bad = np.array(sorted(found), np.int64)
                rejections = [
                    Rejection(
                        row=number, topic_partition=TopicPartition(snapshot.topic, partition), code=found[row][0], message=found[row][1]
                    )
                    for row, number, partition in zip(bad.tolist(), numbers[bad].tolist(), partitions[bad].tolist(), strict=True)
                ]
                records = columns.take(bad)
                self._bad_rows.add(records, rejections, ask(records, rejections) if ask else frozenset())
        if not large and not faults:
            return None
        return np.setdiff1d(np.arange(len(columns), dtype=np.int64), np.array([*large, *faults], np.int64), assume_unique=True)

    def _partitions(self, columns: RecordColumns, wanted: Int32s | None, snapshot: TopicSnapshot) -> Int32s:
        """The partition from the column, or else from the key as in every Kafka client, or else the sticky one."""
        partitions = columns.murmur2_partitions(snapshot.partition_count)
        keyless = partitions < 0
        if wanted is not None:
            partitions = np.where(wanted == NO_PARTITION, partitions, wanted)
            keyless &= wanted == NO_PARTITION
        if keyless.any():
            runs = np.cumsum(np.where(keyless, columns.sizes(), 0)) // self._plan.options.batch_bytes
            partitions = np.where(keyless, (self._sticky + runs) % snapshot.partition_count, partitions).astype(np.int32)
            self._sticky += int(runs[-1]) + 1
        return partitions

    def _too_large(self, columns: RecordColumns) -> dict[int, tuple[ErrorCode, str]]:
        """Rows above `kafka.max.request.size`."""
        limit = self._plan.options.request_bytes_max
        if limit is None:
            return {}
        sizes = columns.sizes() + batches.HEADER_BYTES
        return {
            row: (codes.MESSAGE_TOO_LARGE, f"{int(sizes[row])} bytes, kafka.max.request.size allows {limit}")
            for row in np.flatnonzero(sizes > limit).tolist()
        }

    def _faults(self, columns: RecordColumns, partitions: Int32s, snapshot: TopicSnapshot) -> dict[int, tuple[ErrorCode, str]]:
        """Rows that the target would reject, with one reason per row."""
        plan = self._plan
        policy = ValidationPolicy(
            topic_partition=TopicPartition(snapshot.topic, NO_PARTITION),
            is_compacted=snapshot.is_compacted,
            timestamp_type=TimestampType.LOG_APPEND_TIME if snapshot.timestamp_type == LOG_APPEND_TIME else TimestampType.CREATE_TIME,
            timestamp_before_max_ms=snapshot.timestamp_before_max_ms,
            timestamp_after_max_ms=snapshot.timestamp_after_max_ms,
            batch_bytes_max=snapshot.batch_bytes_max,
        )
        found = validate_columns(columns, policy, plan.wall_ms, compression=self._compression, level=plan.options.compression_level)
        faults = {culprit.batch_index: (culprit.code, reason_of(culprit.message)) for culprit in found}
        for row in np.flatnonzero(columns.timestamps < 0).tolist():
            # Brokers accept them. -1 means no timestamp, and the clients of Kafka refuse other negative values (ProducerRecord.java).
            faults.setdefault(row, (codes.INVALID_TIMESTAMP, f"timestamp {int(columns.timestamps[row])} ms is before 1970"))
        for row in np.flatnonzero((partitions < 0) | (partitions >= snapshot.partition_count)).tolist():
            seen = "a negative partition" if partitions[row] < 0 else f"partition {int(partitions[row])}"
            text = f"{seen} of topic {snapshot.topic!r}, which has {snapshot.partition_count}"
            faults.setdefault(row, (codes.UNKNOWN_TOPIC_OR_PARTITION, text))
        return faults

    def _snapshot(self, topic: str, columns: RecordColumns, numbers: Int64s) -> TopicSnapshot | None:
        """The snapshot of a topic, looked up once per task. Before the wait for an unknown topic the handler is called with its first row.

        One wait covers all unknown topics of a chunk, of which there may be thousands: after one wait without success, the others are
        looked up once.
        """
        if topic not in self._snapshots:
            plan = self._plan
            found = plan.snapshot_of(topic, 0)
            if found is None:
                response = RetriableResponse.RETRY
                if plan.handler is not None:
                    tp, code, message = _unknown(topic)
                    rejection = Rejection(row=int(numbers[0]), topic_partition=tp, code=code, message=message)
                    response = plan.handler.unknown_topic(columns, rejection)
                if response is RetriableResponse.RETRY and not self._has_waited:
                    found = plan.snapshot_of(topic, plan.options.topic_wait_ms)
                    self._has_waited = found is None
                elif response is RetriableResponse.SWALLOW:
                    self._swallowed_topics.add(topic)
            self._snapshots[topic] = found
        return self._snapshots[topic]

    def _reject_all(
        self, columns: RecordColumns, numbers: Int64s, tp: TopicPartition, code: ErrorCode, message: str, *, is_swallowed: bool = False
    ) -> None:
        rejections = [Rejection(row=number, topic_partition=tp, code=code, message=message) for number in numbers.tolist()]
        self._bad_rows.add(columns, rejections, frozenset(range(len(rejections))) if is_swallowed else frozenset())


def _chunks(arrow_batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Tables of about CHUNK_BYTES, or CHUNK_ROWS plus the rest of an Arrow batch; none is empty."""
    import pyarrow as pa

    chunk: list[pa.RecordBatch] = []
    chunk_bytes = chunk_rows = 0
    for arrow_batch in arrow_batches:
        if arrow_batch.num_rows:
            chunk.append(arrow_batch)
            chunk_bytes += arrow_batch.nbytes
            chunk_rows += arrow_batch.num_rows
        if chunk_bytes >= CHUNK_BYTES or chunk_rows >= CHUNK_ROWS:
            yield pa.Table.from_batches(chunk)
            chunk, chunk_bytes, chunk_rows = [], 0, 0
    if chunk:
        yield pa.Table.from_batches(chunk)


def _by_topic(rows: Rows) -> Iterator[tuple[str | None, Int64s]]:
    """Each topic, or None for rows without one, and the indices of its rows that contain no reason of their own."""
    is_judged = np.zeros(len(rows), bool)
    is_judged[list(rows.reasons)] = True
    if rows.topic_index is None:
        found = np.flatnonzero(~is_judged).astype(np.int64, copy=False)
        if len(found):
            yield rows.topics[0], found
        return
    for index in range(-1, len(rows.topics)):
        found = np.flatnonzero((rows.topic_index == index) & ~is_judged).astype(np.int64, copy=False)
        if len(found):
            yield rows.topics[index] if index >= 0 else None, found


def _unknown(topic: str) -> tuple[TopicPartition, ErrorCode, str]:
    return TopicPartition(topic, -1), codes.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic!r}"


def reason_of(message: str) -> str:
    """The reason of a rejection without the position in the batch, because rows have their own numbers."""
    _, separator, reason = message.partition(" rejected: ")
    return reason if separator else message
