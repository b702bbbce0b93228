"""One broker for all tests of a file, a topic for each test, and consumers that wait little."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chaffinch import Consumer, EmbeddedBroker, Producer

ConsumerOf = Callable[..., Consumer]
ProducerOf = Callable[..., Producer]

CONFIG = {
    "group.min.session.timeout.ms": 100,
    "auto.create.topics.enable": False,
    "log.retention.ms": -1,  # Some records of tests are old.
}


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(config=CONFIG) as running:
        yield running


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name of this test's own, for topics and groups."""
    return "".join(character if character.isalnum() else "-" for character in request.node.name)[:200]


@pytest.fixture
def topic(broker: EmbeddedBroker, name: str) -> str:
    broker.create_topic(name, 1)
    return name


@pytest.fixture
def consumer_of(name: str) -> Iterator[ConsumerOf]:
    """Makes consumers; those that the test leaves open are closed at its end."""
    made: list[Consumer] = []

    def make(broker: EmbeddedBroker, **options: Any) -> Consumer:
        options = {"group_id": name, "auto_offset_reset": "earliest", "retry_backoff_ms": 10, "heartbeat_interval_ms": 20, **options}
        made.append(Consumer(bootstrap_servers=broker.bootstrap_servers, **options))
        return made[-1]

    yield make
    for consumer in made:
        consumer.close(5)


@pytest.fixture
def producer_of() -> Iterator[ProducerOf]:
    made: list[Producer] = []

    def make(broker: EmbeddedBroker, **options: Any) -> Producer:
        made.append(Producer(bootstrap_servers=broker.bootstrap_servers, **{"linger_ms": 0, "retry_backoff_ms": 10, **options}))
        return made[-1]

    yield make
    for producer in made:
        producer.close(5)
