"""Sending a whole table: split by topic and partition, encoded batch by batch on the caller's thread, handed to the accumulator.

The sender thread is sending the first batches while the next are being made; both run outside Python's lock for most of their time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from chaffinch.errors import InvalidTimestampException, KafkaException, RecordTooLargeException, Stored
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core.accumulator import BATCH_OVERHEAD_BYTES
from chaffinch.producer.core.batches import ProducerBatch
from chaffinch.producer.core.producer_core import ProducerCore
from chaffinch.producer.table_result import SendTableResult, TableOutcome
from chaffinch.producer.table_split import Run, TableParts, read_table, rows_by_topic, runs
from chaffinch.records.columns import RecordColumns

Rows = npt.NDArray[np.int64]
NO_PARTITION = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """How a table gets into a producer: what its calls may have to wait for. All but `now_ms` are called with the lock held."""

    core: ProducerCore
    lock: threading.Condition
    batch_bytes: int
    record_bytes_max: int
    now_ms: Callable[[], int]
    refusal: Callable[[], KafkaException | None]
    refused: Callable[[KafkaException], KafkaException]
    wait_for_topic: Callable[[str, int | None], KafkaException | None]
    wait_for_memory: Callable[[int], KafkaException | None]
    wakeup: Callable[[], None]


def send_table(door: Door, topic: str | None, table: Any, timestamp_default_ms: int) -> Future[SendTableResult]:
    """All rows of a table; the future has the outcome of each. InvalidColumn and TypeError for what is no table of records."""
    parts = read_table(table, timestamp_default_ms)
    by_topic = list(rows_by_topic(parts.topics, topic, parts.columns.count))
    outcome = TableOutcome(parts.columns.count)
    for name, rows in by_topic:
        _send_rows(door, name, parts, rows, outcome)
    return outcome.future


def _send_rows(door: Door, topic: str, parts: TableParts, rows: Rows, outcome: TableOutcome) -> None:
    """The rows of one topic."""
    if not len(rows):
        return
    columns = parts.columns if len(rows) == parts.columns.count else parts.columns.take(rows)
    asked = None if parts.partitions is None else parts.partitions[rows]
    with door.lock:
        error = door.refusal()
        if error is None and door.core.wiring.cluster.partition_count(topic) is None:
            error = door.wait_for_topic(topic, None)
        if error is not None:
            _reject(door, outcome, rows, TopicPartition(topic, NO_PARTITION), error)
            return
        partition_count = door.core.wiring.cluster.partition_count(topic) or 0
        if asked is not None and int(asked.max()) >= partition_count:
            # The topic may have grown; rows for partitions that it really has not are set aside below.
            door.wait_for_topic(topic, int(asked.max()))
            partition_count = door.core.wiring.cluster.partition_count(topic) or 0
        with_leader = door.core.partitions_with_leader(topic)
    partitions = door.core.partitioner.choose_for_columns(columns, partition_count, with_leader, door.batch_bytes)
    if asked is not None:
        partitions = np.where(asked >= 0, asked, partitions)
    columns, rows, partitions = _set_aside(door, topic, columns, rows, partitions, partition_count, outcome)
    for run in runs(columns, rows, partitions, partition_count, door.batch_bytes):
        _send_run(door, topic, run, outcome)


def _set_aside(
    door: Door,
    topic: str,
    columns: RecordColumns,
    rows: Rows,
    partitions: npt.NDArray[Any],
    partition_count: int,
    outcome: TableOutcome,
) -> tuple[RecordColumns, Rows, npt.NDArray[Any]]:
    """Reject rows that cannot be sent whatever the broker says; the others are returned."""
    sizes = columns.sizes()
    too_large, early, beyond = sizes > door.record_bytes_max, columns.timestamps < 0, partitions >= partition_count
    bad = too_large | early | beyond
    if not bad.any():
        return columns, rows, partitions
    for index in np.flatnonzero(bad):
        place = TopicPartition(topic, int(partitions[index]))
        if beyond[index]:
            error = door.core.waited_in_vain(topic, place.partition, 0)
        elif too_large[index]:
            size, limit = sizes[index] + BATCH_OVERHEAD_BYTES, door.record_bytes_max + BATCH_OVERHEAD_BYTES
            text = f"the record takes {size} bytes, max.request.size allows {limit}"
            error = RecordTooLargeException(text, topic_partition=place, stored=Stored.NO, api="Produce")
        else:
            text = f"timestamp {columns.timestamps[index]} ms lies before 1970"
            error = InvalidTimestampException(text, topic_partition=place, stored=Stored.NO, api="Produce")
        with door.lock:
            _reject(door, outcome, rows[index : index + 1], place, error)
    good = np.flatnonzero(~bad)
    return columns.take(good), rows[good], partitions[good]


def _send_run(door: Door, topic: str, run: Run, outcome: TableOutcome) -> None:
    place = TopicPartition(topic, run.partition)
    data = door.core.accumulator.encode_rows(run.columns)
    batch = ProducerBatch(
        topic_partition=place,
        receipt=outcome,
        rows=run.rows,
        timestamps=run.columns.timestamps,
        data=data,
        created_ms=door.now_ms(),
        position=0,
        memory_bytes=len(data),
    )
    with door.lock:
        error = door.refusal()
        if error is None and not door.core.accumulator.has_room_for(len(data)):
            error = door.wait_for_memory(len(data))
        if error is None:
            door.core.append_batch(batch, door.now_ms())
        else:
            _reject(door, outcome, run.rows, place, error)
    door.wakeup()


def _reject(door: Door, outcome: TableOutcome, rows: Rows, place: TopicPartition, error: KafkaException) -> None:
    door.refused(error)
    outcome.rejected(rows, place, error)
