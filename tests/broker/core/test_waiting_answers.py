"""Answers that wait: found by key and by deadline, forgotten when they end, and no heap of old deadlines."""

import pytest

from chaffinch.broker.core import chores
from chaffinch.broker.core.broker_state import Waiting
from chaffinch.broker.core.waiting_answers import STALE_MAX, WaitingAnswers


def waiting(deadline_ms: int, *keys: str) -> Waiting:
    return Waiting(deadline_ms=deadline_ms, keys=keys, answer=lambda _now_ms, _is_last: None)


def test_found_by_each_of_its_keys_until_it_ends() -> None:
    waits = WaitingAnswers()
    waits.add(1, waiting(100, "orders", "bills"))
    waits.add(2, waiting(100, "orders"))
    assert waits.on("orders") == [1, 2]
    assert waits.on("bills") == [1]
    waits.end(1)
    assert waits.on("orders") == [2]
    assert waits.on("bills") == []
    assert waits.get(1) is None
    waits.end(1)
    waits.end(2)
    assert not waits


def test_due_in_the_order_of_deadlines_and_not_before() -> None:
    waits = WaitingAnswers()
    waits.add(1, waiting(300))
    waits.add(2, waiting(100))
    assert waits.next_deadline_ms == 100
    assert waits.due(99) is None
    assert waits.due(300) == 2
    waits.end(2)
    assert waits.due(300) == 1


def test_an_old_deadline_does_not_hit_the_next_wait_of_the_same_connection() -> None:
    waits = WaitingAnswers()
    waits.add(1, waiting(100))
    waits.end(1)
    waits.add(1, waiting(200))
    assert waits.next_deadline_ms == 200
    assert waits.due(150) is None
    assert waits.due(200) == 1


def test_ended_waits_do_not_pile_up() -> None:
    waits = WaitingAnswers()
    for _ in range(10 * STALE_MAX):
        waits.add(1, waiting(1_000_000))
        waits.end(1)
    assert len(waits._deadlines) <= STALE_MAX + 3


class At:
    """A chore that is due at a time, or never."""

    def __init__(self, next_deadline_ms: int | None) -> None:
        self.next_deadline_ms = next_deadline_ms

    def expire(self, now_ms: int) -> list[str]:
        return []


@pytest.mark.parametrize(
    ("deadlines", "earliest"), [([], None), ([None], None), ([None, 5, None, 3], 3), ([0, 1], 0)], ids=["none", "never", "some", "zero"]
)
def test_the_earliest_chore_counts(deadlines: list[int | None], earliest: int | None) -> None:
    assert chores.next_deadline_ms([At(deadline) for deadline in deadlines]) == earliest
