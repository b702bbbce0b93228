"""Compares `send_table` with confluent-kafka's `produce` loop: the same rows and broker process, idempotent, acknowledged, in one run.

2 M rows with a 12-byte key and a 100-byte value are written to a topic of four partitions, on disk. The time is from the first call to the
last acknowledgement. Every row is read back and must exist once. Both use `linger.ms=5` and defaults otherwise.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.brokers import BrokerProcess, chaffinch_broker
from chaffinch import Producer
from chaffinch.client.sync_client import SyncClient
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from chaffinch.records import batch

PARTITIONS = 4
VALUE_BYTES = 100
KEY_BYTES = 12
AIM = 3.0
ROUNDS = 3
FETCH_BYTES = 16 << 20


def rows(count: int) -> pa.Table:
    """A table of keys and values; the first eight bytes of a value are the row's number."""
    values = np.full((count, VALUE_BYTES), ord("x"), np.uint8)
    values[:, :8] = np.arange(count, dtype=np.int64).view(np.uint8).reshape(count, 8)
    keys = np.char.zfill(np.arange(count).astype(f"S{KEY_BYTES}"), KEY_BYTES)
    return pa.table({"key": _fixed(keys.tobytes(), KEY_BYTES, count), "value": _fixed(values.tobytes(), VALUE_BYTES, count)})


def _fixed(data: bytes, width: int, count: int) -> pa.Array:
    offsets = np.arange(count + 1, dtype=np.int32) * width
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def ours(bootstrap_servers: str, topic: str, table: pa.Table) -> None:
    with Producer(bootstrap_servers=bootstrap_servers, linger_ms=5, enable_idempotence=True) as producer:
        result = producer.send_table(topic, table).result()
    assert result.written == table.num_rows, result


def theirs(bootstrap_servers: str, topic: str, pairs: list[tuple[bytes, bytes]]) -> None:
    import confluent_kafka

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap_servers, "linger.ms": 5, "enable.idempotence": True, "queue.buffering.max.messages": 1_000_000}
    )
    for key, value in pairs:
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:
                producer.poll(0.01)
    assert producer.flush() == 0


def read_back(bootstrap_servers: str, topic: str, count: int) -> None:
    """Read the topic and assert that every row exists once."""
    seen = np.zeros(count, np.int64)
    with SyncClient(bootstrap_servers) as client:
        for partition in range(PARTITIONS):
            offset = 0
            while True:
                wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
                request = FetchRequest(max_wait_ms=0, max_bytes=FETCH_BYTES, topics=[FetchTopic(topic=topic, partitions=[wanted])])
                response = client.leader_request(TopicPartition(topic, partition), request).responses[0].partitions[0]
                views = list(batch.views(response.records, may_be_cut_short=True)) if response.records else []
                if not views:
                    break
                for view in views:
                    columns = batch.decode(view)
                    starts = columns.value_offsets[:-1, None] + np.arange(8)
                    numbers = columns.value_data[starts].reshape(-1).view(np.int64)
                    np.add.at(seen, numbers, 1)
                offset = views[-1].header.last_offset + 1
    assert (seen == 1).all(), f"{topic}: {int((seen == 0).sum())} rows missing, {int((seen > 1).sum())} more than once"


def measure(name: str, run: Callable[[str, str, Any], None], broker: BrokerProcess, topic: str, data: Any) -> float:
    """Run one side and read its rows back. Returns millions of rows a second. `data` is prepared in the form that this side needs."""
    client_cpu, broker_cpu, started = time.process_time(), broker.cpu_seconds, time.perf_counter()
    run(broker.bootstrap_servers, topic, data)
    seconds = time.perf_counter() - started
    client_cpu, broker_cpu = time.process_time() - client_cpu, broker.cpu_seconds - broker_cpu
    millions = len(data) / 1e6
    read_back(broker.bootstrap_servers, topic, len(data))
    cpu = f"client {client_cpu / millions:.2f}, broker {broker_cpu / millions:.2f}"
    print(f"  {name:<32} {millions / seconds:6.2f} M rows/s   CPU-s per M: {cpu}", flush=True)
    return millions / seconds


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args(arguments)
    table = rows(options.rows)
    pairs = list(zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True))
    contenders: dict[str, tuple[str, Callable[[str, str, Any], None], Any]] = {
        "ours": ("chaffinch send_table", ours, table),
        "theirs": ("confluent-kafka produce loop", theirs, pairs),
    }
    topics = [f"{side}-{number}" for side in contenders for number in range(options.rounds)]
    speeds: dict[str, list[float]] = {side: [] for side in contenders}
    print(f"producer: {options.rows} rows, key {KEY_BYTES} and value {VALUE_BYTES} bytes, {PARTITIONS} partitions, idempotent, acks=all")
    with (
        tempfile.TemporaryDirectory() as folder,
        chaffinch_broker(folder, [f"{topic}:{PARTITIONS}" for topic in (*topics, "warm-up")]) as broker,
    ):
        ours(broker.bootstrap_servers, "warm-up", table.slice(0, min(options.rows, 100_000)))
        for number in range(options.rounds):
            for side, (name, run, data) in contenders.items():
                speeds[side].append(measure(name, run, broker, f"{side}-{number}", data))
    # The two runs of a round follow each other, so that other work of the machine affects both.
    ratio = statistics.median(one / other for one, other in zip(speeds["ours"], speeds["theirs"], strict=True))
    print(f"  ratio, median of {options.rounds} rounds: {ratio:.2f} (target {AIM})")
    return 0 if ratio >= AIM else 1


if __name__ == "__main__":
    sys.exit(main())
