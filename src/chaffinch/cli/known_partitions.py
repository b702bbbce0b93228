"""Rows for partitions that the topic does not have: `chaffinch produce` sets them aside before anything is sent.

A producer waits for such a partition, which may be there soon; who writes a file wants to know at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chaffinch.admin.topics import Topic
from chaffinch.cli.rows.record_texts import PARTITION_MAX
from chaffinch.cli.rows.rejected import RejectedRows
from chaffinch.cli.rows.sources import Numbers, Piece
from chaffinch.errors import Stored, codes
from chaffinch.identifiers import partitions_in_words
from chaffinch.producer.tables.columns import PARTITION
from chaffinch.producer.tables.result import REJECTED_SCHEMA
from chaffinch.runtime.clock import SystemClock


def with_known_partitions(pieces: Iterator[Piece], topic: Topic, bad: RejectedRows) -> Iterator[Piece]:
    """The pieces without the rows for partitions beyond those that `topic` has, which go to `bad`."""
    clock = SystemClock()
    for piece in pieces:
        beyond = _beyond(piece.table, len(topic.partitions))
        if not len(beyond):
            yield piece
            continue
        bad.add(piece.table, piece.numbers, _rejected(piece.table, topic, beyond), clock.wall_ms())
        kept = np.setdiff1d(np.arange(len(piece.table)), beyond)
        yield piece._replace(table=piece.table.take(pa.array(kept)), numbers=piece.numbers[kept])


def _beyond(table: pa.Table, partition_count: int) -> Numbers:
    """Rows whose partition is a number and too large; what else is wrong with the column is the producer's to say."""
    if PARTITION not in table.schema.names or not pa.types.is_integer(table.schema.field(PARTITION).type):
        return np.empty(0, np.int64)
    return np.flatnonzero(pc.fill_null(pc.greater_equal(table.column(PARTITION), partition_count), False).to_numpy())


def _rejected(table: pa.Table, topic: Topic, rows: Numbers) -> pa.Table:
    """These rows as `SendTableResult.rejected` has them."""
    code, count, there = codes.UNKNOWN_TOPIC_OR_PARTITION, len(rows), partitions_in_words(len(topic.partitions))
    numbers = table.column(PARTITION).take(pa.array(rows)).to_pylist()
    columns: dict[str, Iterable[object]] = {
        "row": rows,
        "topic": [topic.name] * count,
        "partition": [min(number, PARTITION_MAX) for number in numbers],
        "code": [code.number] * count,
        "error": [code.name] * count,
        "message": [f"partition {number}: the topic has {there}" for number in numbers],
        "group": [code.group_produce.value] * count,
        "stored": [Stored.NO.value] * count,
    }
    return pa.table(columns, schema=REJECTED_SCHEMA)
