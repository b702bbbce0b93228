"""`ProducerCore.is_awaited`: while a caller waits for a response, the sender thread polls instead of sleeping."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core import events
from tests.producer.core.rig import OK, ORDERS_0, Rig, new_record


def sent(tp: TopicPartition = ORDERS_0, **options: object) -> tuple[Rig, list[int]]:
    """A record on its way; and its batch's indices of futures that are waited for or watched."""
    rig = Rig(options=options)
    rig.append("a", tp)
    rig.step(events.TimePassed())
    (batch,) = rig.core.outstanding.queue(tp).in_flight
    watched: list[int] = batch.outcome_sink.watched
    return rig, watched


def test_a_future_that_is_waited_for() -> None:
    rig, watched = sent()
    assert not rig.core.is_awaited, "somebody may ask for it later"
    watched.append(0)
    assert rig.core.is_awaited
    rig.answer(OK)
    assert not rig.core.is_awaited


def test_one_that_lingers_is_no_answer_to_wait_for() -> None:
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
def test_who_waits_for_everything(call: Callable[[], events.Event]) -> None:
    rig, _ = sent()
    rig.step(call())
    assert rig.core.is_awaited


def test_who_waits_for_memory_has_much_under_way() -> None:
    rig, _ = sent()
    rig.core.memory_wait_began()
    assert not rig.core.is_awaited


def test_who_waits_for_a_transaction() -> None:
    rig = Rig(options={"transactional.id": "t"})
    assert not rig.core.is_awaited
    rig.core.handle(events.InitTransactionsCalled(call="init", deadline_ms=2**53), rig.steady_ms)  # Nobody answers yet.
    assert rig.core.is_awaited
