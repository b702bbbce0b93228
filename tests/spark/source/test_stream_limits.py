"""Calls of PySpark 4.2, which pass the start and the limit of a micro-batch; 4.1 passes neither."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from chaffinch import Producer
from chaffinch.admin.topics import add_partitions
from chaffinch.spark.source.stream_reader import TopicStreamReader
from tests.spark.source.reader_driver import begun, plain, travelled

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

limits = pytest.importorskip("pyspark.sql.streaming.datasource", reason="PySpark 4.1 has no limits")
ReadAllAvailable, ReadMaxRows, ReadMinRows = limits.ReadAllAvailable, limits.ReadMaxRows, limits.ReadMinRows


def ends_of(reader: TopicStreamReader, start: dict[str, dict[str, int]], limit: ReadLimit) -> list[dict[str, dict[str, int]]]:
    """Ends of micro-batches from `start` until there is nothing new."""
    ends = []
    while (end := reader.latestOffset(travelled(start), limit)) != start:
        ends.append(plain(end))
        start = end
    return ends


def test_limit_is_shared_by_partitions_until_end(kafka: SimpleNamespace) -> None:
    kafka.fill("a", {0: 30, 1: 10})
    reader = kafka.stream(startingOffsets="earliest", maxOffsetsPerTrigger="20")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(20)
    start = reader.initialOffset()
    assert ends_of(reader, start, limit) == [{"a": {"0": 15, "1": 5}}, {"a": {"0": 30, "1": 10}}]
    # A trigger that wants everything gets it.
    assert plain(reader.latestOffset(start, ReadAllAvailable())) == {"a": {"0": 30, "1": 10}}


def test_batch_after_restart_keeps_limit(kafka: SimpleNamespace) -> None:
    """The query died in its first one: all that has come until the restart is still to be read."""
    died = kafka.stream(maxOffsetsPerTrigger="3")
    end = died.latestOffset(died.initialOffset(), ReadMaxRows(3))
    kafka.fill("a", {0: 5})
    reader = kafka.stream(maxOffsetsPerTrigger="3")
    assert reader.partitions(reader.initialOffset(), travelled(end)) == []
    assert ends_of(reader, end, ReadMaxRows(3)) == [{"a": {"0": 3, "1": 0}}, {"a": {"0": 5, "1": 0}}]


def test_available_now_ends_at_current_offsets(kafka: SimpleNamespace) -> None:
    kafka.fill("a", {0: 30})
    reader = kafka.stream(startingOffsets="earliest", maxOffsetsPerTrigger="20", minOffsetsPerTrigger="20")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    first = reader.latestOffset(start, ReadMaxRows(20))
    kafka.fill("a", {0: 5, 1: 5})
    add_partitions(kafka.client, "a", 3)
    assert [plain(first), *ends_of(reader, first, ReadMaxRows(20))] == [{"a": {"0": 20, "1": 0}}, {"a": {"0": 30, "1": 0}}]


def test_records_between_offset_requests_are_not_a_loss(kafka: SimpleNamespace) -> None:
    reader = kafka.stream()
    reader.prepareForTriggerAvailableNow()
    kafka.fill("a", {0: 5})
    start = reader.initialOffset()
    assert ends_of(reader, start, ReadAllAvailable()) == []


def test_small_backlog_waits_until_delay_is_over(kafka: SimpleNamespace) -> None:
    reader = kafka.stream(minOffsetsPerTrigger="10", maxTriggerDelay="30s")
    assert reader.getDefaultReadLimit() == ReadMinRows(10)
    start = begun(reader)

    def end(count: int) -> int:
        kafka.fill("a", {0: count})
        return int(reader.latestOffset(start, ReadMinRows(10))["a"]["0"])

    assert [end(1), end(1), end(7), end(1)] == [1, 0, 0, 10]
    start = reader.latestOffset(start, ReadAllAvailable())
    kafka.clock.advance(29_999)
    assert end(1) == 10
    kafka.clock.advance(1)
    assert end(0) == 11


def test_new_partitions_share_limit(kafka: SimpleNamespace) -> None:
    reader = kafka.stream(maxOffsetsPerTrigger="3")
    start = begun(reader)
    add_partitions(kafka.client, "a", 3)
    kafka.fill("a", {2: 4})
    assert plain(reader.latestOffset(start, ReadMaxRows(3))) == {"a": {"0": 0, "1": 0, "2": 3}}


def test_query_after_read_uncommitted_keeps_position(kafka: SimpleNamespace) -> None:
    """And loses nothing, though the last stable offset lies before."""
    reader, everything = kafka.stream(), kafka.stream(**{"kafka.isolation.level": "read_uncommitted"})
    with Producer(bootstrap_servers=kafka.servers, transactional_id="t") as producer:
        producer.init_transactions()
        start = begun(reader)
        producer.begin_transaction()
        producer.send("a", b"1", partition=0).result(60)
        ahead = everything.latestOffset(start, ReadAllAvailable())
        assert plain(ahead) == {"a": {"0": 1, "1": 0}}
        assert reader.latestOffset(ahead, ReadAllAvailable()) == ahead
        producer.abort_transaction()
