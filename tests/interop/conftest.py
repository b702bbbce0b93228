"""What the tests of single clients share. Each file has a fixture `broker` of its own."""

from __future__ import annotations

import pytest

from chaffinch import EmbeddedBroker


@pytest.fixture
def topic(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> str:
    """A topic with two partitions for one test, named after it."""
    name = "".join(character if character.isalnum() else "-" for character in request.node.name)[:200]
    broker.create_topic(name, 2)
    return name
