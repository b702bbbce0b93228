"""What Spark does around readers of topics, played by hand: it asks for offsets, and hands ranges to tasks, which have a reader each."""

from __future__ import annotations

import json
import pickle
from typing import Any

from pyspark.sql.types import StructType

from chaffinch.client.exchange import Deadline
from chaffinch.client.sync_client import SyncClient
from chaffinch.spark.source import topic_discovery
from chaffinch.spark.source.stream_reader import IS_LIMITED

SCHEMA = (
    StructType()
    .add("key", "binary")
    .add("value", "binary")
    .add("topic", "string")
    .add("partition", "integer")
    .add("offset", "long")
    .add("timestamp", "timestamp")
    .add("timestampType", "integer")
)


def latest(reader, start) -> Any:
    """Asked by a trigger that wants everything. Spark 4.1 does not say where the micro-batch begins."""
    if not IS_LIMITED:
        return reader.latestOffset()
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    return reader.latestOffset(start, ReadAllAvailable())


def begun(reader) -> Any:
    """Where a query starts that begins with what comes next: its first micro-batch, which has nothing in it, is over."""
    start = reader.initialOffset()
    assert latest(reader, start) == start
    assert reader.partitions(travelled(reader.initialOffset()), travelled(start)) == []
    return start


def values(reader, start, end) -> dict[str, list[int]]:
    """The values of a micro-batch by partition."""
    return rows_of(reader, reader.partitions(travelled(start), travelled(end)))


def rows_of(reader, parts):
    """What tasks read: they have a reader of their own, and nothing but what travelled to them."""
    found = {}
    for part in parts:
        task = pickle.loads(pickle.dumps(type(reader)(reader._options)))
        for batch in task.read(pickle.loads(pickle.dumps(part))):
            for row in batch.to_pylist():
                found.setdefault(f"{row['topic']}-{row['partition']}", []).append(int(row["value"]))
    return found


def plain(offsets):
    """Offsets of a checkpoint without the ids of topics, as Spark's Kafka source reads them."""
    return {topic: parts for topic, parts in offsets.items() if parts}


def travelled(offsets):
    """Through the checkpoint."""
    return json.loads(json.dumps(offsets))


def wait_by(clock, monkeypatch):
    """Waits for open transactions count by this clock."""
    really = SyncClient.deadline

    def deadline(client, timeout_ms, what, message=None):
        is_meant = what == topic_discovery.OPEN_TRANSACTIONS
        return Deadline(clock, timeout_ms, what) if is_meant else really(client, timeout_ms, what, message)

    monkeypatch.setattr(SyncClient, "deadline", deadline)
