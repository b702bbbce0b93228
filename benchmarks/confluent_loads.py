"""Loads with confluent-kafka, in their own process: `python -m benchmarks.confluent_loads LOAD SERVERS TOPIC COUNT`, see `LOADS`.

Prints one JSON object: seconds, client CPU seconds, and for `one-at-a-time` the percentiles of the latency in ms.
"""

from __future__ import annotations

import sys

import confluent_kafka

from benchmarks.stopwatch import Load, Stopwatch, one_at_a_time, run_load

VALUE = b"x" * 100
CONSUME_BATCH = 10_000
FETCH_AHEAD = {"fetch.queue.backoff.ms": 1}
"""By default this client pauses fetching for a second once its queue is full: a fast reader waits for it and gets 0.2 M/s instead of 1.0.
With 0 ms, or a queue of a million records, it uses a third more processor time for the same records."""
SECONDS_WITHOUT_RECORDS_MAX = 30.0
POLL_EVERY = 1000
"""Calls of `produce` per call of `poll`, which runs the callbacks. A `poll` after each would cost this client a third of its speed."""


def _producer(servers: str, topic: str, linger_ms: int) -> confluent_kafka.Producer:
    """An idempotent producer with the topic's metadata."""
    options = {"bootstrap.servers": servers, "linger.ms": linger_ms, "enable.idempotence": True, "queue.buffering.max.messages": 1_000_000}
    producer = confluent_kafka.Producer(options)
    producer.list_topics(topic, 10)
    return producer


def produce(servers: str, topic: str, count: int) -> dict[str, float]:
    """`produce` with `linger.ms=5` and no callbacks: the fastest way with every record acknowledged."""
    producer = _producer(servers, topic, 5)
    watch = Stopwatch()
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, VALUE)
                break
            except BufferError:
                producer.poll(0.01)
    left = producer.flush()
    assert left == 0, f"{left} records were not acknowledged"
    return watch.read()


def produce_with_callbacks(servers: str, topic: str, count: int) -> dict[str, float]:
    """`produce` with a delivery callback for each record."""
    producer = _producer(servers, topic, 5)
    written = 0

    def delivered(error: confluent_kafka.KafkaError | None, _message: confluent_kafka.Message) -> None:
        nonlocal written
        written += error is None

    watch = Stopwatch()
    for number in range(count):
        while True:
            try:
                producer.produce(topic, VALUE, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.01)
        if not number % POLL_EVERY:
            producer.poll(0)
    producer.flush()
    assert written == count, f"{written} of {count} records were acknowledged"
    return watch.read()


def _assigned(servers: str, topic: str) -> confluent_kafka.Consumer:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False, **FETCH_AHEAD})
    partitions = consumer.list_topics(topic, 10).topics[topic].partitions
    consumer.assign([confluent_kafka.TopicPartition(topic, number, confluent_kafka.OFFSET_BEGINNING) for number in partitions])
    return consumer


def consume(servers: str, topic: str, count: int) -> dict[str, float]:
    """`consume` of all partitions from their beginning, without a group; the time begins with the first record."""
    consumer = _assigned(servers, topic)
    seen = len(consumer.consume(1, SECONDS_WITHOUT_RECORDS_MAX))
    watch = Stopwatch()
    while seen < count:
        records = consumer.consume(min(CONSUME_BATCH, count - seen), SECONDS_WITHOUT_RECORDS_MAX)
        assert records, f"{seen} of {count} records came, then none for {SECONDS_WITHOUT_RECORDS_MAX} s"
        seen += len(records)
    result = watch.read()
    consumer.close()
    return result


def consume_columns(servers: str, topic: str, count: int) -> dict[str, float]:
    """`consume` with keys and values converted to Arrow columns, as a user of this client would write it."""
    import pyarrow as pa

    consumer = _assigned(servers, topic)
    seen = len(consumer.consume(1, SECONDS_WITHOUT_RECORDS_MAX))
    columns: list[pa.RecordBatch] = []
    watch = Stopwatch()
    while seen < count:
        records = consumer.consume(min(CONSUME_BATCH, count - seen), SECONDS_WITHOUT_RECORDS_MAX)
        assert records, f"{seen} of {count} records came, then none for {SECONDS_WITHOUT_RECORDS_MAX} s"
        keys = pa.array([record.key() for record in records], pa.binary())
        values = pa.array([record.value() for record in records], pa.binary())
        columns.append(pa.RecordBatch.from_arrays([keys, values], ["key", "value"]))
        seen += len(records)
    result = watch.read()
    consumer.close()
    return result


def single(servers: str, topic: str, count: int) -> dict[str, float]:
    """One acknowledged `produce` after the other: latencies in ms."""
    producer = _producer(servers, topic, 0)

    def call() -> None:
        producer.produce(topic, VALUE)
        assert producer.flush() == 0

    return one_at_a_time(call, count)


LOADS: dict[str, Load] = {
    "produce": produce,
    "produce-with-callbacks": produce_with_callbacks,
    "consume": consume,
    "consume-columns": consume_columns,
    "one-at-a-time": single,
}


if __name__ == "__main__":
    sys.exit(run_load(LOADS, sys.argv[1:]))
