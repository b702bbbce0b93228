"""From a batch to its records: who waits for each, what it is told, and the record as its owner handed it over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from chaffinch.producer.core.batches.batch import ProducerBatch, Receipts
from chaffinch.producer.core.effects import CompleteBatch, FailRecords
from chaffinch.producer.core.refusals.record_errors import ErrorPerRecord
from chaffinch.producer.futures import Callback, RecordFuture, call, complete_all, complete_batch
from chaffinch.producer.records import ProducerRecord, RecordMetadata


def settle(
    future: RecordFuture[RecordMetadata],
    callback: Callback | None,
    metadata: RecordMetadata | None,
    error: Any = None,
    logged: type[BaseException] = BaseException,
) -> None:
    """Complete one future with its metadata or error, and call who wanted that; `logged` as for `call`."""
    if metadata is not None:
        future.complete(metadata)
    else:
        future.fail(error)
    if callback is not None:
        call(callback, metadata, error, logged)


def tell(effect: CompleteBatch | FailRecords) -> None:
    """A batch's outcome, to whoever waits for its records: futures of `send`, or the outcome of a table."""
    batch = effect.batch
    receipt, place = batch.receipt, batch.topic_partition
    if not isinstance(receipt, Receipts):
        if isinstance(effect, CompleteBatch):
            receipt.written(batch.rows, place.partition, effect.base_offset)
        else:
            receipt.failed(batch.rows, place, effect.error, effect.errors, effect.dropped)
    elif isinstance(effect, CompleteBatch):
        rows, metadata = batch.rows, _metadata_of(effect)
        if batch.count == len(receipt):
            complete_batch(receipt, metadata)
        elif batch.count + receipt.told == len(receipt):
            complete_batch(receipt, lambda row: metadata(int(np.searchsorted(rows, row))), rows)
        else:
            whose = rows.tolist()
            callbacks = {index: receipt.callbacks.pop(row) for index, row in enumerate(whose) if row in receipt.callbacks}
            complete_all([receipt[row] for row in whose], metadata, callbacks)
    else:
        # Without an error for the others there is nothing to say to them: nobody goes round a thousand records for one culprit.
        told = sorted((*effect.errors, *effect.dropped)) if effect.error is None else range(batch.count)
        own = None if effect.error is None else ErrorPerRecord(batch, effect.error)
        receipt.told += len(told)
        for index in told:
            row = int(batch.rows[index])
            future, callback = receipt[row], receipt.callbacks.pop(row, None)
            if index in effect.dropped:
                settle(future, callback, RecordMetadata(*place, timestamp_ms=int(batch.timestamps[index]), dropped=True))
            elif own is None or index in effect.errors:
                settle(future, callback, None, effect.errors[index])
            else:
                future.fail_with(own, index)
                if callback is not None:
                    call(callback, None, future.exception())


def _metadata_of(effect: CompleteBatch) -> Callable[[int], RecordMetadata]:
    """The metadata of the record at an index. Holds numbers only, not the batch and its bytes."""
    topic, partition = effect.batch.topic_partition
    timestamps, base, append_time_ms = effect.batch.timestamps, effect.base_offset, effect.log_append_time_ms

    def metadata(index: int) -> RecordMetadata:
        timestamp_ms = int(timestamps[index]) if append_time_ms < 0 else append_time_ms
        return RecordMetadata(topic, partition, -1 if base < 0 else base + index, timestamp_ms)

    return metadata


def records_of(batch: ProducerBatch, indices: Iterable[int]) -> Iterator[ProducerRecord]:
    """Records of a batch: of `send` what the caller handed over, of a table they are made of its row."""
    if isinstance(batch.receipt, list):
        yield from (batch.receipt[batch.rows[index]].record for index in indices)
        return
    columns = batch.decode()
    topic, partition = batch.topic_partition
    for index in indices:
        timestamp_ms = int(batch.timestamps[index])
        yield ProducerRecord(topic, columns.value(index), columns.key(index), partition, timestamp_ms, columns.headers(index))
