"""`send` in signal handlers and finalizers, which may interrupt a call that has half changed its producer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from chaffinch import EmbeddedBroker, Producer
from chaffinch.errors import IllegalStateException
from tests.producer.threads import in_thread

Make = Callable[..., Producer]
LATEST_S = 60
CALLS = pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda producer: producer.send("orders", b"handler"), "send"),
        (lambda producer: producer.send("orders", b"handler", partition=0), "send"),
        (lambda producer: producer.send_table("orders", pa.table({"value": [b"handler"]})), "send_table"),
        (lambda producer: producer.partitions_for("orders"), "partitions_for"),
    ],
    ids=["send", "send to a partition", "send_table", "partitions_for"],
)


@CALLS
@pytest.mark.parametrize("step", ["join", "choose_partition", "append", "append_batch", "handle_all"])
def test_send_in_a_signal_handler_during_a_call_is_refused(
    producer_of: Make, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, step: str, call: Callable[[Producer], Any], name: str
) -> None:
    """During each way of appending records, and during a round of the sender thread, which a finalizer may interrupt.

    Records used to be lost without an outcome, and the sender thread died.
    """
    refused: list[str] = []
    with producer_of(broker) as producer:
        futures = [producer.send("orders", b"first", partition=0)]
        producer.flush(LATEST_S)
        run_step = getattr(producer._core, step)

        def step_with_call(*arguments: Any, **named: Any) -> Any:
            done = run_step(*arguments, **named)
            try:
                call(producer)
            except IllegalStateException as error:
                refused.append(str(error))
            return done

        with monkeypatch.context() as patched:
            patched.setattr(producer._core, step, step_with_call)
            futures += [producer.send("orders", b"free"), producer.send("orders", b"joins"), producer.send("orders", b"there", partition=0)]
            table = producer.send_table("orders", pa.table({"value": [b"row"]}))
            producer.flush(LATEST_S)
        offsets = {(future.result(0).partition, future.result(0).offset) for future in futures}
        assert len(offsets) == len(futures)
        assert table.result(0).written == 1
    assert refused
    assert all(
        text.startswith(f"{name}() in a signal handler or finalizer that interrupts a call of the same producer") for text in refused
    )
    assert sorted(broker.read("orders").column("value").to_pylist()) == [b"first", b"free", b"joins", b"row", b"there"]


@CALLS
def test_send_in_a_callback_works(producer_of: Make, broker: EmbeddedBroker, call: Callable[[Producer], Any], name: str) -> None:
    """Callbacks are called without a lock."""
    called: list[Any] = []
    with producer_of(broker) as producer:
        producer.partitions_for("orders")
        producer.send("orders", b"v", on_delivery=lambda *_: called.append(call(producer)))
        producer.flush(LATEST_S)
        producer.flush(LATEST_S)
    assert len(called) == 1
    assert broker.read("orders").num_rows == (1 if name == "partitions_for" else 2)


@CALLS
def test_call_of_a_closed_producer_is_refused(
    producer_of: Make, broker: EmbeddedBroker, call: Callable[[Producer], Any], name: str
) -> None:
    producer = producer_of(broker)
    producer.close()

    def handle() -> None:
        with producer._lock:
            call(producer)

    refused = in_thread(handle).exception(LATEST_S)
    assert isinstance(refused, IllegalStateException)
    assert str(refused).startswith(f"{name}(): close() was called")
