"""`ProducerCore.is_awaited`: while a caller waits for a response, the sender thread polls instead of sleeping."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core import events
from tests.producer.core.rig import OK, ORDERS_0, Rig, new_record


def sent(tp: TopicPartition = ORDERS_0, **options: object) -> tuple[Rig, list[int]]:
    """A rig with a record in flight, and the list of watched indices of its batch."""
    rig = Rig(options=options)
    rig.append("a", tp)
    rig.step(events.TimePassed())
    (batch,) = rig.core.outstanding.queue(tp).in_flight
    watched: list[int] = batch.outcome_sink.watched
    return rig, watched


def test_watched_future_is_awaited() -> None:
    rig, watched = sent()
    assert not rig.core.is_awaited, "no caller waits yet"
    watched.append(0)
    assert rig.core.is_awaited
    rig.answer(OK)
    assert not rig.core.is_awaited


def test_lingering_record_is_not_awaited() -> None:
    rig = Rig(options={"linger.ms": 1000})
    futures, _ = rig.core.append(ORDERS_0, new_record(None, b"a", object()), rig.steady_ms)
    futures.watched.append(0)
    rig.step(events.TimePassed())
    assert not rig.core.is_awaited


CALLS: list[tuple[str, Callable[[], events.Event]]] = [
    ("flush", lambda: events.FlushCalled(call="flush")),
    ("close", lambda: events.CloseCalled(call="close", deadline_ms=2**53)),
]


@pytest.mark.parametrize("call", [row[1] for row in CALLS], ids=[row[0] for row in CALLS])
def test_flush_and_close_are_awaited(call: Callable[[], events.Event]) -> None:
    rig, _ = sent()
    rig.step(call())
    assert rig.core.is_awaited


def test_memory_waiter_is_not_awaited() -> None:
    rig, _ = sent()
    rig.core.memory_wait_began()
    assert not rig.core.is_awaited


def test_init_transactions_is_awaited() -> None:
    rig = Rig(options={"transactional.id": "t"})
    assert not rig.core.is_awaited
    rig.core.handle(events.InitTransactionsCalled(call="init", deadline_ms=2**53), rig.steady_ms)  # No response yet.
    assert rig.core.is_awaited
