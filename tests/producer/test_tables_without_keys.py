"""Rows without keys fill batches of any partition, unless a column, a missing leader or screening restricts them."""

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
        Producer(bootstrap_servers=broker.bootstrap_servers, batch_size=5000) as producer,
    ):
        yield producer


def test_rows_with_a_partition_column_go_there(producer: Producer) -> None:
    requested = [row % 2 for row in range(5000)]
    result = producer.send_table("orders", ROWS.append_column("partition", pa.array(requested, pa.int32()))).result(60)
    assert result.offsets.column("partition").to_pylist() == requested


def test_rows_skip_partitions_without_a_leader(producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Availability, "partitions", lambda availability, topic: [0, 2])
    result = producer.send_table("orders", ROWS).result(60)
    assert np.unique(result.offsets.column("partition")).tolist() == [0, 2]


def test_rows_of_a_screened_partition_are_rejected_unsent(producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Screening, "of_rows", lambda screening, topic, handed_over_ms, steady_ms: {1: "no records without keys"})
    result = producer.send_table("orders", ROWS).result(60)
    assert np.unique(result.offsets.column("partition")).tolist() == [0, 2]
    assert set(result.rejected.column("partition").to_pylist()) == {1}
    assert result.written + result.rejected_count == 5000
