"""Fixtures: a broker that all tests of a module share, each with topics of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chaffinch import EmbeddedBroker


@pytest.fixture(scope="module")
def shared_broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(config={"group.initial.rebalance.delay.ms": 0, "group.min.session.timeout.ms": 100}) as running:
        yield running
