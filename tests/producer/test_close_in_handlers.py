"""A signal handler that calls the producer may come at any time: in the midst of a call that holds the lock, or of another close."""

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
Interrupted = Callable[[Producer], AbstractContextManager[Any]]
LATEST_S = 60
LINGER_MS = 1_000 * LATEST_S
"""Until somebody closes."""


@pytest.fixture(params=["lock of the producer", "lock of all futures"])
def interrupted(request: pytest.FixtureRequest) -> Interrupted:
    """The midst of `send`, and of a future's `result`. The thread that sends takes the same locks."""
    return lambda producer: producer._lock if request.param == "lock of the producer" else SHARED_LOCK


def test_in_the_midst_of_a_call_it_does_not_wait_for_what_that_call_holds_up(
    producer_of: Make, broker: EmbeddedBroker, interrupted: Interrupted
) -> None:
    producer = producer_of(broker, linger_ms=LINGER_MS)

    def handle() -> None:
        with interrupted(producer):
            producer.close()
            assert not last.done()

    last = producer.send("orders", b"last", partition=0)
    in_thread(handle).result(LATEST_S)
    in_thread(producer.close).result(LATEST_S)
    assert last.result(0).offset == 0


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda producer, sent: producer.flush(1), "flush() in a signal handler"),
        (lambda producer, sent: sent.result(), "waiting for a future in a signal handler"),
        (lambda producer, sent: sent.exception(), "waiting for a future in a signal handler"),
        (lambda producer, sent: wait([sent]), "waiting for a future in a signal handler"),
    ],
    ids=["flush", "result", "exception", "wait"],
)
def test_other_calls_that_would_wait_for_ever_there_are_refused(
    producer_of: Make, broker: EmbeddedBroker, interrupted: Interrupted, call: Callable[[Producer, Future[Any]], object], what: str
) -> None:
    def handle() -> None:
        with interrupted(producer):
            call(producer, sent)

    with producer_of(broker, linger_ms=LINGER_MS) as producer:
        sent = producer.send("orders", b"v", partition=0)
        refused = in_thread(handle).exception(LATEST_S)
    assert isinstance(refused, IllegalStateException)
    assert what in str(refused)


def test_what_waits_for_nothing_is_done_there(producer_of: Make, broker: EmbeddedBroker, interrupted: Interrupted) -> None:
    heard: list[Any] = []

    def handle() -> None:
        with interrupted(producer):
            sent.add_done_callback(heard.append)
            assert not sent.done()

    with producer_of(broker, linger_ms=LINGER_MS) as producer:
        sent = producer.send("orders", b"v", partition=0)
        in_thread(handle).result(LATEST_S)
    assert heard == [sent]


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
    while not transaction.callers.has_any:
        assert time.monotonic() < ends
    producer.close(0.05)
    assert first.exception(LATEST_S) is None
    assert "is not done within close's timeout" in caplog.text
