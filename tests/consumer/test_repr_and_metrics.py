"""What people see who look at a consumer, its records and its numbers; nothing of it is secret or without end."""

from __future__ import annotations

import time
from typing import Any, cast

import numpy as np

from chaffinch import Consumer, ConsumerRecord, EmbeddedBroker, TopicPartition
from chaffinch.consumer.metrics import METRICS
from tests.consumer.conftest import ConsumerOf
from tests.consumer.polling import committed, read, write

LOGIN = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": "me", "sasl_password": "hidden"}


def test_repr_of_consumer(broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
    consumer = consumer_of(broker, client_id="me", **LOGIN)
    start = f"<Consumer 'me' of {broker.bootstrap_servers}, group.id 'test-repr-of-consumer'"
    assert repr(consumer) == str(consumer) == f"{start}, reads none>"
    consumer.assign([TopicPartition(topic, number) for number in range(7)])
    assert repr(consumer) == f"{start}, reads {', '.join(f'{topic}-{number}' for number in range(5))} and 2 more>"
    consumer.close()
    assert repr(consumer) == f"{start}, closed>"
    assert "hidden" not in repr(consumer.settings)


def test_repr_without_a_group() -> None:
    with Consumer(bootstrap_servers="127.0.0.1:1", client_id="me") as consumer:
        assert repr(consumer) == "<Consumer 'me' of 127.0.0.1:1, reads none>"


def test_repr_of_record() -> None:
    record = ConsumerRecord("orders", 1, 7, 1700000000000, 0, None, b"x" * 1000)
    assert repr(record) == (
        "ConsumerRecord(topic='orders', partition=1, offset=7, timestamp_ms=1700000000000, timestamp_type=0, key=None, "
        f"value={b'x' * 100!r}... (1000 bytes))"
    )
    other: ConsumerRecord[Any, str] = ConsumerRecord("orders", 1, 7, -1, 0, np.arange(2), "é", [("h", None)], 3)
    assert repr(other).endswith("key=array([0, 1]), value='é', headers=[('h', None)], leader_epoch=3)")


def test_metrics(broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
    write(broker, topic, [b"one", b"two", b"three"])
    consumer = consumer_of(broker, max_poll_records=2)
    began = time.monotonic()
    tp = TopicPartition(topic, 0)
    consumer.assign([tp])
    assert consumer.metrics()["metadata-age"] == -1 or consumer.metrics()["assigned-partitions"] == 1
    read(consumer, 2)
    consumer.commit()
    consumer.pause([tp])
    found = consumer.metrics()
    assert found.keys() == METRICS.keys()
    assert found["records-consumed-total"] == 2
    assert found["records-lag-max"] == 1
    assert found["commit-total"] == 1
    assert found["failed-commit-total"] == found["heartbeat-total"] == found["join-total"] == found["offset-reset-total"] == 0
    assert found["assigned-partitions"] == found["paused-partitions"] == 1
    assert found["fetch-total"] >= found["fetch-answer-total"] >= 1
    assert 0 <= found["metadata-age"] <= time.monotonic() - began + 1


def test_numpy_integers_are_accepted(broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
    write(broker, topic, [b"one", b"two", b"three"])
    consumer = consumer_of(broker)
    tp = cast(TopicPartition, (topic, np.int32(0)))
    two, thirty, one, zero = (cast(int, np.int64(number)) for number in (2, 30, 1, 0))
    consumer.assign([tp])
    consumer.seek(tp, two)
    assert type(consumer.position(tp, timeout=thirty)) is int
    assert [record.value for record in read(consumer, 1)] == [b"three"]
    consumer.commit({tp: one})
    assert committed(consumer, tp).offset == 1
    found = consumer.offsets_for_times({tp: zero})[TopicPartition(topic, 0)]
    assert found is not None
    assert found.offset == 0
