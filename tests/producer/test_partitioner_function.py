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


def test_slow_handler_blocks_no_other_thread(producer_of: Make, broker: EmbeddedBroker) -> None:
    is_asked, may_go_on = threading.Event(), threading.Event()

    def wait_for_key(topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        if key == b"slow":
            is_asked.set()
            assert may_go_on.wait(LATEST_S)
        return 1

    with producer_of(broker, partitioner=wait_for_key) as producer, ThreadPoolExecutor(1) as pool:
        slow = pool.submit(producer.send, "orders", b"v", key=b"slow")
        assert is_asked.wait(LATEST_S)
        assert producer.send("orders", b"v", key=b"fast").result(LATEST_S).offset == 0
        may_go_on.set()
        assert slow.result(LATEST_S).result(LATEST_S).offset == 1


def test_one_that_sends_itself(producer_of: Make, broker: EmbeddedBroker) -> None:
    """It waits for the outcome, which the sender thread can only report while its lock is free."""

    def tell_first(topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        if key != b"first":
            assert producer.send("orders", b"told", key=b"first").result(LATEST_S).partition == 2
        return 2

    with producer_of(broker, partitioner=tell_first) as producer:
        assert producer.send("orders", b"v", key=b"k").result(LATEST_S).offset == 1


@pytest.mark.parametrize("is_known", [False, True])
def test_it_is_asked_once_for_each_record(producer_of: Make, broker: EmbeddedBroker, is_known: bool) -> None:
    """Also where the record has to wait for the topic first; and the records of one thread stay in order."""
    asked: list[Any] = []

    def note(topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        asked.append((value, partition_count))
        return 0

    values = [b"%d" % number for number in range(20)]
    with producer_of(broker, partitioner=note) as producer:
        if is_known:
            producer.partitions_for("orders")
        futures = [producer.send("orders", value) for value in values]
    assert asked == [(value, 3) for value in values]
    assert [future.result(0).offset for future in futures] == list(range(20))
    assert broker.read("orders").column("value").to_pylist() == values


def test_what_it_raises_reaches_the_caller_with_its_name(producer_of: Make, broker: EmbeddedBroker) -> None:
    def strict(topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        if key is None:
            raise LookupError("no key")
        return 0

    with producer_of(broker, partitioner=strict) as producer:
        with pytest.raises(LookupError, match="no key") as raised:
            producer.send("orders", b"v")
        assert "strict, which was called for a record of 'orders'" in raised.value.__notes__[0]
        assert producer.send("orders", b"v", key=b"k").result(LATEST_S).offset == 0
