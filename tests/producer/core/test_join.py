"""`ProducerCore.join`: the fast path of `append`, taken only if no decision is needed."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core.options import parse_options
from chaffinch.producer.core.partitioner import partition_of_key
from chaffinch.producer.core.producer_core import ProducerCore
from tests.producer.core.rig import Rig, new_record

ORDERS_0 = TopicPartition("orders", 0)
BATCH_BYTES = 1_000


def core_with_growing_batch(**options: object) -> ProducerCore:
    """A core with one batch, of one record, that the topic's next records join."""
    core = ProducerCore(parse_options({"bootstrap.servers": "a:1", "batch.size": BATCH_BYTES, **options}), random.Random(1))
    core.append(ORDERS_0, new_record(None, b"first", "first", size=100, timestamp_ms=0), 0)
    core.remember_sticky_batch(ORDERS_0, None)
    return core


def test_joined_record_takes_memory() -> None:
    core = core_with_growing_batch()
    free = core.accumulator.memory_free
    assert core.join("orders", None, b"value", 7, "second") == ["first", "second"]
    assert free - core.accumulator.memory_free == core.accumulator.growing(ORDERS_0).size - 161  # type: ignore[union-attr]
    batch = core.accumulator.take(ORDERS_0)
    assert batch is not None
    assert (batch.decode().value(1), batch.timestamps.tolist()) == (b"value", [0, 7])


OBSTACLES: list[tuple[str, dict[str, object], int, Callable[[ProducerCore], object]]] = [
    ("the batch is full", {}, BATCH_BYTES - 161 - 36, lambda core: None),
    ("no memory is free", {"buffer.memory": 150}, 50, lambda core: None),
    ("the record exceeds max.request.size", {"max.request.size": 161}, 70, lambda core: None),
    ("the batch is gone", {}, 10, lambda core: core.accumulator.take(ORDERS_0)),
    ("the batch is closed", {}, 10, lambda core: core.accumulator.begins_batch(ORDERS_0, BATCH_BYTES)),
    ("the partitioner must choose", {}, 10, lambda core: core.choose_partition("orders", None, b"v", 1, 100)),
    ("the core is shut", {}, 10, lambda core: core.shut()),
]


@pytest.mark.parametrize(("options", "size", "obstacle"), [row[1:] for row in OBSTACLES], ids=[row[0] for row in OBSTACLES])
def test_join_returns_none_and_takes_no_memory(options: dict[str, object], size: int, obstacle: Callable[[ProducerCore], object]) -> None:
    core = core_with_growing_batch(**options)
    obstacle(core)
    free = core.accumulator.memory_free
    assert core.join("orders", None, b"v" * size, 0, "second") is None
    assert core.accumulator.memory_free == free
    assert core.join("others", None, b"", 0, "third") is None, "no batch grows there"


def test_records_without_a_key_do_not_join_the_batch_of_a_key() -> None:
    rig = Rig(options={"linger.ms": 1_000, "batch.size": BATCH_BYTES}, partitions=4)
    without_key = send_record(rig, None)
    hot = next(key for key in (b"%d" % number for number in range(100)) if partition_of_key(key, 4) != without_key.partition)
    for _ in range(3):
        send_record(rig, hot)
        assert send_record(rig, None) == without_key


def send_record(rig: Rig, key: bytes | None) -> TopicPartition:
    """Send a record as the shell does. Returns its partition."""
    core = rig.core
    if (futures := core.join("orders", key, b"v", 0, "future")) is None:
        chosen = TopicPartition("orders", core.choose_partition("orders", key, b"v", 4, 100))
        futures, _ = core.append(chosen, new_record(key, b"v", "future", chosen.partition, size=100), rig.steady_ms)
        core.remember_sticky_batch(chosen, key)
    tps = (TopicPartition("orders", number) for number in range(4))
    return next(tp for tp in tps if (batch := core.accumulator.growing(tp)) is not None and batch.futures is futures)
