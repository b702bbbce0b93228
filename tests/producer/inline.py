"""When a producer's express lane is open, and what goes by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from chaffinch import EmbeddedBroker, Producer
from chaffinch.producer.inline_send import InlineCore
from tests.producer.threads import LATEST_S, in_thread

INTERRUPTED = b"interrupted"


def warm(producer: Producer, topic: str = "orders") -> None:
    """Until a record has gone by the lane, and been fetched: partitions and connections are known then."""
    while not went_by_lane(producer, lambda: producer.send(topic, b"warm", key=b"k").result(LATEST_S)):
        pass


def await_lane(producer: Producer) -> None:
    """The sender thread opens it when it has done something, and has nothing left to do. One that is about to wake up closes it again."""
    waker = producer._sender._network._waker
    while waker._is_awake or not producer._inline_sender.is_free:
        if not waker._is_awake:
            in_thread(producer.flush).result(LATEST_S)


def await_new_lane(producer: Producer) -> None:
    """One that nobody has used yet: each record that goes by it first makes the same calls."""
    await_lane(producer)
    while producer._inline_sender._callers_read_responses or producer._inline_sender._routes:
        in_thread(producer.flush).result(LATEST_S)
        await_lane(producer)


@contextmanager
def counted(kind: str) -> Iterator[list[int]]:
    """How often the lane's core did something."""
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


def went_by_lane(producer: Producer, call: Callable[[], object]) -> bool:
    """Whether a record was sent, and fetched, on the lane."""
    await_lane(producer)
    with counted("written") as written:
        call()
    return written[0] > 0


def is_awaited_on_lane(producer: Producer) -> bool:
    """Whether the record that was just sent is on the lane when somebody begins to wait for it there; until he does."""
    inline_request = producer._core.inline_request
    while inline_request is not None and inline_request is producer._core.inline_request:
        if inline_request.is_awaited:
            return True
    return False


def values(broker: EmbeddedBroker, topic: str = "orders") -> Counter[Any]:
    return Counter(value for value in broker.read(topic)["value"].to_pylist() if value not in (b"warm", INTERRUPTED))
