"""The short way of a record into a batch, `ProducerCore.join`: only where nothing is to be decided."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core.options import parse_options
from chaffinch.producer.core.producer_core import ProducerCore

PLACE = TopicPartition("orders", 0)
BATCH_BYTES = 1_000


def growing(**options: object) -> ProducerCore:
    """A core with one batch, of one record, that the topic's next records join."""
    core = ProducerCore(parse_options({"bootstrap.servers": "a:1", "batch.size": BATCH_BYTES, **options}), random.Random(1))
    core.append(PLACE, None, b"first", 0, (), "first", 100, 0)
    core.open_lane(PLACE)
    return core


def test_a_record_joins_and_holds_memory() -> None:
    core = growing()
    free = core.accumulator.memory_free
    assert core.join("orders", None, b"value", 7, "second") == ["first", "second"]
    assert free - core.accumulator.memory_free == core.accumulator.growing(PLACE).size - 161  # type: ignore[union-attr]
    batch = core.accumulator.take(PLACE)
    assert batch is not None
    assert (batch.decode().value(1), batch.timestamps.tolist()) == (b"value", [0, 7])


STOPS: list[tuple[str, dict[str, object], int, Callable[[ProducerCore], object]]] = [
    ("its batch has no room", {}, BATCH_BYTES - 161 - 36, lambda core: None),
    ("there is no memory", {"buffer.memory": 150}, 50, lambda core: None),
    ("no request takes it", {"max.request.size": 161}, 70, lambda core: None),
    ("the batch is gone", {}, 10, lambda core: core.accumulator.take(PLACE)),
    ("the batch is closed", {}, 10, lambda core: core.accumulator.begins_batch(PLACE, BATCH_BYTES)),
    ("the partitioner is to choose", {}, 10, lambda core: core.choose_partition("orders", None, b"v", 1, 100)),
    ("no more records are taken", {}, 10, lambda core: core.shut()),
]


@pytest.mark.parametrize(("options", "size", "stop"), [row[1:] for row in STOPS], ids=[row[0] for row in STOPS])
def test_or_goes_step_by_step(options: dict[str, object], size: int, stop: Callable[[ProducerCore], object]) -> None:
    core = growing(**options)
    stop(core)
    free = core.accumulator.memory_free
    assert core.join("orders", None, b"v" * size, 0, "second") is None
    assert core.accumulator.memory_free == free
    assert core.join("others", None, b"", 0, "third") is None, "nothing grows there"
