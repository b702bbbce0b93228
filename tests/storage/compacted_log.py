"""A compacted log on the memory disk: filling it, compacting it to the end, and reading it as consumers do."""

from __future__ import annotations

import random
from typing import Any

from chaffinch.identifiers import NO_PRODUCER, ProducerIdentity
from chaffinch.records.batch import decode, encode, views
from chaffinch.records.batch_header import BatchView
from chaffinch.records.columns import RecordColumns
from chaffinch.records.compression import Compression
from chaffinch.storage.compaction import Compaction, cleanable
from chaffinch.storage.file_system import MemoryFileSystem
from chaffinch.storage.partition_log import LogConfig, PartitionLog
from tests.storage.orders_log import DIRECTORY, ORDERS

Rows = list[tuple[int, bytes | None, bytes | None]]
DAY = 86_400_000
ONE, TWO = ProducerIdentity(1, 0), ProducerIdentity(2, 0)


def opened(files: MemoryFileSystem, **config: Any) -> PartitionLog:
    return PartitionLog.open(files, DIRECTORY, ORDERS, LogConfig(compacts=True, **config), 0)


def records(*pairs: tuple[str | None, str | None], identity: ProducerIdentity = NO_PRODUCER, **options: Any) -> bytearray:
    keys = [None if key is None else key.encode() for key, _ in pairs]
    values = [None if value is None else value.encode() for _, value in pairs]
    return encode(RecordColumns.from_lists(keys, values, [1000] * len(pairs)), identity=identity, **options)


def compact(log: PartitionLog, steady_ms: int = 0, *, map_bytes_max: int = 1 << 30) -> Compaction:
    found = cleanable(log.files.segments, log.files.state, log.config, log.last_stable_offset, steady_ms)
    job = Compaction(log, found.end_offset, steady_ms, map_bytes_max=map_bytes_max)
    while not job.step():
        pass
    return job


def all_batches(log: PartitionLog) -> list[BatchView]:
    """Read as a consumer does: from the next offset on, one batch at a time."""
    found = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        view = next(views(log.read(offset, 1)[0]))
        assert view.crc_is_valid()
        assert view.header.last_offset >= offset
        found.append(view)
        offset = view.header.last_offset + 1
    return found


def rows(log: PartitionLog) -> Rows:
    """(offset, key, value) of every record of data."""
    found: Rows = []
    for view in all_batches(log):
        if not view.header.is_control:
            columns = decode(view)
            assert columns.offsets is not None
            found += [(int(columns.offsets[i]), columns.key(i), columns.value(i)) for i in range(columns.count)]
    return found


def headers(log: PartitionLog) -> list[tuple[int, int, int]]:
    """(base offset, last offset, count) of every batch."""
    return [(view.header.base_offset, view.header.last_offset, view.header.count) for view in all_batches(log)]


def transaction(log: PartitionLog, identity: ProducerIdentity, sequence: int, *pairs: tuple[str | None, str | None]) -> None:
    log.append(records(*pairs, identity=identity, base_sequence=sequence, is_transactional=True), steady_ms=0)


def busy_log(files: MemoryFileSystem, seed: int, *, count: int = 60, **config: Any) -> PartitionLog:
    """`count` batches of two producers and of none, with tombstones, and transactions that end either way; sealed."""
    rng = random.Random(seed)
    log = opened(files, segment_bytes=600, index_interval_bytes=100, checkpoint_bytes=900, delete_retention_ms=50, **config)
    sequences = {1: 0, 2: 0}
    for number in range(count):
        pairs = [(f"k{rng.randrange(6)}", None if rng.random() < 0.2 else f"v{number}") for _ in range(rng.randint(1, 4))]
        roll = rng.random()
        if roll < 0.4:
            log.append(records(*pairs, compression=rng.choice(list(Compression))), steady_ms=0)
        elif roll < 0.8:
            producer_id = rng.choice((1, 2))
            transactional = producer_id == 2
            log.append(
                records(
                    *pairs, identity=ProducerIdentity(producer_id, 0), base_sequence=sequences[producer_id], is_transactional=transactional
                ),
                steady_ms=0,
            )
            sequences[producer_id] += len(pairs)
        else:
            log.append_marker(rng.random() < 0.5, TWO, 0, 1000)
    log.append_marker(True, TWO, 0, 1000)
    log.roll(0)
    return log


def committed(log: PartitionLog, until: int | None = None) -> Rows:
    """What a reader of committed records sees below `until` (default: the end), by the index of aborted transactions, as Kafka's consumer.

    Only producer 2 has transactions."""
    until = log.log_end_offset if until is None else until
    starts = sorted(first for _, first in log.aborted_transactions(log.log_start_offset, until))
    found: Rows = []
    is_aborted = False
    for view in all_batches(log):
        header = view.header
        if max(header.base_offset, log.log_start_offset) >= until:
            break
        if starts and starts[0] <= header.last_offset and header.is_transactional:
            is_aborted = True
            starts = [first for first in starts if first > header.last_offset]
        if header.is_control:
            is_aborted = False
        elif not (is_aborted and header.is_transactional):
            columns = decode(view)
            assert columns.offsets is not None
            found += [(int(columns.offsets[i]), columns.key(i), columns.value(i)) for i in range(columns.count)]
    return found


def last_values(found: Rows) -> dict[bytes | None, bytes | None]:
    return {key: value for _, key, value in found}


def live(values: dict[bytes | None, bytes | None]) -> dict[bytes | None, bytes | None]:
    return {key: value for key, value in values.items() if value is not None}
