"""Clocks: wall time for records, steady time for waits."""

from __future__ import annotations

import time

import pytest

from chaffinch.runtime.clock import ManualClock, SystemClock


def test_system_clock_gives_wall_and_steady_time() -> None:
    clock = SystemClock()
    before = time.time_ns() // 1_000_000
    assert before <= clock.wall_ms() <= before + 60_000
    first = clock.steady_ms()
    assert first <= clock.steady_ms()


def test_manual_clock_moves_only_by_advance() -> None:
    clock = ManualClock(5, wall_ms=1000)
    assert (clock.steady_ms(), clock.wall_ms()) == (5, 1000)
    clock.advance(10)
    assert (clock.steady_ms(), clock.wall_ms()) == (15, 1010)
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1)


def test_setting_the_wall_clock_leaves_steady_time_alone() -> None:
    clock = ManualClock(5, wall_ms=1000)
    clock.set_wall_clock(-300)
    assert (clock.steady_ms(), clock.wall_ms()) == (5, 700)
    clock.advance(10)
    assert (clock.steady_ms(), clock.wall_ms()) == (15, 710)
