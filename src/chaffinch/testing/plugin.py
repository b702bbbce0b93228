"""pytest plugin: the fixtures `kafka_broker`, `kafka_broker_options` and `kafka`.

pytest loads it in every project that has chaffinch installed, so it imports the broker only when a test asks for it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from chaffinch.broker.embedded import EmbeddedBroker
    from chaffinch.testing.namespace import KafkaNamespace


def _leave_modules_unchanged() -> None:
    """Keep pytest from rewriting assertions in all modules of this distribution, as it does for every plugin: it takes seconds in the
    first run, and CPython 3.11 may fail at it in a thread. Has no effect if pytest keeps its list elsewhere.
    """
    for finder in sys.meta_path:
        marked = getattr(finder, "_must_rewrite", None)
        if isinstance(marked, set):
            marked.discard("chaffinch")


_leave_modules_unchanged()


@pytest.fixture(scope="session")
def kafka_broker_options() -> Mapping[str, Any]:
    """Arguments of `EmbeddedBroker` for `kafka_broker`; override it in a conftest.py, for example to declare three nodes."""
    return {}


@pytest.fixture(scope="session")
def kafka_broker(kafka_broker_options: Mapping[str, Any]) -> Iterator[EmbeddedBroker]:
    """A Kafka broker for all tests of the session, with its data in memory; under pytest-xdist, one for each worker."""
    from chaffinch.broker.embedded import EmbeddedBroker

    with EmbeddedBroker(**kafka_broker_options) as broker:
        yield broker


@pytest.fixture
def kafka(kafka_broker: EmbeddedBroker) -> Iterator[KafkaNamespace]:
    """Topics, groups and clients of one test on the shared broker; removed after the test."""
    from chaffinch.testing.namespace import KafkaNamespace

    with KafkaNamespace(kafka_broker) as namespace:
        yield namespace
