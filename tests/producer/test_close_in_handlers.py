"""A signal handler that calls the producer may come at any time: in the midst of a call that holds the lock, or of another close."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from chaffinch import EmbeddedBroker, Producer
from chaffinch.errors import IllegalStateException
from tests.producer.waits import in_thread

Make = Callable[..., Producer]
LATEST_S = 60


def test_in_the_midst_of_a_call_it_does_not_wait_for_what_that_call_holds_up(producer_of: Make, broker: EmbeddedBroker) -> None:
    """The thread that sends takes the same lock."""
    producer = producer_of(broker)

    def interrupted() -> Future[Any]:
        with producer._lock:  # As `send` does.
            last = producer.send("orders", b"last", partition=0)
            producer.close()
            assert not last.done()
        return last

    producer.send("orders", b"v", partition=0).result(LATEST_S)
    last = in_thread(interrupted).result(LATEST_S)
    in_thread(producer.close).result(LATEST_S)
    assert last.result(0).offset == 1


def test_other_calls_that_would_wait_for_ever_there_are_refused(producer_of: Make, broker: EmbeddedBroker) -> None:
    def interrupted() -> None:
        with producer._lock:
            producer.flush(1)

    with producer_of(broker) as producer:
        refused = in_thread(interrupted).exception(LATEST_S)
    assert isinstance(refused, IllegalStateException)
    assert "flush() in a signal handler" in str(refused)


def test_its_timeout_holds_for_the_abort_that_another_close_waits_for(
    producer_of: Make, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    producer = producer_of(broker, transactional_id="t", max_block_ms=LATEST_S * 10_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", b"v").result(LATEST_S)
    broker.faults.add(api="EndTxn", error="CONCURRENT_TRANSACTIONS", count=1_000_000)
    first = in_thread(producer.close)
    transaction, ends = producer._core.transaction, time.monotonic() + LATEST_S
    assert transaction is not None
    while not transaction.has_callers:
        assert time.monotonic() < ends
    producer.close(0.05)
    assert first.exception(LATEST_S) is None
    assert "is not done within close's timeout" in caplog.text
