"""KeyboardInterrupt and signal handlers at every moment of an inline send: the producer stays consistent, and waiting callers finish."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from chaffinch import EmbeddedBroker, Producer
from chaffinch.errors import IllegalStateException
from tests.client.interrupts import moments
from tests.producer.inline import INTERRUPTED, await_fresh_inline, await_inline, counted, values, warm
from tests.producer.threads import LATEST_S, in_thread

Make = Callable[..., Producer]
LANE_MOMENTS_MIN = 3

CALLS: dict[str, Callable[[Producer], object]] = {
    "send": lambda producer: producer.send("orders", INTERRUPTED, key=b"k"),
    "send and result": lambda producer: producer.send("orders", INTERRUPTED, key=b"k").result(LATEST_S),
    "done": lambda producer: producer.send("orders", INTERRUPTED, key=b"k").done(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_ctrl_c_at_every_moment_leaves_the_producer_whole(
    quiet: Producer, broker: EmbeddedBroker, call: Callable[[Producer], object]
) -> None:
    """The next records are stored once, and a record without an outcome at most once."""
    core, by_lane = quiet._core, 0
    for index, interrupt in enumerate(moments()):
        warm(quiet)  # The interrupt before may have cost the connection.
        await_fresh_inline(quiet)
        with counted("begin") as departed:
            try:
                with interrupt:
                    call(quiet)
            except KeyboardInterrupt:
                pass
        by_lane += departed[0] and interrupt.has_come
        interrupt.is_elsewhere = not departed[0]
        future = in_thread(lambda index=index: quiet.send("orders", b"%d" % index, key=b"k").result(LATEST_S))  # type: ignore[misc]
        assert future.result(LATEST_S).offset >= 0, interrupt.place
        in_thread(quiet.flush).result(LATEST_S)
        assert core.inline_request is None, interrupt.place
        assert core.accumulator.memory_free == core.accumulator.memory_bytes, interrupt.place
        assert core.outstanding_count == 0, interrupt.place
    assert by_lane >= LANE_MOMENTS_MIN
    assert values(broker) == Counter(b"%d" % done for done in range(index + 1))
    found = Counter(broker.read("orders")["value"].to_pylist())
    assert found[INTERRUPTED] <= index + 1


def test_waiting_in_a_signal_handler_in_the_midst_of_a_fetch_is_refused_or_done(quiet: Producer) -> None:
    """It does not wait for ever for the call that it interrupts, or for the inline send of that call."""
    for interrupt in moments():
        await_inline(quiet)
        told: list[object] = []

        def handler(told: list[object] = told) -> None:
            try:
                quiet.flush(LATEST_S)
            except IllegalStateException as error:
                told.append(error)

        interrupt.handler = handler
        with counted("begin") as departed, interrupt:
            quiet.send("orders", b"v", key=b"k").result(LATEST_S)
        interrupt.is_elsewhere = not departed[0]


def test_ctrl_c_leaves_no_connection_suspended(producer_of: Make, broker: EmbeddedBroker) -> None:
    """What goes the ordinary way next is told when its answer is there: time-outs are longer than this test may take."""
    with producer_of(broker, linger_ms=0, request_timeout_ms=600_000, delivery_timeout_ms=1_200_000) as producer:
        for index, interrupt in enumerate(moments()):
            warm(producer)
            await_inline(producer)
            try:
                with counted("begin") as departed, interrupt:
                    producer.send("orders", INTERRUPTED, key=b"other %d" % index).result(LATEST_S)
            except KeyboardInterrupt:
                pass
            interrupt.is_elsewhere = not departed[0]
            ordinary = in_thread(lambda: producer.send("orders", b"v", headers=[("n", None)]).result(LATEST_S))
            assert ordinary.result(LATEST_S).offset >= 0, interrupt.place


@pytest.mark.parametrize(
    "handler",
    [
        lambda future: future.running(),
        lambda future: future.add_done_callback(lambda _: None),
        lambda future: future.done(),
    ],
    ids=["running", "add_done_callback", "done"],
)
def test_watcher_added_during_an_inline_read_is_notified(quiet: Producer, handler: Callable[[Any], object]) -> None:
    for interrupt in moments():
        await_inline(quiet)
        future = quiet.send("orders", b"v", key=b"k")
        interrupt.handler = partial(handler, future)
        with counted("written") as written, interrupt:
            future.result(LATEST_S)
        interrupt.is_elsewhere = not written[0]
        quiet.flush(LATEST_S)
        assert future.done(), interrupt.place
        assert future.result(LATEST_S).offset >= 0, interrupt.place


def test_waiting_in_a_handler_during_an_inline_read_completes(producer_of: Make, broker: EmbeddedBroker) -> None:
    with producer_of(broker, linger_ms=0, request_timeout_ms=600_000, delivery_timeout_ms=1_200_000) as producer:
        for interrupt in moments():
            warm(producer)
            await_inline(producer)
            future = producer.send("orders", b"v", key=b"k")

            def handler(future: Any = future) -> None:
                with suppress(IllegalStateException):
                    future.result(LATEST_S)

            interrupt.handler = handler
            with counted("written") as written, interrupt:
                assert future.result(LATEST_S).offset >= 0, interrupt.place
            interrupt.is_elsewhere = not written[0]
