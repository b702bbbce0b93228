"""All records of a topic as an Arrow table, straight from the logs: what `EmbeddedBroker.read` gives.

Two halves: `collect` copies the batches that a reader may see, on the core's thread; `to_table` decodes them, on the caller's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaffinch.broker.core.broker_core import BrokerCore
from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.broker.core.topics.registry import Partition
from chaffinch.errors import codes
from chaffinch.records import batch
from chaffinch.records.batch import BatchView
from chaffinch.records.committed_batches import committed
from chaffinch.storage.files import BytesLike

if TYPE_CHECKING:
    import pyarrow as pa

READ_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class PartitionRecords:
    """What can be read of one partition: whole batches, and (producer id, first offset) of aborted transactions among them.

    What lies before `start_offset` is deleted, though the first batch may still hold it (DeleteRecords).
    """

    partition: int
    start_offset: int
    parts: list[BytesLike]
    aborted: list[tuple[int, int]]


def collect(core: BrokerCore, topic: str, *, is_committed: bool) -> list[PartitionRecords]:
    """The batches of every partition; below the last stable offset, if only committed records are wanted."""
    found = core.topics.get(topic)
    if found is None:
        raise RequestRefused(codes.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic!r} does not exist")
    return [_collect_partition(partition, is_committed) for partition in found.partitions]


def _collect_partition(partition: Partition, is_committed: bool) -> PartitionRecords:
    log = partition.log
    upper = log.last_stable_offset if is_committed else log.high_watermark
    parts: list[BytesLike] = []
    offset = log.log_start_offset
    while offset < upper:
        read = log.read(offset, READ_BYTES, upper_bound_offset=upper)
        if not read:
            break
        parts += read
        for view in batch.views(read[-1]):
            offset = view.header.last_offset + 1
    aborted = log.aborted_transactions(log.log_start_offset, upper) if is_committed else []
    return PartitionRecords(partition.topic_partition.partition, log.log_start_offset, parts, aborted)


def to_table(partitions: list[PartitionRecords]) -> pa.Table:
    """Columns partition int32, offset int64, and those of `RecordColumns.to_arrow`: key, value, timestamp, headers."""
    import numpy as np
    import pyarrow as pa

    from chaffinch.records.columns import RecordColumns

    tables = []
    for records in partitions:
        for view in _visible(records):
            columns = batch.decode(view)
            assert columns.offsets is not None, "records that were read have offsets"
            arrow = columns.to_arrow()
            numbers = [pa.array([records.partition] * len(columns), pa.int32()), pa.array(columns.offsets, pa.int64())]
            table = pa.RecordBatch.from_arrays([*numbers, *arrow.columns], names=["partition", "offset", *arrow.schema.names])
            tables.append(table.slice(int(np.searchsorted(columns.offsets, records.start_offset))))
    if not tables:
        empty = RecordColumns.from_lists([], [], []).to_arrow()
        names = ["partition", "offset", *empty.schema.names]
        return pa.Table.from_arrays([pa.array([], pa.int32()), pa.array([], pa.int64()), *empty.columns], names=names)
    return pa.Table.from_batches(tables)


def _visible(records: PartitionRecords) -> Iterator[BatchView]:
    """Batches of data without those of aborted transactions."""
    views = (view for part in records.parts for view in batch.views(part))
    return (view for view, is_visible in committed(views, records.aborted) if is_visible)
