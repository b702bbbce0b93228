"""Loads with our producer and consumer, in their own process: `python -m benchmarks.chaffinch_loads LOAD SERVERS TOPIC COUNT`.

Prints one JSON object: seconds, client CPU seconds, and for some loads counters of the producer. All modules, the compiled loops and the
metadata of the topic are loaded before the time begins, as with confluent-kafka, which is one compiled module.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.stopwatch import Load, Stopwatch, one_at_a_time, run_load
from chaffinch import Consumer, Producer, RecordMetadata
from chaffinch.consumer import tables as _loaded_when_first_polled  # noqa: F401
from chaffinch.errors import InvalidRecordException
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.futures import RecordFuture
from chaffinch.producer.tables import sending as _loaded_when_first_sent  # noqa: F401
from chaffinch.records import kernels

VALUE_BYTES = 100
VALUE = b"x" * VALUE_BYTES
PARTITIONS = 4
CULPRIT_EVERY = 100
"""Every record at this interval has no key, which a compacted topic refuses."""

FUTURES_MAX = 100_000
"""Number of futures that a program holds if it checks outcomes continuously."""
SECONDS_WITHOUT_RECORDS_MAX = 30.0
CONFLUENT_BATCH_BYTES = 1_000_000
"""confluent-kafka's default of `batch.size`; ours is 16 KB, as Java's."""


def _producer(servers: str, topic: str, **options: Any) -> Producer:
    kernels.load()
    producer = Producer(bootstrap_servers=servers, **options)
    producer.partitions_for(topic)
    return producer


def _values(count: int) -> pa.Array:
    offsets = np.arange(count + 1, dtype=np.int64) * VALUE_BYTES
    return pa.Array.from_buffers(pa.large_binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(b"x" * (count * VALUE_BYTES))])


def send_table(servers: str, topic: str, count: int) -> dict[str, float]:
    """`send_table` of all rows in one call, without keys."""
    return _table(servers, topic, pa.table({"value": _values(count)}))


def send_keyed_table(servers: str, topic: str, count: int) -> dict[str, float]:
    """`send_table` with keys: the reference for `send_culprits`."""
    return _table(servers, topic, _keyed([b"%012d" % number for number in range(count)]))


def send_culprits(servers: str, topic: str, count: int) -> dict[str, float]:
    """`send_table` with every hundredth row without a key, so that every batch has culprits."""
    return _table(servers, topic, _keyed([None if number % CULPRIT_EVERY == 0 else b"%012d" % number for number in range(count)]))


def _keyed(keys: list[bytes | None]) -> pa.Table:
    """A table with partitions that do not depend on the keys, so that tables with and without culprits form the same batches."""
    partitions = (np.arange(len(keys)) // CULPRIT_EVERY % PARTITIONS).astype(np.int32)
    return pa.table({"key": keys, "value": _values(len(keys)), "partition": partitions})


def _table(servers: str, topic: str, table: pa.Table) -> dict[str, float]:
    culprits = 0 if "key" not in table.column_names else table.column("key").null_count
    with _producer(servers, topic, linger_ms=5) as producer:
        watch = Stopwatch()
        result = producer.send_table(topic, table).result()
        times = watch.read()
        counters = _batch_counters(producer)
    assert (result.written, result.rejected_count) == (table.num_rows - culprits, culprits), result
    return {**times, **counters}


def _batch_counters(producer: Producer) -> dict[str, float]:
    metrics = producer.metrics()
    names = {
        "sent": "batch-send-total",
        "written": "batch-written-total",
        "separated": "batch-separated-total",
        "requests": "request-total",
    }
    return {name: metrics[metric] for name, metric in names.items()}


def send(servers: str, topic: str, count: int) -> dict[str, float]:
    """`send` with confluent-kafka's `batch.size`; every future is checked in order and released."""
    with _producer(servers, topic, linger_ms=5, batch_size=CONFLUENT_BATCH_BYTES) as producer:
        futures: deque[RecordFuture[RecordMetadata]] = deque()
        failed = 0
        watch = Stopwatch()
        for _ in range(count):
            futures.append(producer.send(topic, VALUE))
            if len(futures) > FUTURES_MAX:
                failed += futures.popleft().exception() is not None
        producer.flush()
        failed += sum(future.exception() is not None for future in futures)
        times = watch.read()
    assert not failed, f"{failed} records failed"
    return times


def send_with_callbacks(servers: str, topic: str, count: int) -> dict[str, float]:
    """`send` with a delivery callback for each record."""
    written = 0

    def delivered(_metadata: RecordMetadata | None, error: BaseException | None) -> None:
        nonlocal written
        written += error is None

    with _producer(servers, topic, linger_ms=5, batch_size=CONFLUENT_BATCH_BYTES) as producer:
        watch = Stopwatch()
        for _ in range(count):
            producer.send(topic, VALUE, on_delivery=delivered)
        producer.flush()
        times = watch.read()
    assert written == count, f"{written} of {count} records were acknowledged"
    return times


def send_and_keep(servers: str, topic: str, count: int) -> dict[str, float]:
    """`send` with all futures kept to the end. The garbage collector takes longer, the longer the list is."""
    with _producer(servers, topic, linger_ms=5, batch_size=CONFLUENT_BATCH_BYTES) as producer:
        watch = Stopwatch()
        futures = [producer.send(topic, VALUE) for _ in range(count)]
        producer.flush()
        failed = sum(future.exception() is not None for future in futures)
        times = watch.read()
    assert not failed, f"{failed} records failed"
    return times


def send_keyed(servers: str, topic: str, count: int) -> dict[str, float]:
    """`send` with keys."""
    return _send_each(servers, topic, [b"%012d" % number for number in range(count)])


def send_each_culprit(servers: str, topic: str, count: int) -> dict[str, float]:
    """`send` with every hundredth record without a key."""
    return _send_each(servers, topic, [None if number % CULPRIT_EVERY == 0 else b"%012d" % number for number in range(count)])


def _send_each(servers: str, topic: str, keys: list[bytes | None]) -> dict[str, float]:
    with _producer(servers, topic, linger_ms=5, batch_size=CONFLUENT_BATCH_BYTES) as producer:
        watch = Stopwatch()
        futures = [producer.send(topic, VALUE, key=key) for key in keys]
        producer.flush()
        failed = sum(isinstance(future.exception(), InvalidRecordException) for future in futures)
        times = watch.read()
        counters = _batch_counters(producer)
    assert failed == keys.count(None), f"{failed} records failed, {keys.count(None)} are culprits"
    return {**times, **counters}


def _assigned(servers: str, topic: str) -> Consumer:
    """A consumer of all partitions, from their beginning."""
    kernels.load()
    consumer = Consumer(bootstrap_servers=servers, auto_offset_reset="earliest", enable_auto_commit=False)
    consumer.assign([TopicPartition(topic, number) for number in range(len(consumer.partitions_for(topic)))])
    return consumer


def poll(servers: str, topic: str, count: int) -> dict[str, float]:
    """`poll` of all records as objects; the time begins with the first one."""
    with _assigned(servers, topic) as consumer:
        seen = len(consumer.poll(SECONDS_WITHOUT_RECORDS_MAX))
        watch = Stopwatch()
        while seen < count:
            records = consumer.poll(SECONDS_WITHOUT_RECORDS_MAX)
            assert records, f"{seen} of {count} records were read, then none for {SECONDS_WITHOUT_RECORDS_MAX} s"
            seen += len(records)
        return watch.read()


def poll_table(servers: str, topic: str, count: int) -> dict[str, float]:
    """`poll_table` of all records; every table is kept."""
    tables: list[pa.Table] = []
    with _assigned(servers, topic) as consumer:
        seen = len(consumer.poll(SECONDS_WITHOUT_RECORDS_MAX))
        watch = Stopwatch()
        while seen < count:
            table = consumer.poll_table(SECONDS_WITHOUT_RECORDS_MAX)
            assert table.num_rows, f"{seen} of {count} records were read, then none for {SECONDS_WITHOUT_RECORDS_MAX} s"
            tables.append(table)
            seen += table.num_rows
        return watch.read()


def single(servers: str, topic: str, count: int) -> dict[str, float]:
    """One acknowledged `send` after the other: latencies in ms."""
    with _producer(servers, topic, linger_ms=0) as producer:
        return one_at_a_time(lambda: producer.send(topic, VALUE).result(), count)


LOADS: dict[str, Load] = {
    "send-table": send_table,
    "send-table-with-keys": send_keyed_table,
    "send-table-with-culprits": send_culprits,
    "send": send,
    "send-with-callbacks": send_with_callbacks,
    "send-and-keep": send_and_keep,
    "send-with-keys": send_keyed,
    "send-with-culprits": send_each_culprit,
    "poll": poll,
    "poll-table": poll_table,
    "one-at-a-time": single,
}


if __name__ == "__main__":
    sys.exit(run_load(LOADS, sys.argv[1:]))
