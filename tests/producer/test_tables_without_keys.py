"""Rows without keys fill batches wherever there is room, unless something says where they may go, or may not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from chaffinch import EmbeddedBroker, Producer
from chaffinch.producer.core.partitioner import Availability
from chaffinch.producer.core.refusals.screening import Screening

ROWS = pa.table({"value": [bytes(100)] * 5000})


@pytest.fixture
def producer() -> Iterator[Producer]:
    with (
        EmbeddedBroker(topics={"orders": {"partitions": 3}}) as broker,
        Producer(bootstrap_servers=broker.bootstrap_servers, batch_size=5000) as made,
    ):
        yield made


def test_they_go_where_they_ask_to(producer: Producer) -> None:
    asked = [row % 2 for row in range(5000)]
    result = producer.send_table("orders", ROWS.append_column("partition", pa.array(asked, pa.int32()))).result(60)
    assert result.offsets.column("partition").to_pylist() == asked


def test_they_go_to_no_partition_without_a_leader(producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Availability, "partitions", lambda availability, topic: [0, 2])
    result = producer.send_table("orders", ROWS).result(60)
    assert np.unique(result.offsets.column("partition")).tolist() == [0, 2]


def test_they_are_not_sent_where_none_without_a_key_is_taken(producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Screening, "of_rows", lambda screening, topic, handed_over_ms, steady_ms: {1: "it takes none"})
    result = producer.send_table("orders", ROWS).result(60)
    assert np.unique(result.offsets.column("partition")).tolist() == [0, 2]
    assert set(result.rejected.column("partition").to_pylist()) == {1}
    assert result.written + result.rejected_count == 5000
