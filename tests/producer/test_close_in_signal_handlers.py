"""Calls of the producer in signal handlers, which may interrupt a call that holds a lock, or another close."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from typing import Any

import pytest

from chaffinch import EmbeddedBroker, Producer
from chaffinch.errors import IllegalStateException
from chaffinch.producer.futures import SHARED_LOCK
from tests.producer.threads import in_thread

Make = Callable[..., Producer]
HeldLock = Callable[[Producer], AbstractContextManager[Any]]
LATEST_S = 60
LINGER_MS = 1_000 * LATEST_S
"""Records linger until the producer is closed."""


@pytest.fixture(params=["lock of the producer", "lock of all futures"])
def held_lock(request: pytest.FixtureRequest) -> HeldLock:
    """The lock held within `send`, and within `result` of a future. The sender thread takes the same locks."""
    return lambda producer: producer._lock if request.param == "lock of the producer" else SHARED_LOCK


def test_close_in_a_signal_handler_does_not_wait_for_the_interrupted_call(
    producer_of: Make, broker: EmbeddedBroker, held_lock: HeldLock
) -> None:
    producer = producer_of(broker, linger_ms=LINGER_MS)

    def handle() -> None:
        with held_lock(producer):
            producer.close()
            assert not last.done()

    last = producer.send("orders", b"last", partition=0)
    in_thread(handle).result(LATEST_S)
    in_thread(producer.close).result(LATEST_S)
    assert last.result(0).offset == 0


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda producer, sent: producer.flush(1), "flush() in a signal handler"),
        (lambda producer, sent: sent.result(), "waiting for a future in a signal handler"),
        (lambda producer, sent: sent.exception(), "waiting for a future in a signal handler"),
        (lambda producer, sent: wait([sent]), "waiting for a future in a signal handler"),
    ],
    ids=["flush", "result", "exception", "wait"],
)
def test_waiting_calls_in_a_signal_handler_are_refused(
    producer_of: Make, broker: EmbeddedBroker, held_lock: HeldLock, call: Callable[[Producer, Future[Any]], object], text: str
) -> None:
    def handle() -> None:
        with held_lock(producer):
            call(producer, sent)

    with producer_of(broker, linger_ms=LINGER_MS) as producer:
        sent = producer.send("orders", b"v", partition=0)
        refused = in_thread(handle).exception(LATEST_S)
    assert isinstance(refused, IllegalStateException)
    assert text in str(refused)


def test_non_waiting_calls_in_a_signal_handler_work(producer_of: Make, broker: EmbeddedBroker, held_lock: HeldLock) -> None:
    called: list[Any] = []

    def handle() -> None:
        with held_lock(producer):
            sent.add_done_callback(called.append)
            assert not sent.done()

    with producer_of(broker, linger_ms=LINGER_MS) as producer:
        sent = producer.send("orders", b"v", partition=0)
        in_thread(handle).result(LATEST_S)
    assert called == [sent]


def test_timeout_of_a_second_close_ends_the_abort_of_the_first(
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
    while not transaction.callers.has_any:
        assert time.monotonic() < ends
    producer.close(0.05)
    assert first.exception(LATEST_S) is None
    assert "is not done within close's timeout" in caplog.text
