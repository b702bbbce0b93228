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

PLACE = TopicPartition("orders", 0)
BATCH_BYTES = 1_000


def growing(**options: object) -> ProducerCore:
    """A core with one batch, of one record, that the topic's next records join."""
    core = ProducerCore(parse_options({"bootstrap.servers": "a:1", "batch.size": BATCH_BYTES, **options}), random.Random(1))
    core.append(PLACE, new_record(None, b"first", "first", size=100, timestamp_ms=0), 0)
    core.remember_sticky_batch(PLACE, None)
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


def test_records_without_a_key_do_not_follow_one_that_has_one() -> None:
    rig = Rig(options={"linger.ms": 1_000, "batch.size": BATCH_BYTES}, partitions=4)
    without_key = tp(rig, None)
    hot = next(key for key in (b"%d" % number for number in range(100)) if partition_of_key(key, 4) != without_key.partition)
    for _ in range(3):
        tp(rig, hot)
        assert tp(rig, None) == without_key


def tp(rig: Rig, key: bytes | None) -> TopicPartition:
    """Send a record as the shell does; its partition."""
    core = rig.core
    if (futures := core.join("orders", key, b"v", 0, "receipt")) is None:
        chosen = TopicPartition("orders", core.choose_partition("orders", key, b"v", 4, 100))
        futures, _ = core.append(chosen, new_record(key, b"v", "receipt", chosen.partition, size=100), rig.steady_ms)
        core.remember_sticky_batch(chosen, key)
    tps = (TopicPartition("orders", number) for number in range(4))
    return next(tp for tp in tps if (batch := core.accumulator.growing(tp)) is not None and batch.futures is futures)
