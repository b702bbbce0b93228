"""Clocks: wall time for records, steady time for waits."""

from __future__ import annotations

import time

import pytest

from chaffinch.runtime.clock import ManualClock, SystemClock


def test_the_system_clock_tells_both_times() -> None:
    clock = SystemClock()
    before = time.time_ns() // 1_000_000
    assert before <= clock.wall_ms() <= before + 60_000
    first = clock.steady_ms()
    assert first <= clock.steady_ms()


def test_the_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(5, wall_ms=1000)
    assert (clock.steady_ms(), clock.wall_ms()) == (5, 1000)
    clock.advance(10)
    assert (clock.steady_ms(), clock.wall_ms()) == (15, 1010)
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1)


def test_the_wall_clock_may_be_set_and_only_that_jumps() -> None:
    clock = ManualClock(5, wall_ms=1000)
    clock.set_wall_clock(-300)
    assert (clock.steady_ms(), clock.wall_ms()) == (5, 700)
    clock.advance(10)
    assert (clock.steady_ms(), clock.wall_ms()) == (15, 710)
