"""Answers that wait: found by key and by deadline, forgotten when they end, and no heap of old deadlines."""

import pytest

from chaffinch.broker.core import timers
from chaffinch.broker.core.broker_state import DelayedResponse
from chaffinch.broker.core.delayed_responses import STALE_MAX, DelayedResponses


def waiting(deadline_ms: int, *keys: str) -> DelayedResponse:
    return DelayedResponse(deadline_ms=deadline_ms, keys=keys, answer=lambda _steady_ms, _is_last: None)


def woken(waits: DelayedResponses) -> list[tuple[int, bool]]:
    """All that are to be tried, each with whether it is for the last time."""
    found = []
    while (taken := waits.take_woken()) is not None:
        found.append(taken)
    return found


def test_response_is_woken_by_each_of_its_keys_until_it_ends() -> None:
    waits = DelayedResponses()
    waits.add(1, waiting(100, "orders", "bills"))
    waits.add(2, waiting(100, "orders"))
    waits.wake("orders")
    assert woken(waits) == [(1, False), (2, False)]
    waits.wake("bills")
    assert woken(waits) == [(1, False)]
    waits.end(1)
    waits.wake("orders")
    assert woken(waits) == [(2, False)]
    waits.wake("bills")
    assert woken(waits) == []
    assert waits.get(1) is None
    waits.end(1)
    waits.end(2)
    assert not waits


def test_response_woken_several_times_is_tried_once_in_order() -> None:
    waits = DelayedResponses()
    for connection_id in range(3):
        waits.add(connection_id, waiting(100 - connection_id, "orders", str(connection_id)))
    waits.wake("orders")
    assert waits.take_woken() == (0, False)
    waits.wake("orders")
    waits.wake("2")
    assert waits.next_deadline_ms == 0
    waits.wake_due(99)
    assert woken(waits) == [(1, True), (2, True), (0, False)]
    assert waits.next_deadline_ms == 100


def test_ended_response_is_not_tried() -> None:
    waits = DelayedResponses()
    waits.add(1, waiting(100, "orders"))
    waits.wake("orders")
    waits.end(1)
    waits.add(1, waiting(200, "bills"))
    assert woken(waits) == []
    assert waits.next_deadline_ms == 200


def test_responses_are_due_in_order_of_deadlines() -> None:
    waits = DelayedResponses()
    waits.add(1, waiting(300))
    waits.add(2, waiting(100))
    assert waits.next_deadline_ms == 100
    waits.wake_due(99)
    assert woken(waits) == []
    waits.wake_due(300)
    assert woken(waits) == [(2, True), (1, True)]
    waits.wake_due(300)
    assert woken(waits) == []


def test_old_deadline_does_not_wake_the_next_wait() -> None:
    waits = DelayedResponses()
    waits.add(1, waiting(100))
    waits.end(1)
    waits.add(1, waiting(200))
    assert waits.next_deadline_ms == 200
    waits.wake_due(150)
    assert woken(waits) == []
    waits.wake_due(200)
    assert woken(waits) == [(1, True)]


def test_ended_waits_do_not_pile_up() -> None:
    waits = DelayedResponses()
    for _ in range(10 * STALE_MAX):
        waits.add(1, waiting(1_000_000))
        waits.end(1)
    assert len(waits._deadlines) <= STALE_MAX + 3


class At:
    """A chore that is due at a time, or never."""

    def __init__(self, next_deadline_ms: int | None) -> None:
        self.next_deadline_ms = next_deadline_ms

    def run_due(self, steady_ms: int) -> list[str]:
        return []


@pytest.mark.parametrize(
    ("deadlines", "earliest"), [([], None), ([None], None), ([None, 5, None, 3], 3), ([0, 1], 0)], ids=["none", "never", "some", "zero"]
)
def test_next_deadline_is_that_of_the_earliest_task(deadlines: list[int | None], earliest: int | None) -> None:
    assert timers.next_deadline_ms([At(deadline) for deadline in deadlines]) == earliest
