"""Every codec through other hands: librdkafka writes with each, the broker stores as the topic says, librdkafka reads it back."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from chaffinch.broker.embedded import EmbeddedBroker

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COMPRESSION_TYPES = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
RECORDS = [(b"key %d" % index, b"a value that compresses, a value that compresses %d" % index) for index in range(50)]
WAIT_S = 60


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        topics = [NewTopic(name, 1, 1, config={"compression.type": name}) for name in COMPRESSION_TYPES]
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        for created in admin.create_topics(topics).values():
            created.result(WAIT_S)
        yield broker.bootstrap_servers


@pytest.fixture(scope="module")
def written(address: str) -> str:
    """Each topic gets RECORDS once per codec, in the order of CODECS."""
    failed = []
    for codec in CODECS:
        producer = Producer({"bootstrap.servers": address, "compression.type": codec, "linger.ms": 5})
        for topic in COMPRESSION_TYPES:
            for key, value in RECORDS:
                producer.produce(topic, value, key, on_delivery=lambda error, _: failed.append(error) if error else None)
        assert producer.flush(WAIT_S) == 0
    assert failed == []
    return address


@pytest.mark.parametrize("topic", COMPRESSION_TYPES)
def test_records_are_read_back_for_each_pair_of_codecs(written: str, topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": written, "group.id": "reader", "check.crcs": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(len(RECORDS) * len(CODECS), WAIT_S)
    consumer.close()
    assert [message.error() for message in messages if message.error()] == []
    assert [(message.key(), message.value()) for message in messages] == RECORDS * len(CODECS)
