"""Deadline of an actor: at most one wake-up is planned at a time, and busy-looping actors are reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from simulation.world import World

WAKES_PER_S_MAX: Final = 300
WAKES_ALLOWANCE: Final = 600
"""An actor that wakes by its own deadlines more often than this is busy-looping."""


class WakeTimer:
    """Calls `wake` at the deadline that was set last. Setting it often is cheap: most deadlines are moved before they are reached."""

    def __init__(self, world: World, actor: str, wake: Callable[[], None]) -> None:
        self._world = world
        self._actor = actor
        self._wake = wake
        self._deadline_ms: int | None = None
        self._planned_ms: int | None = None
        self._began_ms = world.steady_ms
        self._wakes = 0

    def set(self, deadline_ms: int | None) -> None:
        """Replace the deadline; None cancels it. A time in the past means now."""
        self._deadline_ms = deadline_ms
        if deadline_ms is not None and (self._planned_ms is None or deadline_ms < self._planned_ms):
            self._plan(deadline_ms)

    def _plan(self, time_ms: int) -> None:
        self._planned_ms = time_ms
        self._world.at(time_ms, lambda: self._look(time_ms))

    def _look(self, planned_ms: int) -> None:
        if self._planned_ms != planned_ms:
            return  # Another wake-up was planned for an earlier time.
        self._planned_ms = None
        deadline_ms, steady_ms = self._deadline_ms, self._world.steady_ms
        if deadline_ms is not None and deadline_ms > steady_ms:
            self._plan(deadline_ms)
        elif deadline_ms is not None:
            self._deadline_ms = None
            self._wakes += 1
            life_ms = steady_ms - self._began_ms
            assert self._wakes <= WAKES_ALLOWANCE + WAKES_PER_S_MAX * life_ms // 1000, (
                f"{self._actor} spins: {self._wakes} wakes in {life_ms} ms"
            )
            self._wake()
