"""Several brokers whose leaders move while batches are in flight: nothing is lost or duplicated, and order is kept."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow.compute as pc
import pytest

from chaffinch import Producer
from chaffinch.broker.embedded import EmbeddedBroker

LATEST_S = 60
RECORDS = 600
STOP_EVERY = 100


@pytest.mark.parametrize("abruptly", [False, True])
def test_moving_leaders_lose_and_duplicate_nothing(producer_of: Callable[..., Producer], abruptly: bool) -> None:
    with EmbeddedBroker(brokers=3, topics={"orders": {"partitions": 3, "replication": 3}}) as broker:
        with producer_of(broker, batch_size=200, linger_ms=0) as producer:
            futures = []
            for number in range(RECORDS):
                if number % STOP_EVERY == STOP_EVERY // 2:
                    broker.stop_node(number // STOP_EVERY % 3, abruptly=abruptly)
                if number % STOP_EVERY == STOP_EVERY - 1:
                    broker.start_node(number // STOP_EVERY % 3)
                futures.append(producer.send("orders", b"%05d" % number, partition=number % 3))
            offsets = [future.result(LATEST_S).offset for future in futures]
        table = broker.read("orders")
    for partition in range(3):
        mine = table.filter(pc.equal(table["partition"], partition)).sort_by("offset")
        assert mine["value"].to_pylist() == [b"%05d" % number for number in range(partition, RECORDS, 3)]
        assert mine["offset"].to_pylist() == offsets[partition::3]
