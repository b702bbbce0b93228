"""Headers of dead letters: those of the row, then the reasons under the names of Kafka Connect and Chaffinch. Pure.

Built for all rows at once: rows share most values, so each distinct value is encoded once and gathered for its rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from chaffinch.records.byte_columns import ByteColumn, concat
from chaffinch.records.columns import RecordColumns
from chaffinch.spark.commit.messages import Rejection

STAGE: Final = "KAFKA_PRODUCE"
"""Stage of the error, as Kafka Connect names it."""
_KAFKA_CLASSES: Final = "org.apache.kafka.common.errors."
ROW: Final = "chaffinch.error.row"
"""The row's number in its task, or among those that the broker rejected. Together with query, batch and task it identifies the letter,
in the topic and in the Parquet file. Letters of earlier versions have no such header in the topic."""
TIMESTAMP: Final = "chaffinch.error.timestamp"
"""The timestamp of the row, if the dead letter cannot have it."""

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Source of dead letters: the query (its id, or the token or random name of a batch write), the batch, and the task (-1: rejected by
    the broker).
    """

    query: str
    batch_id: int
    task: int

    @property
    def first_partition(self) -> int:
        """The first partition of rows without a key, modulo the partition count. It differs between tasks, micro-batches and queries;
        otherwise small micro-batches of few tasks would all go to the same few partitions.
        """
        return zlib.crc32(self.query.encode()) + self.batch_id + self.task


def _fields(rejection: Rejection, origin: Origin) -> dict[str, str]:
    code, tp = rejection.code, rejection.topic_partition
    return {
        "__connect.errors.topic": tp.topic,
        "__connect.errors.partition": "" if tp.partition < 0 else str(tp.partition),
        "__connect.errors.connector.name": origin.query,
        "__connect.errors.task.id": "" if origin.task < 0 else str(origin.task),
        "__connect.errors.stage": STAGE,
        "__connect.errors.class.name": "chaffinch.spark.sink.writers",
        "__connect.errors.exception.class.name": _KAFKA_CLASSES + code.exception_name,
        "__connect.errors.exception.message": rejection.message,
        "chaffinch.error.code": str(code.number),
        "chaffinch.error.name": code.name,
        "chaffinch.error.group": code.group_produce.value,
        "chaffinch.error.message": rejection.message,
        "chaffinch.error.query": origin.query,
        "chaffinch.error.batch": str(origin.batch_id),
    }


_MESSAGES: Final = ("__connect.errors.exception.message", "chaffinch.error.message")


def with_reasons(
    columns: RecordColumns, rejections: Sequence[Rejection], origin: Origin, is_out_of_time: npt.NDArray[np.bool_], wall_ms: int
) -> RecordColumns:
    """The records with the reasons after their own headers. Those of `is_out_of_time` get the timestamp `wall_ms`, and their own as a
    header.
    """
    if not rejections:
        return columns
    kinds: dict[tuple[str, object], int] = {}
    messages: dict[str, int] = {}
    first_of_kind: list[Rejection] = []
    kind_of = np.empty(len(rejections), np.int64)
    message_of = np.empty(len(rejections), np.int64)
    for index, rejection in enumerate(rejections):
        kind = kinds.setdefault((rejection.code.name, rejection.topic_partition), len(kinds))
        if kind == len(first_of_kind):
            first_of_kind.append(rejection)
        kind_of[index] = kind
        message_of[index] = messages.setdefault(rejection.message, len(messages))
    blocks = [_fields(rejection, origin) for rejection in first_of_kind]
    names = list(blocks[0])
    rows = [str(rejection.row).encode() for rejection in rejections]
    stamps = [str(stamp).encode() for stamp in columns.timestamps[is_out_of_time].tolist()]
    values = ByteColumn.of(
        [text.encode() for block in blocks for text in block.values()] + [text.encode() for text in messages] + rows + stamps
    )
    own_counts = np.diff(columns.header_offsets)
    counts = own_counts + len(names) + 1 + is_out_of_time
    header_offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    # Per header: its record, and its index among the reasons; negative for the record's own headers.
    record = np.repeat(np.arange(len(counts)), counts)
    slot = np.arange(header_offsets[-1]) - header_offsets[record] - own_counts[record]
    own = columns.header_offsets[record + 1] + slot
    value = kind_of[record] * len(names) + slot
    first_message = len(blocks) * len(names)
    for name in _MESSAGES:
        value = np.where(slot == names.index(name), first_message + message_of[record], value)
    first_row = first_message + len(messages)
    value = np.where(slot == len(names), first_row + record, value)
    first_stamp = first_row + len(rows)
    value = np.where(slot == len(names) + 1, first_stamp + (np.cumsum(is_out_of_time) - 1)[record], value)
    own_length = columns.header_keys.length
    keys = concat([columns.header_keys, ByteColumn.of([name.encode() for name in (*names, ROW, TIMESTAMP)])])
    return RecordColumns.of(
        columns.keys,
        columns.values,
        np.where(is_out_of_time, wall_ms, columns.timestamps),
        header_offsets=header_offsets,
        header_keys=keys.take(np.where(slot < 0, own, own_length + slot)),
        header_values=concat([columns.header_values, values]).take(np.where(slot < 0, own, own_length + value)),
    )
