"""What Spark does around readers of topics, played by hand: it asks for offsets, and hands ranges to tasks, which have a reader each."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql.types import StructType

from chaffinch.client.pending_request import Deadline
from chaffinch.client.sync_client import SyncClient
from chaffinch.protocol.messages.fetch import FetchRequest
from chaffinch.protocol.messages.list_offsets import ListOffsetsRequest
from chaffinch.runtime.clock import ManualClock
from chaffinch.spark.source import topic_discovery
from chaffinch.spark.source.batch_reader import TopicReader
from chaffinch.spark.source.fetching import TopicRange
from chaffinch.spark.source.stream_reader import IS_LIMITED, TopicStreamReader

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


def latest(reader: TopicStreamReader, start: dict[str, dict[str, int]]) -> Any:
    """Asked by a trigger that wants everything. Spark 4.1 does not say where the micro-batch begins."""
    if not IS_LIMITED:
        return reader.latestOffset()
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    return reader.latestOffset(start, ReadAllAvailable())


def begun(reader: TopicStreamReader) -> Any:
    """Where a query starts that begins with what comes next: its first micro-batch, which has nothing in it, is over."""
    start = reader.initialOffset()
    assert latest(reader, start) == start
    assert reader.partitions(travelled(reader.initialOffset()), travelled(start)) == []
    return start


def values(reader: TopicStreamReader, start: dict[str, dict[str, int]], end: dict[str, dict[str, int]]) -> dict[str, list[int]]:
    """The values of a micro-batch by partition."""
    return rows_of(reader, reader.partitions(travelled(start), travelled(end)))


def rows_of(reader: TopicStreamReader | TopicReader, parts: Sequence[TopicRange]) -> dict[str, list[int]]:
    """What tasks read: they have a reader of their own, and nothing but what travelled to them."""
    found: dict[str, list[int]] = {}
    for part in parts:
        task = pickle.loads(pickle.dumps(type(reader)(reader._options)))
        for batch in task.read(pickle.loads(pickle.dumps(part))):
            for row in batch.to_pylist():
                found.setdefault(f"{row['topic']}-{row['partition']}", []).append(int(row["value"]))
    return found


def plain(offsets: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Offsets of a checkpoint without the ids of topics, as Spark's Kafka source reads them."""
    return {topic: parts for topic, parts in offsets.items() if parts}


def travelled(offsets: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Through the checkpoint."""
    found: dict[str, dict[str, int]] = json.loads(json.dumps(offsets))
    return found


def wait_by(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for open transactions count by this clock."""
    really = SyncClient.deadline

    def deadline(client: SyncClient, timeout_ms: int, what: str, message: ListOffsetsRequest | FetchRequest | None = None) -> Deadline:
        is_meant = what == topic_discovery.OPEN_TRANSACTIONS
        return Deadline(clock, timeout_ms, what) if is_meant else really(client, timeout_ms, what, message)

    monkeypatch.setattr(SyncClient, "deadline", deadline)
