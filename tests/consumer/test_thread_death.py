"""When the consumer's thread dies, waiting and later calls raise, and the consumer can be closed."""

from __future__ import annotations

from typing import NoReturn

import pytest

from chaffinch import Consumer, EmbeddedBroker, TopicPartition
from chaffinch.errors import KafkaException
from tests.consumer.conftest import ConsumerOf
from tests.consumer.polling import write

LATEST_S = 60


def kill_thread(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread does the next job, then dies when it waits for more."""

    def no_memory(*_: object) -> NoReturn:
        raise MemoryError("no memory")

    monkeypatch.setattr(consumer._thread._network, "poll", no_memory)


def test_dead_thread_fails_waiting_poll_and_later_calls(
    broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer: Consumer = consumer_of(broker)
    consumer.assign([TopicPartition(topic, 0)])
    kill_thread(consumer, monkeypatch)
    for call in (lambda: consumer.poll(LATEST_S), consumer.metrics, consumer.assignment, consumer.commit):
        with pytest.raises(KafkaException, match="the consumer's thread has died: MemoryError"):
            call()
    consumer.close()
    assert not consumer._thread._thread.is_alive()


def test_close_after_interrupted_poll_on_dead_thread(
    broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They cannot be read again, since the thread is dead."""

    def interrupted(_: bytes) -> NoReturn:
        raise KeyboardInterrupt

    write(broker, topic, [b"v"])
    consumer: Consumer = consumer_of(broker, value_deserializer=interrupted)
    consumer.assign([TopicPartition(topic, 0)])
    with pytest.raises(KeyboardInterrupt):
        consumer.poll(LATEST_S)
    kill_thread(consumer, monkeypatch)
    consumer._thread.notify()
    consumer._thread._thread.join(LATEST_S)
    consumer.close()
    assert "closed" in repr(consumer)
