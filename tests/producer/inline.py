"""Helpers for inline sends: wait until they are enabled, and count the records that were sent inline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from chaffinch import EmbeddedBroker, Producer
from chaffinch.producer.inline_send import InlineCore
from tests.producer.threads import LATEST_S, in_thread

INTERRUPTED = b"interrupted"


def enable_inline(producer: Producer, topic: str = "orders") -> None:
    """Send until a record was sent inline and its response read inline: then partitions and connections are known."""
    while not was_sent_inline(producer, lambda: producer.send(topic, b"warm-up", key=b"k").result(LATEST_S)):
        pass


def await_inline(producer: Producer) -> None:
    """Wait until inline sends are enabled: the sender thread enables them after a round when idle, and disables them before it wakes up."""
    waker = producer._sender._network._waker
    while waker._is_awake or not producer._inline_sender.is_free:
        if not waker._is_awake:
            in_thread(producer.flush).result(LATEST_S)


def await_fresh_inline(producer: Producer) -> None:
    """Wait for inline sends without any state of earlier ones, so that the first record always makes the same calls."""
    await_inline(producer)
    while producer._inline_sender._callers_read_responses or producer._inline_sender._routes:
        in_thread(producer.flush).result(LATEST_S)
        await_inline(producer)


@contextmanager
def counted(kind: str) -> Iterator[list[int]]:
    """Count the calls of a method of InlineCore."""
    calls = [0]
    real = getattr(InlineCore, kind)

    def counting(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        return real(*arguments, **named)

    setattr(InlineCore, kind, counting)
    try:
        yield calls
    finally:
        setattr(InlineCore, kind, real)


def was_sent_inline(producer: Producer, call: Callable[[], object]) -> bool:
    """Whether a record was sent, and its response read, inline."""
    await_inline(producer)
    with counted("written") as written:
        call()
    return written[0] > 0


def is_awaited_inline(producer: Producer) -> bool:
    """Wait until a caller waits inline for the record just sent; False if it is no longer inline."""
    inline_request = producer._core.inline_request
    while inline_request is not None and inline_request is producer._core.inline_request:
        if inline_request.is_awaited:
            return True
    return False


def values(broker: EmbeddedBroker, topic: str = "orders") -> Counter[Any]:
    return Counter(value for value in broker.read(topic)["value"].to_pylist() if value not in (b"warm-up", INTERRUPTED))
