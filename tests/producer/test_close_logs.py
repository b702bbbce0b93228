"""Close logs the number of records that it gives up, and the cause."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from chaffinch import EmbeddedBroker, Producer
from chaffinch.errors import KafkaException, Stored, TimeoutException
from tests.producer.threads import LATEST_S, in_thread

Make = Callable[..., Producer]
MANY = 1_000_000


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "chaffinch.producer" and record.levelno == logging.WARNING]


def until(condition: Callable[[], object]) -> None:
    ends = time.monotonic() + LATEST_S
    while not condition():
        assert time.monotonic() < ends


def test_timed_out_close_logs_count_and_cause(producer_of: Make, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    broker.faults.add(api="Produce", error="NOT_ENOUGH_REPLICAS", count=MANY)
    producer = producer_of(broker)
    futures = [producer.send("orders", b"v", partition=0) for _ in range(3)]
    until(lambda: producer.metrics()["record-retry-total"] >= 3)
    producer.close(0)
    assert all(isinstance(future.exception(0), KafkaException) for future in futures)
    (line,) = warnings_of(caplog)
    assert line.startswith("close: 3 records given up without an outcome (Produce for orders-0: NOT_ENOUGH_REPLICAS (19): ")
    assert line.endswith("; each future says whether it may be stored")


def test_timed_out_close_without_cause_logs_the_count(producer_of: Make, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    broker.faults.add(api="Produce", action="delay", delay_ms=100_000)
    producer = producer_of(broker)
    producer.send("orders", b"v")
    producer.close(0)
    assert warnings_of(caplog) == ["close: 1 record given up without an outcome; each future says whether it may be stored"]


def test_close_in_a_callback_logs_the_count(producer_of: Make, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    """Close cannot wait in a callback."""
    others: list[Any] = []

    def close(*_: object) -> None:
        others.extend(producer.send("orders", b"other", partition=0) for _ in range(2))
        producer.close()

    producer = producer_of(broker, linger_ms=0)
    producer.send("orders", b"v", partition=0, on_delivery=close).result(LATEST_S)
    producer._sender._thread.join(LATEST_S)
    assert all(isinstance(other.exception(LATEST_S), KafkaException) for other in others)
    assert warnings_of(caplog) == ["close: 2 records given up without an outcome; each future says whether it may be stored"]


def test_records_expired_during_close_are_logged(
    producer_of: Make, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Futures are usually not read after a `with` statement."""
    broker.faults.add(api="Produce", error="NOT_ENOUGH_REPLICAS", count=MANY)
    producer = producer_of(broker, request_timeout_ms=100_000_000, delivery_timeout_ms=200_000_000)
    clock = producer._clock

    class LaterClock:
        steady_ms = staticmethod(lambda: clock.steady_ms() + 300_000_000)

    producer.send("orders", b"v", partition=0)
    until(lambda: producer.metrics()["record-retry-total"])
    closed = in_thread(producer.close)
    until(lambda: producer._core.callers.has_flush_or_close)
    monkeypatch.setattr(producer._sender, "_clock", LaterClock)
    producer._sender.wakeup()
    assert closed.exception(LATEST_S) is None
    (line,) = [line for line in warnings_of(caplog) if "expired" in line]
    assert line.startswith("close: 1 record expired after delivery.timeout.ms (Produce for orders-0: NOT_ENOUGH_REPLICAS (19): ")


def test_interrupted_close_logs_the_count(
    producer_of: Make, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SystemExit or KeyboardInterrupt: records fail and are logged as by a close that timed out."""

    def leave(*_: object) -> None:
        raise SystemExit(3)

    broker.faults.add(api="Produce", action="delay", delay_ms=100_000)
    producer = producer_of(broker, max_in_flight_requests_per_connection=1)
    sent = producer.send("orders", b"v", partition=0)
    until(lambda: producer.metrics()["request-total"])
    waiting = producer.send("orders", b"w", partition=0)
    monkeypatch.setattr(producer._closing, "_wait_and_log", leave)
    with pytest.raises(SystemExit):
        producer.close()
    assert warnings_of(caplog) == [
        "close was interrupted and no longer waits for 2 records without an outcome; each future says whether it may be stored"
    ]
    for future, stored in ((sent, Stored.POSSIBLY), (waiting, Stored.NO)):
        error = future.exception(LATEST_S)
        assert isinstance(error, TimeoutException)
        assert (error.topic_partition, error.stored) == (("orders", 0), stored)
        assert str(error).startswith("orders-0: REQUEST_TIMED_OUT (7): the producer was closed before this record had its outcome (")
