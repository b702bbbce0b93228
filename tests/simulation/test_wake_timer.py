"""`WakeTimer`: moved deadlines, and the limit of wake-ups."""

from __future__ import annotations

from functools import partial

import pytest

from simulation.wake_timer import WAKES_ALLOWANCE, WakeTimer
from simulation.world import World


def woken(*deadlines: tuple[int, int | None], until: int = 100) -> list[int]:
    """Wake-up times of an actor that sets deadlines: (at this time, to that one), in virtual ms."""
    world = World(1)
    seen: list[int] = []
    timer = WakeTimer(world, "an actor", lambda: seen.append(world.elapsed_ms))
    begin_ms = world.steady_ms
    for at, deadline in deadlines:
        world.after(at, partial(timer.set, None if deadline is None else begin_ms + deadline))
    world.after(until, lambda: None)
    world.run(lambda: world.elapsed_ms == until, limit_ms=until, waiting_for="the end")
    return seen


@pytest.mark.parametrize(
    ("deadlines", "expected"),
    [
        ([(0, 10)], [10]),
        ([(0, 10), (5, 20)], [20]),
        ([(0, 20), (5, 10)], [10]),
        ([(0, 20), (5, 10), (6, 30)], [30]),
        ([(0, 10), (5, None)], []),
        ([(0, 10), (5, None), (6, 10)], [10]),
        ([(0, 10), (20, 30), (40, 35)], [10, 30, 40]),
    ],
    ids=["once", "later", "earlier", "earlier, then later", "not at all", "after all", "again, and at once when it has passed"],
)
def test_last_deadline_wins(deadlines: list[tuple[int, int | None]], expected: list[int]) -> None:
    assert woken(*deadlines) == expected


def test_busy_looping_actor_is_named() -> None:
    world = World(1)
    timer = WakeTimer(world, "the sender", lambda: timer.set(world.steady_ms + 1))
    timer.set(world.steady_ms)
    with pytest.raises(AssertionError, match="the sender spins"):
        world.run(lambda: False, limit_ms=2 * WAKES_ALLOWANCE, waiting_for="rain")
