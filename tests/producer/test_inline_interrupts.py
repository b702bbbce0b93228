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
from tests.producer.inline import INTERRUPTED, await_fresh_inline, await_inline, counted, enable_inline, values
from tests.producer.threads import LATEST_S, in_thread

Make = Callable[..., Producer]
INLINE_MOMENTS_MIN = 3

CALLS: dict[str, Callable[[Producer], object]] = {
    "send": lambda producer: producer.send("orders", INTERRUPTED, key=b"k"),
    "send and result": lambda producer: producer.send("orders", INTERRUPTED, key=b"k").result(LATEST_S),
    "done": lambda producer: producer.send("orders", INTERRUPTED, key=b"k").done(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_ctrl_c_at_every_moment_leaves_the_producer_consistent(
    inline_producer: Producer, broker: EmbeddedBroker, call: Callable[[Producer], object]
) -> None:
    """Later records are stored once, and interrupted records at most once."""
    core, inline_count = inline_producer._core, 0
    for index, interrupt in enumerate(moments()):
        enable_inline(inline_producer)  # The previous interrupt may have closed the connection.
        await_fresh_inline(inline_producer)
        with counted("begin") as begun:
            try:
                with interrupt:
                    call(inline_producer)
            except KeyboardInterrupt:
                pass
        inline_count += begun[0] and interrupt.has_happened
        interrupt.is_elsewhere = not begun[0]
        future = in_thread(lambda index=index: inline_producer.send("orders", b"%d" % index, key=b"k").result(LATEST_S))  # type: ignore[misc]
        assert future.result(LATEST_S).offset >= 0, interrupt.place
        in_thread(inline_producer.flush).result(LATEST_S)
        assert core.inline_request is None, interrupt.place
        assert core.accumulator.memory_free == core.accumulator.memory_bytes, interrupt.place
        assert core.outstanding_count == 0, interrupt.place
    assert inline_count >= INLINE_MOMENTS_MIN
    assert values(broker) == Counter(b"%d" % done for done in range(index + 1))
    found = Counter(broker.read("orders")["value"].to_pylist())
    assert found[INTERRUPTED] <= index + 1


def test_flush_in_a_signal_handler_during_an_inline_send_returns_or_is_refused(inline_producer: Producer) -> None:
    """The handler does not wait for ever for the interrupted call or its inline send."""
    for interrupt in moments():
        await_inline(inline_producer)
        refused: list[object] = []

        def handler(refused: list[object] = refused) -> None:
            try:
                inline_producer.flush(LATEST_S)
            except IllegalStateException as error:
                refused.append(error)

        interrupt.handler = handler
        with counted("begin") as begun, interrupt:
            inline_producer.send("orders", b"v", key=b"k").result(LATEST_S)
        interrupt.is_elsewhere = not begun[0]


def test_ctrl_c_leaves_no_connection_suspended(producer_of: Make, broker: EmbeddedBroker) -> None:
    """The next batched record completes when its response arrives: time-outs are longer than this test may take."""
    with producer_of(broker, linger_ms=0, request_timeout_ms=600_000, delivery_timeout_ms=1_200_000) as producer:
        for index, interrupt in enumerate(moments()):
            enable_inline(producer)
            await_inline(producer)
            try:
                with counted("begin") as begun, interrupt:
                    producer.send("orders", INTERRUPTED, key=b"other %d" % index).result(LATEST_S)
            except KeyboardInterrupt:
                pass
            interrupt.is_elsewhere = not begun[0]
            batched = in_thread(lambda: producer.send("orders", b"v", headers=[("n", None)]).result(LATEST_S))
            assert batched.result(LATEST_S).offset >= 0, interrupt.place


@pytest.mark.parametrize(
    "handler",
    [
        lambda future: future.running(),
        lambda future: future.add_done_callback(lambda _: None),
        lambda future: future.done(),
    ],
    ids=["running", "add_done_callback", "done"],
)
def test_watcher_added_during_an_inline_read_is_notified(inline_producer: Producer, handler: Callable[[Any], object]) -> None:
    for interrupt in moments():
        await_inline(inline_producer)
        future = inline_producer.send("orders", b"v", key=b"k")
        interrupt.handler = partial(handler, future)
        with counted("written") as written, interrupt:
            future.result(LATEST_S)
        interrupt.is_elsewhere = not written[0]
        inline_producer.flush(LATEST_S)
        assert future.done(), interrupt.place
        assert future.result(LATEST_S).offset >= 0, interrupt.place


def test_waiting_in_a_handler_during_an_inline_read_completes(producer_of: Make, broker: EmbeddedBroker) -> None:
    with producer_of(broker, linger_ms=0, request_timeout_ms=600_000, delivery_timeout_ms=1_200_000) as producer:
        for interrupt in moments():
            enable_inline(producer)
            await_inline(producer)
            future = producer.send("orders", b"v", key=b"k")

            def handler(future: Any = future) -> None:
                with suppress(IllegalStateException):
                    future.result(LATEST_S)

            interrupt.handler = handler
            with counted("written") as written, interrupt:
                assert future.result(LATEST_S).offset >= 0, interrupt.place
            interrupt.is_elsewhere = not written[0]
