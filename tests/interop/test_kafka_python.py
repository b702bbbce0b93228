"""kafka-python against an EmbeddedBroker: every codec, idempotence, transactions, an error with culprits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition, codec
from kafka.errors import InvalidRecordError, KafkaError

from chaffinch import EmbeddedBroker

TIMEOUT_SECONDS = 60
# The others need packages that are not installed here; they are offered by the two other clients of this folder.
CODECS = [None, "gzip", *(name for name in ("snappy", "lz4", "zstd") if getattr(codec, f"has_{name}")())]
ROWS = [(b"key-%d" % number, b"value-%d" % number) for number in range(100)]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"compacted": {"cleanup.policy": "compact"}}) as broker:
        yield broker


@pytest.fixture
def make(broker: EmbeddedBroker) -> Iterator[Any]:
    """Producers and consumers that are closed in the end."""
    made: list[Any] = []

    def build(kind: type, **config: Any) -> Any:
        made.append(kind(bootstrap_servers=broker.bootstrap_servers, **config))
        return made[-1]

    yield build
    for client in made:
        client.close()


def consume(make: Any, topic: str, count: int) -> list[Any]:
    """All committed records, which must be `count`, and nothing after them."""
    consumer = make(KafkaConsumer, isolation_level="read_committed", auto_offset_reset="earliest", enable_auto_commit=False)
    tps = [TopicPartition(topic, index) for index in (0, 1)]
    consumer.assign(tps)
    consumer.seek_to_beginning()
    ends = consumer.end_offsets(tps)
    records: list[Any] = []
    while any(consumer.position(tp) < ends[tp] for tp in tps):
        for batch in consumer.poll(timeout_ms=TIMEOUT_SECONDS * 1000).values():
            records += batch
    assert len(records) == count
    return records


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("compression", CODECS)
def test_produce_and_consume(broker: EmbeddedBroker, make: Any, topic: str, compression: str | None, idempotent: bool) -> None:
    producer = make(KafkaProducer, compression_type=compression, enable_idempotence=idempotent, acks="all")
    futures = [producer.send(topic, key=key, value=value, headers=[("h", b"1")]) for key, value in ROWS]
    producer.flush(TIMEOUT_SECONDS)
    assert all(future.get(TIMEOUT_SECONDS).offset >= 0 for future in futures)
    records = consume(make, topic, len(ROWS))
    assert sorted((record.key, record.value) for record in records) == sorted(ROWS)
    assert all(list(record.headers) == [("h", b"1")] for record in records)


def test_transactions(broker: EmbeddedBroker, make: Any, topic: str) -> None:
    producer = make(KafkaProducer, transactional_id=f"id-{topic}")
    producer.init_transactions()
    for round_number, commit in enumerate((True, False, True)):
        producer.begin_transaction()
        for number in range(10):
            producer.send(topic, key=b"%d" % number, value=b"round %d" % round_number)
        producer.flush(TIMEOUT_SECONDS)
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    records = consume(make, topic, 20)
    assert sorted(record.value for record in records) == [b"round 0"] * 10 + [b"round 2"] * 10
    assert broker.read(topic, "read_uncommitted").num_rows == 30


def test_culprits_and_innocents(broker: EmbeddedBroker, make: Any) -> None:
    producer = make(KafkaProducer, linger_ms=1000, enable_idempotence=False)
    rows = [(b"k", b"0"), (None, b"1"), (b"k", b"2"), (None, b"3")]
    futures = [producer.send("compacted", key=key, value=value) for key, value in rows]
    producer.flush(TIMEOUT_SECONDS)
    kinds = []
    for future in futures:
        with pytest.raises(KafkaError) as caught:
            future.get(TIMEOUT_SECONDS)
        kinds.append(isinstance(caught.value, InvalidRecordError))
    assert kinds == [False, True, False, True]
    assert broker.read("compacted").num_rows == 0
