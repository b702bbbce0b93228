"""confluent-kafka as a load, in a process of its own: `python -m benchmarks.confluent_loads LOAD SERVERS TOPIC COUNT`, see `LOADS`.

Prints one JSON object: seconds, client CPU seconds, and for one at a time the latencies' percentiles in ms.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import confluent_kafka

VALUE = b"x" * 100
CONSUME_BATCH = 10_000
SECONDS_WITHOUT_RECORDS_MAX = 30.0


def produce(servers: str, topic: str, count: int) -> dict[str, float]:
    """Idempotent, `linger.ms=5`, no callbacks: as fast as this client goes while every record is acknowledged."""
    options = {"bootstrap.servers": servers, "linger.ms": 5, "enable.idempotence": True, "queue.buffering.max.messages": 1_000_000}
    producer = confluent_kafka.Producer(options)
    started = time.perf_counter()
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, VALUE)
                break
            except BufferError:
                producer.poll(0.01)
    left = producer.flush()
    assert left == 0, f"{left} records were not acknowledged"
    return {"seconds": time.perf_counter() - started}


def consume(servers: str, topic: str, count: int) -> dict[str, float]:
    """All partitions from their beginning, without a group's ceremony in the time measured: from the first record to the last."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False})
    partitions = consumer.list_topics(topic, 10).topics[topic].partitions
    consumer.assign([confluent_kafka.TopicPartition(topic, number, confluent_kafka.OFFSET_BEGINNING) for number in partitions])
    seen = len(consumer.consume(1, SECONDS_WITHOUT_RECORDS_MAX))
    started = time.perf_counter()
    while seen < count:
        records = consumer.consume(CONSUME_BATCH, SECONDS_WITHOUT_RECORDS_MAX)
        assert records, f"{seen} of {count} records came, then none for {SECONDS_WITHOUT_RECORDS_MAX} s"
        seen += len(records)
    seconds = time.perf_counter() - started
    consumer.close()
    return {"seconds": seconds}


def one_at_a_time(servers: str, topic: str, count: int) -> dict[str, float]:
    """One record, its acknowledgement, the next: latencies in ms."""
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "linger.ms": 0, "enable.idempotence": True})
    latencies: list[float] = []
    began = time.perf_counter()
    for number in range(count + count // 10):
        started = time.perf_counter()
        producer.produce(topic, VALUE)
        assert producer.flush() == 0
        if number >= count // 10:
            latencies.append((time.perf_counter() - started) * 1000)
    latencies.sort()
    return {"seconds": time.perf_counter() - began, "p50": latencies[count // 2], "p99": latencies[count * 99 // 100]}


LOADS: dict[str, Callable[[str, str, int], dict[str, float]]] = {"produce": produce, "consume": consume, "one-at-a-time": one_at_a_time}


def main() -> int:
    load, servers, topic, count = sys.argv[1:]
    cpu = time.process_time()
    result = LOADS[load](servers, topic, int(count))
    print(json.dumps({**result, "client_cpu_seconds": time.process_time() - cpu}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
