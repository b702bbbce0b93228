"""Dead letters of rejected rows: records for a topic, rows for a Parquet file (decisions 42 and 43).

A dead letter keeps key, value and headers of the row. Headers contain the reason, under the names of Kafka Connect
(`__connect.errors.*`) and Chaffinch (`chaffinch.error.*`). If it is too large for its topic, size and SHA-256 replace the value; the
Parquet row always has the value. Pure.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from chaffinch.identifiers import TopicPartition
from chaffinch.records import batch as batches
from chaffinch.records.columns import RecordColumns
from chaffinch.settings import shortened
from chaffinch.spark.commit.messages import Rejection
from chaffinch.spark.folders import safe_name
from chaffinch.spark.snapshot import TopicSnapshot
from chaffinch.spark.tasks.dead_letter_headers import Header, Origin, with_reasons

BATCH_BYTES: Final = 1_000_000


def parquet_name(origin: Origin) -> str:
    """The file name of one batch of one query. A batch that is written again replaces its own file."""
    return f"chaffinch-{safe_name(origin.query)}-{origin.batch_id:09d}.parquet"


def pending_name(origin: Origin, writer_id: str) -> str:
    """The file name of one writer until the batch is committed. Spark and pyarrow ignore names that begin with a dot; the suffix hides
    the file from programs that read `*.parquet`.
    """
    return f".{parquet_name(origin)}.{safe_name(writer_id)}.pending"


def leftover_pattern(origin: Origin) -> str:
    """A regular expression for the file names that attempts at the batch can leave behind: pending and incomplete files."""
    return rf"\.{{1,2}}{re.escape(parquet_name(origin))}\..+"


def dead_letter_records(
    columns: RecordColumns, rejections: Sequence[Rejection], origin: Origin, target: TopicSnapshot, wall_ms: int
) -> RecordColumns:
    """Dead letters of rejected records (row i was rejected for `rejections[i]`), within the limits of the dead letter topic."""
    age_ms = wall_ms - columns.timestamps
    # Records without a timestamp, or with one that the topic would refuse.
    is_out_of_time = (columns.timestamps < 0) | (age_ms < -target.timestamp_after_max_ms) | (age_ms > target.timestamp_before_max_ms)
    dead_letters = with_reasons(columns, rejections, origin, is_out_of_time, wall_ms)
    large = np.flatnonzero(dead_letters.sizes() + batches.HEADER_BYTES > target.batch_bytes_max)
    if not len(large):
        return dead_letters
    truncated = _truncate(columns, dead_letters, large.tolist(), target.batch_bytes_max)
    order = np.arange(len(dead_letters), dtype=np.int64)
    order[large] = len(dead_letters) + np.arange(len(large))
    return RecordColumns.concat([dead_letters, truncated]).take(order)


def _truncate(columns: RecordColumns, dead_letters: RecordColumns, indices: Sequence[int], bytes_max: int) -> RecordColumns:
    """These dead letters, with as much of key, value and headers as fits."""
    parts = []
    for index in indices:
        original = columns.headers(index)
        reasons = dead_letters.headers(index)[len(original) :]
        parts.append(_fit(columns.key(index), columns.value(index), original, reasons, bytes_max))
    keys, values, headers = zip(*parts, strict=True)
    return RecordColumns.from_lists(keys, values, dead_letters.timestamps[list(indices)], headers)


def dead_letter_batches(records: RecordColumns, target: TopicSnapshot, sticky: int) -> list[tuple[TopicPartition, int, bytearray]]:
    """Encoded batches (partition, record count, bytes) for the dead letter topic. Null keys go to partition `sticky` modulo the count."""
    partitions = records.murmur2_partitions(target.partition_count)
    partitions = np.where(partitions < 0, np.int32(sticky % target.partition_count), partitions)
    limit = min(BATCH_BYTES, target.batch_bytes_max)
    return [
        (
            TopicPartition(target.topic, partition),
            len(rows),
            batches.encode_measured(records, size_max, rows=rows, is_transactional=True),
        )
        for partition, rows, size_max in groups_by_partition(records, partitions, limit)
    ]


def broker_dead_letter_batches(
    columns: RecordColumns, rejections: list[Rejection], origin: Origin, target: TopicSnapshot | None, wall_ms: int
) -> list[tuple[TopicPartition, int, bytearray]]:
    """Dead letters of records that the broker refused: row i was refused for `rejections[i]`."""
    if target is None:
        return []
    return dead_letter_batches(dead_letter_records(columns, rejections, origin, target, wall_ms), target, origin.first_partition)


class RecordGroup(NamedTuple):
    """Records of one batch of a partition: those at `rows`, in this order. Uncompressed they take at most `size_max` bytes."""

    partition: int
    rows: npt.NDArray[np.int64]
    size_max: int


def groups_by_partition(
    columns: RecordColumns, partitions: npt.NDArray[np.int32], bytes_max: int, picked: npt.NDArray[np.int64] | None = None
) -> list[RecordGroup]:
    """Group records by partition, in their order, so that each group's batch takes at most `bytes_max` bytes uncompressed.

    A larger record gets its own batch. `picked`: indices of the records that `partitions` belong to, ascending; None: all. Nothing is
    copied: `batch.encode_measured` takes the rows.
    """
    if not len(partitions):
        return []
    # For 16 bits numpy uses a radix sort, which is five times as fast.
    narrow = partitions.astype(np.int16) if int(partitions.max()) < 2**15 else partitions
    order = np.argsort(narrow, kind="stable")
    rows = order if picked is None else picked[order]
    ends = np.cumsum(columns.sizes()[rows])
    counts = np.bincount(partitions)
    starts = [0, *np.cumsum(counts[counts > 0]).tolist()]
    capacity = bytes_max - batches.HEADER_BYTES
    groups = []
    for partition, (start, stop) in zip(np.flatnonzero(counts).tolist(), pairwise(starts), strict=True):
        while start < stop:
            before = int(ends[start - 1]) if start else 0
            cut = max(start + 1, min(stop, int(np.searchsorted(ends, before + capacity, side="right"))))
            groups.append(RecordGroup(partition, rows[start:cut], int(ends[cut - 1]) - before))
            start = cut
    return groups


def rows_stream(columns: RecordColumns, rejections: Sequence[Rejection], origin: Origin) -> bytes:
    """The rejected records as an Arrow IPC stream, for the Parquet file."""
    import pyarrow as pa

    from chaffinch.records.arrow_columns import to_arrow

    found = to_arrow(columns)
    count = len(columns)
    table = pa.table({
        "key": found.column("key"),
        "value": found.column("value"),
        "headers": found.column("headers"),
        "timestamp": found.column("timestamp"),
        "topic": pa.array([rejection.topic_partition.topic for rejection in rejections], pa.string()),
        "partition": pa.array([_none_if_negative(rejection.topic_partition.partition) for rejection in rejections], pa.int32()),
        "error_code": pa.array([rejection.code.number for rejection in rejections], pa.int32()),
        "error_name": pa.array([rejection.code.name for rejection in rejections], pa.string()),
        "error_message": pa.array([rejection.message for rejection in rejections], pa.string()),
        "error_group": pa.array([rejection.code.group_produce.value for rejection in rejections], pa.string()),
        "query": pa.repeat(pa.scalar(origin.query, pa.string()), count),
        "batch": pa.repeat(pa.scalar(origin.batch_id, pa.int64()), count),
        "task": pa.array([_none_if_negative(origin.task)] * count, pa.int32()),
        "row": pa.array([rejection.row for rejection in rejections], pa.int64()),
    })  # fmt: skip
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    return out.getvalue()


def _none_if_negative(number: int) -> int | None:
    return None if number < 0 else number


def _fit(
    key: bytes | None, value: bytes | None, original: list[Header], reasons: list[Header], bytes_max: int
) -> tuple[bytes | None, bytes | None, list[Header]]:
    """Key, value and headers that fit. Removed in this order until they fit: the value, the original headers, the key, and all but the
    start of an illegal topic name. Each leaves its size and SHA-256, the headers their count.
    """
    headers = original + reasons
    if _fits(key, value, headers, bytes_max):
        return key, value, headers
    headers = headers + _digest("value", value)
    if _fits(key, None, headers, bytes_max):
        return key, None, headers
    reasons = reasons + _digest("value", value) + [("chaffinch.error.headers.count", str(len(original)).encode())]
    if _fits(key, None, reasons, bytes_max):
        return key, None, reasons
    reasons = reasons + _digest("key", key)
    if not _fits(None, None, reasons, bytes_max):
        reasons = _with_short_topic(reasons)
    return None, None, reasons


def _with_short_topic(reasons: list[Header]) -> list[Header]:
    """Shorten the topic header: a row may contain an illegal topic name of any length."""
    (name, topic), *others = reasons
    short = shortened((topic or b"").decode())
    return reasons if short.encode() == topic else [(name, short.encode()), *others, *_digest("topic", topic)]


def _digest(what: str, data: bytes | None) -> list[Header]:
    if data is None:
        return []
    return [
        (f"chaffinch.error.{what}.bytes", str(len(data)).encode()),
        (f"chaffinch.error.{what}.sha256", hashlib.sha256(data).hexdigest().encode()),
    ]


def _fits(key: bytes | None, value: bytes | None, headers: list[Header], bytes_max: int) -> bool:
    size = int(RecordColumns.from_lists([key], [value], [0], [headers]).sizes()[0])
    return batches.HEADER_BYTES + size <= bytes_max
