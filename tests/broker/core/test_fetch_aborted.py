"""Which aborted transactions an answer to a reader of committed records lists, and what it costs to know them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaffinch.broker.core.fetch import partition_reads
from chaffinch.broker.core.fetch.sessions import FetchPosition
from chaffinch.identifiers import ProducerIdentity
from chaffinch.protocol.messages.fetch import FetchPartition
from chaffinch.protocol.primitives import ZERO_UUID
from chaffinch.records import batch
from chaffinch.records.file_slice import FileSlice
from chaffinch.storage.aborted_transactions import AbortedTransactions
from chaffinch.storage.memory_files import MemoryFile
from chaffinch.storage.partition_log import PartitionLog
from tests.broker.batches import batch_of
from tests.broker.core.fetch_requests import fetch, first
from tests.broker.core.transactions.transactional_writer import Writer
from tests.broker.core_client import Cluster

EVENTS = st.lists(
    st.tuples(st.sampled_from(["plain", "data", "data", "abort", "abort", "commit"]), st.integers(1, 4), st.integers(1, 3)),
    min_size=10,
    max_size=30,
)


def write(log: PartitionLog, events: list[tuple[str, int, int]]) -> list[tuple[int, int, int]]:
    """(producer id, first offset, the marker's offset) of what was aborted."""
    started: dict[int, int] = {}
    sequences = dict.fromkeys(range(1, 5), 0)
    aborted = []
    for kind, number, count in events:
        producer, values = ProducerIdentity(number, 0), [b"v"] * count
        if kind == "plain":
            log.append(batch_of(*values), steady_ms=0)
        elif kind == "data":
            stored = log.append(batch_of(*values, identity=producer, sequence=sequences[number], transactional=True), steady_ms=0)
            sequences[number] += count
            started.setdefault(number, stored.base_offset)
        else:
            stored = log.append_marker(kind == "commit", producer, 0, 0)
            first_offset = started.pop(number, None)
            if kind == "abort" and first_offset is not None:
                aborted.append((number, first_offset, stored.base_offset))
    return aborted


LIMITS = (0, 77, 160, 250, 600, 1 << 20)
"""Bytes: of one batch to all."""


@settings(max_examples=50, deadline=None)
@given(
    events=EVENTS,
    segment_bytes=st.sampled_from([200, 700, 1 << 20]),
    index_interval_bytes=st.sampled_from([1, 300, 4096]),
)
def test_aborted_transactions_of_the_response_are_listed(
    events: list[tuple[str, int, int]], segment_bytes: int, index_interval_bytes: int
) -> None:
    """All of them, and no others: for each offset and limit."""
    cluster = Cluster()
    cluster.topic("orders")
    partition = cluster.core.topics.partition("orders", 0)
    assert partition is not None
    log = partition.log
    log.config = replace(log.config, segment_bytes=segment_bytes, index_interval_bytes=index_interval_bytes)
    aborted = write(log, events)
    client = cluster.client()
    for offset, limit in product(range(log.last_stable_offset), LIMITS):
        data = first(client.ask(fetch(offset, committed=True, partition_bytes=limit)))
        assert isinstance(data.records, memoryview)
        assert data.aborted_transactions is not None
        last_offset = max(view.header.last_offset for view in batch.views(data.records))
        listed = sorted((entry.producer_id, entry.first_offset) for entry in data.aborted_transactions)
        assert listed == sorted((number, start) for number, start, marker in aborted if start <= last_offset and marker >= offset)


def with_aborts(count: int, size: int) -> Cluster:
    cluster = Cluster()
    cluster.topic("orders")
    writer = Writer(cluster.client(), "t")
    for _ in range(count):
        writer.write(b"a" * size)
        writer.end(False)
    return cluster


def test_aborted_transactions_after_the_read_range_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or reading a log whole would take a time that grows with the square of its aborts."""
    cluster = with_aborts(50, 100)
    offsets_read: list[int] = []
    ending_from = AbortedTransactions.ending_from

    def delayed(self: AbortedTransactions, offset: int) -> Any:
        for entry in ending_from(self, offset):
            offsets_read.append(entry.first_offset)
            yield entry

    monkeypatch.setattr(AbortedTransactions, "ending_from", delayed)
    first(cluster.client().ask(fetch(10, committed=True, partition_bytes=1)))
    assert offsets_read == [10]


@pytest.mark.parametrize(("lends", "times"), [(False, 1), (True, 0)])
def test_records_are_read_at_most_once(monkeypatch: pytest.MonkeyPatch, lends: bool, times: int) -> None:
    """And not at all where they are read as they are sent."""
    cluster = with_aborts(4, 50_000)
    state = cluster.core.state
    state.lends_files = lends
    read: list[int] = []
    read_bytes = MemoryFile.read

    def delayed(self: MemoryFile, position: int, length: int) -> bytes:
        read.append(length)
        return read_bytes(self, position, length)

    monkeypatch.setattr(MemoryFile, "read", delayed)
    position = FetchPosition(("orders", 0), "orders", ZERO_UUID, FetchPartition(partition=0, fetch_offset=2, partition_max_bytes=110_000))
    terms = partition_reads.FetchTerms(
        version=12,
        node_id=0,
        is_follower=False,
        allows_follower=True,
        is_committed=True,
        bytes_min=1,
        bytes_max=1 << 20,
        fault=None,
    )
    (data,) = partition_reads.read(state, terms, [position]).partition_data
    assert data is not None
    assert isinstance(data.records, list)
    assert [isinstance(part, FileSlice) for part in data.records] == [lends]
    assert len(data.aborted_transactions or []) == 2
    assert read.count(len(data.records[0])) == times
