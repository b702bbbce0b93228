"""Formats 0 and 1 from clients that still write them: librdkafka and kafka-python, configured for an old broker.

What they send is stored as batches of format 2 and read back by a current consumer.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaProducer

from chaffinch.broker.core.append import AppendTerms, Outcome, append
from chaffinch.broker.core.broker_state import BrokerState
from chaffinch.broker.core.handlers import produce
from chaffinch.broker.core.topics.registry import Partition
from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.records.batch_header import MAGIC_POSITION

WAIT_S = 60
RECORDS = [
    (b"key %d" % index if index % 3 else None, b"a value that compresses, a value that compresses %d" % index) for index in range(30)
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> set[tuple[int, int]]:
    """(Produce version, format) of everything that reaches the append path."""
    seen = set()

    def remembered(broker: BrokerState, partition: Partition, records: memoryview, terms: AppendTerms, wall_ms: int) -> Outcome:
        seen.add((terms.version, records[MAGIC_POSITION]))
        return append(broker, partition, records, terms, wall_ms)

    monkeypatch.setattr(produce, "append", remembered)
    return seen


def read_back(address: str, topic: str) -> tuple[list[tuple[bytes | None, bytes | None]], list[int]]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "reader", "check.crcs": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(len(RECORDS), WAIT_S)
    consumer.close()
    assert [message.error() for message in messages if message.error()] == []
    return [(message.key(), message.value()) for message in messages], [message.timestamp()[1] for message in messages]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
@pytest.mark.parametrize(("release", "version"), [("0.8.2", 0), ("0.9.0", 1)])
def test_librdkafka_writes_format_0(address: str, sent: set[tuple[int, int]], release: str, version: int, codec: str) -> None:
    """Its lz4 frames have the header checksum of that time (KIP-57)."""
    topic = f"librdkafka-{release}-{codec}"
    settings = {
        "api.version.request": False,
        "broker.version.fallback": release,
        "compression.type": codec,
        "linger.ms": 50,
        "log_level": 0,
    }
    producer = Producer({"bootstrap.servers": address, **settings})
    failed = []
    for key, value in RECORDS:
        producer.produce(topic, value, key, partition=0, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(WAIT_S) == 0
    assert (failed, sent) == ([], {(version, 0)})
    records, timestamps = read_back(address, topic)
    assert records == RECORDS
    assert set(timestamps) == {-1}


@pytest.mark.parametrize("codec", [None, "gzip"])
@pytest.mark.parametrize(("release", "expected"), [((0, 9), (1, 0)), ((0, 10), (2, 1))])
def test_kafka_python_writes_formats_0_and_1(
    address: str, sent: set[tuple[int, int]], release: tuple[int, int], expected: tuple[int, int], codec: str | None
) -> None:
    topic = f"kafka-python-{release[1]}-{codec}"
    producer = KafkaProducer(bootstrap_servers=address, api_version=release, compression_type=codec, enable_idempotence=False, linger_ms=50)
    times = [1_700_000_000_000 + index for index in range(len(RECORDS))]
    waiting = [
        producer.send(topic, value, key, partition=0, timestamp_ms=time_ms) for (key, value), time_ms in zip(RECORDS, times, strict=True)
    ]
    assert [future.get(WAIT_S).offset for future in waiting] == list(range(len(RECORDS)))
    producer.close()
    assert sent == {expected}
    records, timestamps = read_back(address, topic)
    assert records == RECORDS
    assert timestamps == (times if expected[1] else [-1] * len(RECORDS))
