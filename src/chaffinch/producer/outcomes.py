"""Outcomes of batches: completes the futures and callbacks of their records, or the table's outcome; original records for handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from chaffinch.producer.core.batches.batch import BatchFutures, ProducerBatch
from chaffinch.producer.core.effects import CompleteBatch, FailRecords
from chaffinch.producer.core.refusals.record_errors import ErrorPerRecord
from chaffinch.producer.futures import Callback, RecordFuture, call, complete_all, complete_batch
from chaffinch.producer.records import ProducerRecord, RecordMetadata


def complete_future(
    future: RecordFuture[RecordMetadata],
    callback: Callback | None,
    metadata: RecordMetadata | None,
    error: Any = None,
    logged: type[BaseException] = BaseException,
) -> None:
    """Complete one future with its metadata or error, and run its callback; `logged` as for `call`."""
    if metadata is not None:
        future.complete(metadata)
    else:
        future.fail(error)
    if callback is not None:
        call(callback, metadata, error, logged)


def complete_records(effect: CompleteBatch | FailRecords) -> None:
    """Report a batch's outcome to the futures of `send`, or to the outcome of a table."""
    batch = effect.batch
    outcome_sink, tp = batch.outcome_sink, batch.topic_partition
    if not isinstance(outcome_sink, BatchFutures):
        if isinstance(effect, CompleteBatch):
            outcome_sink.written(batch.rows, tp.partition, effect.base_offset)
        else:
            outcome_sink.failed(batch.rows, tp, effect.error, effect.errors, effect.dropped)
    elif isinstance(effect, CompleteBatch):
        rows, metadata = batch.rows, _metadata_of(effect)
        if batch.count == len(outcome_sink):
            complete_batch(outcome_sink, metadata)
        elif batch.count + outcome_sink.completed_count == len(outcome_sink):
            complete_batch(outcome_sink, lambda row: metadata(int(np.searchsorted(rows, row))), rows)
        else:
            completed_rows = rows.tolist()
            callbacks = {
                index: outcome_sink.callbacks.pop(row) for index, row in enumerate(completed_rows) if row in outcome_sink.callbacks
            }
            complete_all([outcome_sink[row] for row in completed_rows], metadata, callbacks)
    else:
        # Without an error for the others only the culprits are visited, not a thousand records for one culprit.
        failed_indices = sorted((*effect.errors, *effect.dropped)) if effect.error is None else range(batch.count)
        own = None if effect.error is None else ErrorPerRecord(batch, effect.error)
        outcome_sink.completed_count += len(failed_indices)
        for index in failed_indices:
            row = int(batch.rows[index])
            future, callback = outcome_sink[row], outcome_sink.callbacks.pop(row, None)
            if index in effect.dropped:
                complete_future(future, callback, RecordMetadata(*tp, timestamp_ms=int(batch.timestamps[index]), dropped=True))
            elif own is None or index in effect.errors:
                complete_future(future, callback, None, effect.errors[index])
            else:
                future.fail_with(own, index)
                if callback is not None:
                    call(callback, None, future.exception())


def _metadata_of(effect: CompleteBatch) -> Callable[[int], RecordMetadata]:
    """A function that makes the metadata of the record at an index. It holds only numbers, not the batch and its bytes."""
    topic, partition = effect.batch.topic_partition
    timestamps, base, append_time_ms = effect.batch.timestamps, effect.base_offset, effect.log_append_time_ms

    def metadata(index: int) -> RecordMetadata:
        timestamp_ms = int(timestamps[index]) if append_time_ms < 0 else append_time_ms
        return RecordMetadata(topic, partition, -1 if base < 0 else base + index, timestamp_ms)

    return metadata


def records_of(batch: ProducerBatch, indices: Iterable[int]) -> Iterator[ProducerRecord]:
    """Records of a batch as ProducerRecords: those of `send` as the caller handed them over, those of a table made from their rows."""
    if isinstance(batch.outcome_sink, list):
        yield from (batch.outcome_sink[batch.rows[index]].record for index in indices)
        return
    columns = batch.decode()
    topic, partition = batch.topic_partition
    for index in indices:
        timestamp_ms = int(batch.timestamps[index])
        yield ProducerRecord(topic, columns.value(index), columns.key(index), partition, timestamp_ms, columns.headers(index))
