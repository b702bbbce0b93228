"""A poll without a timeout ends after a callback that closes or unsubscribes the consumer."""

from __future__ import annotations

import pytest

from chaffinch import EmbeddedBroker, TopicPartition, errors
from tests.consumer.conftest import ConsumerOf, ProducerOf
from tests.consumer.polling import LIMIT_S

pytestmark = pytest.mark.timeout(2 * LIMIT_S)

ENDS = {
    "unsubscribe": lambda consumer: consumer.unsubscribe(),
    "subscribe": lambda consumer: consumer.subscribe([]),
    "assign": lambda consumer: consumer.assign([]),
}


@pytest.mark.parametrize("end", ENDS)
def test_close_or_unsubscribe_in_on_assign_ends_poll(broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf, end: str) -> None:
    consumer, ended = consumer_of(broker), []
    consumer.subscribe([topic], on_assign=lambda _: ended.append(ENDS[end](consumer)))
    assert consumer.poll() == []
    assert ended
    with pytest.raises(errors.IllegalStateException, match="nothing to poll"):
        consumer.poll()


def test_close_in_on_commit_ends_poll(broker: EmbeddedBroker, topic: str, consumer_of: ConsumerOf) -> None:
    """The callback of a commit closes the consumer within the poll. The commit starts within it as well; callbacks after it still run."""
    consumer, results = consumer_of(broker), []

    def commit(_: list[TopicPartition]) -> None:
        for call in (consumer.unsubscribe, lambda: None):
            consumer.commit({TopicPartition(topic, 0): 0}, asynchronous=True, on_commit=lambda *_, call=call: results.append(call()))

    consumer.subscribe([topic], on_assign=commit)
    assert consumer.poll() == []
    assert results


def test_new_subscription_in_callback_continues_poll(
    broker: EmbeddedBroker, name: str, topic: str, producer_of: ProducerOf, consumer_of: ConsumerOf
) -> None:
    consumer, other = consumer_of(broker), f"{name}-other"
    broker.create_topic(other, 1)
    producer_of(broker).send(other, b"v").result(LIMIT_S)

    def change(_: list[TopicPartition]) -> None:
        consumer.unsubscribe()
        consumer.assign([TopicPartition(other, 0)])

    consumer.subscribe([topic], on_assign=change)
    assert [record.value for record in consumer.poll()] == [b"v"]
