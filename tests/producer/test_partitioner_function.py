"""A user's partitioner function is called without a lock, on the thread of `send`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from chaffinch import EmbeddedBroker, Producer

Make = Callable[..., Producer]
LATEST_S = 60


def test_slow_partitioner_blocks_no_other_thread(producer_of: Make, broker: EmbeddedBroker) -> None:
    is_called, may_return = threading.Event(), threading.Event()

    def wait_for_key(topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        if key == b"slow":
            is_called.set()
            assert may_return.wait(LATEST_S)
        return 1

    with producer_of(broker, partitioner=wait_for_key) as producer, ThreadPoolExecutor(1) as pool:
        slow = pool.submit(producer.send, "orders", b"v", key=b"slow")
        assert is_called.wait(LATEST_S)
        assert producer.send("orders", b"v", key=b"fast").result(LATEST_S).offset == 0
        may_return.set()
        assert slow.result(LATEST_S).result(LATEST_S).offset == 1


def test_partitioner_can_send_a_record_itself(producer_of: Make, broker: EmbeddedBroker) -> None:
    """It waits for the outcome, which the sender thread can only deliver while the producer's lock is free."""

    def send_first(topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        if key != b"first":
            assert producer.send("orders", b"sent by the partitioner", key=b"first").result(LATEST_S).partition == 2
        return 2

    with producer_of(broker, partitioner=send_first) as producer:
        assert producer.send("orders", b"v", key=b"k").result(LATEST_S).offset == 1


@pytest.mark.parametrize("is_known", [False, True])
def test_partitioner_is_called_once_per_record(producer_of: Make, broker: EmbeddedBroker, is_known: bool) -> None:
    """Also if the record must wait for the topic first; and records of one thread stay in order."""
    calls: list[Any] = []

    def record_call(topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        calls.append((value, partition_count))
        return 0

    values = [b"%d" % number for number in range(20)]
    with producer_of(broker, partitioner=record_call) as producer:
        if is_known:
            producer.partitions_for("orders")
        futures = [producer.send("orders", value) for value in values]
    assert calls == [(value, 3) for value in values]
    assert [future.result(0).offset for future in futures] == list(range(20))
    assert broker.read("orders").column("value").to_pylist() == values


def test_exception_of_a_partitioner_reaches_the_caller_with_its_name(producer_of: Make, broker: EmbeddedBroker) -> None:
    def strict(topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        if key is None:
            raise LookupError("no key")
        return 0

    with producer_of(broker, partitioner=strict) as producer:
        with pytest.raises(LookupError, match="no key") as raised:
            producer.send("orders", b"v")
        assert "strict, which was called for a record of 'orders'" in raised.value.__notes__[0]
        assert producer.send("orders", b"v", key=b"k").result(LATEST_S).offset == 0
