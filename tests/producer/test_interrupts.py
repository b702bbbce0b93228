"""Ctrl-C may come at any time: whenever Python enters a function it may call a signal handler, which raises."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from chaffinch import EmbeddedBroker, Producer
from tests.producer.waits import held_up, in_thread

Make = Callable[..., Producer]
LATEST_S = 60


class Interrupt:
    """Raises KeyboardInterrupt in the thread that enters it, at the entry of function number `index` with the producer's lock held."""

    def __init__(self, producer: Producer, index: int) -> None:
        self._producer, self.left, self._tracer = producer, index, sys.gettrace()

    def __enter__(self) -> None:
        sys.settrace(self._traced)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._tracer)

    def _traced(self, _frame: FrameType, _event: str, _argument: object) -> None:
        if self._producer._lock._is_owned():
            self.left -= 1
            if self.left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt


@pytest.mark.parametrize(
    "call",
    [
        lambda producer: producer.send("orders", b"interrupted"),
        lambda producer: producer.send("orders", b"interrupted", partition=1),
        lambda producer: producer.send_table("orders", pa.table({"value": [b"interrupted"]})),
        lambda producer: producer.partitions_for("orders"),
        lambda producer: producer.metrics(),
    ],
    ids=["send", "send to a partition", "send_table", "partitions_for", "metrics"],
)
def test_with_the_lock_held_nobody_is_held_up(producer_of: Make, broker: EmbeddedBroker, call: Callable[[Producer], Any]) -> None:
    """The lock is let go, and what is sent before and after arrives, once, and whoever sent it is told its offset."""
    told: dict[bytes, Any] = {}
    producer = producer_of(broker)
    producer.partitions_for("orders")
    index = 0
    while True:
        with held_up(producer):
            before = producer.send("orders", b"before-%d" % index, partition=0)
            interrupt = Interrupt(producer, index)
            try:
                with interrupt:
                    call(producer)
            except KeyboardInterrupt:
                pass
            assert in_thread(producer.metrics).result(LATEST_S)
            after = producer.send("orders", b"after-%d" % index, partition=0)
        told[b"before-%d" % index], told[b"after-%d" % index] = before.result(LATEST_S).offset, after.result(LATEST_S).offset
        if interrupt.left >= 0:
            break
        index += 1
    producer.close()  # Not by `with`: with the lock held for ever it would wait for ever.
    assert index > 1
    rows = broker.read("orders").to_pylist()
    stored = {row["value"]: row["offset"] for row in rows if row["value"] != b"interrupted"}
    assert stored == told
