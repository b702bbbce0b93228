"""Deadlines that are put off again and again: early at most, and never many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chaffinch.broker.core.groups.context import TimerKey, TimerKind
from chaffinch.broker.core.timers import Timers

KEYS = [TimerKey("g", TimerKind.SESSION, name) for name in "abc"]


@given(st.lists(st.tuples(st.sampled_from(["schedule", "cancel", "due"]), st.sampled_from(KEYS), st.integers(0, 30)), max_size=60))
def test_timers_equal_a_table_of_deadlines(steps: list[tuple[str, TimerKey, int]]) -> None:
    timers, model = Timers[TimerKey](), dict[TimerKey, int]()
    steady_ms = 0
    for action, key, number in steps:
        if action == "schedule":
            timers.schedule(key, steady_ms + number)
            model[key] = steady_ms + number
        elif action == "cancel":
            timers.cancel(key)
            model.pop(key, None)
        else:
            steady_ms += number
            due = set()
            while (found := timers.due(steady_ms)) is not None:
                due.add(found)
            assert due == {key for key, deadline_ms in model.items() if deadline_ms <= steady_ms}
            for found in due:
                del model[found]
        next_ms = timers.next_deadline_ms
        assert not model or (next_ms is not None and next_ms <= min(model.values()))


def test_postponed_deadline_takes_one_entry() -> None:
    timers = Timers[TimerKey]()
    for number in range(10_000):
        timers.schedule(KEYS[0], number)
    assert len(timers._heap) == 1


def test_cancelled_deadlines_do_not_pile_up() -> None:
    timers = Timers[TimerKey]()
    for number in range(10_000):
        timers.schedule(TimerKey(str(number), TimerKind.JOIN), 5)
        timers.cancel(TimerKey(str(number), TimerKind.JOIN))
    assert len(timers._heap) < 100


def test_alternating_far_and_near_deadlines_do_not_pile_up() -> None:
    """As of a transactional id: near while a transaction is open, days away between two."""
    timers = Timers[TimerKey]()
    for steady_ms in range(10_000):
        timers.schedule(KEYS[0], steady_ms + 1)
        timers.schedule(KEYS[0], steady_ms + 1_000_000)
        assert timers.due(steady_ms + 1) is None
    assert len(timers._heap) < 100
    assert timers.due(9_999 + 999_999) is None
    assert timers.due(9_999 + 1_000_000) == KEYS[0]
