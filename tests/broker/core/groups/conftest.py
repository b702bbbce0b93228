"""The cluster of tests of groups."""

import pytest

from tests.broker.core_client import Cluster


@pytest.fixture
def cluster() -> Cluster:
    """One broker, with four partitions of `orders`."""
    cluster = Cluster()
    cluster.topic("orders", 4)
    return cluster
