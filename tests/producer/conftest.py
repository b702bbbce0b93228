"""Fixtures: a broker with a topic for each kind of failure, and producers for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chaffinch import EmbeddedBroker, Producer
from tests.producer.inline import enable_inline

TOPICS = {
    "orders": {"partitions": 3},
    "latest": {"partitions": 1, "cleanup.policy": "compact"},
    "small": {"partitions": 1, "max.message.bytes": 2000},
    "doomed": {"partitions": 1, "min.insync.replicas": 3},
    "stamped": {"partitions": 1, "message.timestamp.type": "LogAppendTime"},
}


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics=TOPICS) as running:
        yield running


@pytest.fixture
def strict_broker() -> Iterator[EmbeddedBroker]:
    """A broker that does not create topics on request."""
    with EmbeddedBroker(topics=TOPICS, config={"auto.create.topics.enable": False}) as running:
        yield running


@pytest.fixture
def producer_of() -> Callable[..., Producer]:
    """Factory of producers with short waits; the test closes them."""

    def make(broker: EmbeddedBroker, **options: Any) -> Producer:
        return Producer(bootstrap_servers=broker.bootstrap_servers, **{"linger_ms": 1, "retry_backoff_ms": 10, **options})

    return make


@pytest.fixture
def inline_producer(producer_of: Callable[..., Producer], broker: EmbeddedBroker) -> Iterator[Producer]:
    """A producer with inline sends enabled for all partitions of `orders`."""
    with producer_of(broker, linger_ms=0) as producer:
        enable_inline(producer)
        yield producer
