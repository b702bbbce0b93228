"""Virtual time: planned actions run once and in order, and a stuck world is detected."""

from __future__ import annotations

from functools import partial

import pytest

from simulation.world import BEGIN_MS, Stuck, World, all_hold


def test_actions_run_by_time_then_by_planning_order() -> None:
    world = World(1)
    seen: list[tuple[str, int]] = []

    def note(name: str) -> None:
        seen.append((name, world.elapsed_ms))

    for name, delay_ms in (("c", 20), ("a", 10), ("b", 10), ("now", 0)):
        world.after(delay_ms, partial(note, name))
    world.run(lambda: len(seen) == 4, limit_ms=100, waiting_for="all")
    assert seen == [("now", 0), ("a", 10), ("b", 10), ("c", 20)]


def test_past_time_runs_now() -> None:
    world = World(1)
    seen: list[int] = []
    world.after(7, lambda: world.at(BEGIN_MS, lambda: seen.append(world.elapsed_ms)))
    world.run(lambda: bool(seen), limit_ms=100, waiting_for="it")
    assert seen == [7]


def test_stuck_names_the_awaited_condition() -> None:
    world = World(1)
    with pytest.raises(Stuck, match="rain: no action is planned"):
        world.run(lambda: False, limit_ms=10, waiting_for="rain")
    world.after(11, lambda: None)
    with pytest.raises(Stuck, match="rain: not within 10 ms"):
        world.run(lambda: False, limit_ms=10, waiting_for="rain")


def test_endless_planning_for_now_is_stuck() -> None:
    world = World(1)

    def again() -> None:
        world.after(0, again)

    again()
    with pytest.raises(Stuck, match="time stands still at 0 ms"):
        world.run(lambda: False, limit_ms=10, waiting_for="rain")


def test_all_hold_checks_the_last_failure_first() -> None:
    checked: list[str] = []
    fulfilled = {"a": True, "b": False, "c": False}

    def predicate(name: str) -> bool:
        checked.append(name)
        return fulfilled[name]

    holds = all_hold(predicate, fulfilled)
    assert (holds(), holds()) == (False, False)
    assert checked == ["a", "b", "b"]
    fulfilled["b"] = True
    assert not holds()
    fulfilled["c"], fulfilled["b"] = True, False
    assert not holds()
    fulfilled["b"] = True
    assert holds()


def test_digest_covers_the_whole_trace() -> None:
    worlds = [World(1), World(1), World(1)]
    for world in worlds[:2]:
        world.log("broker", "starts")
        world.log("broker", "dies")
    worlds[2].log("broker", "starts")
    assert worlds[0].digest == worlds[1].digest != worlds[2].digest
    assert [line.split() for line in worlds[1].trace] == [["0", "broker:", "starts"], ["0", "broker:", "dies"]]


def test_generators_of_actors_are_independent() -> None:
    rolls = []
    for others_roll in (False, True):
        world = World(5)
        first, second = world.new_rng(), world.new_rng()
        if others_roll:
            first.random()
        rolls.append(second.random())
    assert rolls[0] == rolls[1]
