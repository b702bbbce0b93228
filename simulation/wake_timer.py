"""An actor's deadline: one wake planned at a time, and an actor that wakes again and again is noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from simulation.world import World

WAKES_PER_S_MAX: Final = 300
WAKES_ALLOWANCE: Final = 600
"""Who wakes by its own deadlines more often than this is spinning."""


class WakeTimer:
    """Calls `wake` at the deadline that was set last. It may be set as often as one likes: most deadlines are moved on before they come."""

    def __init__(self, world: World, actor: str, wake: Callable[[], None]) -> None:
        self._world = world
        self._actor = actor
        self._wake = wake
        self._deadline_ms: int | None = None
        self._planned_ms: int | None = None
        self._began_ms = world.steady_ms
        self._wakes = 0

    def set(self, deadline_ms: int | None) -> None:
        """Wake then, and not when it was said before; None: not at all. A time that has passed means now."""
        self._deadline_ms = deadline_ms
        if deadline_ms is not None and (self._planned_ms is None or deadline_ms < self._planned_ms):
            self._plan(deadline_ms)

    def _plan(self, time_ms: int) -> None:
        self._planned_ms = time_ms
        self._world.at(time_ms, lambda: self._look(time_ms))

    def _look(self, planned_ms: int) -> None:
        if self._planned_ms != planned_ms:
            return  # Another one was planned for an earlier time.
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
