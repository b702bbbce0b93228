"""The wall clock of the broker's machine is set forward and back: no guarantee depends on it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from chaffinch.broker.core.broker_core import BrokerCore
from simulation.nemesis import FaultSchedule
from simulation.scenario import run

STEPS = FaultSchedule(broker_death_ms=1_500, client_death_ms=8_000, clock_step_ms=400)
SEEDS = 12


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def test_every_promise_is_kept() -> None:
    totals: Counter[str] = Counter()
    for seed in range(SEEDS):
        report = run(seed, fault_schedule=STEPS)
        assert report.violations == (), seed
        totals.update(report.counters)
    assert totals["clock steps"] >= 10 * SEEDS
    assert totals["broker killed"] >= SEEDS


def test_broker_waiting_by_wall_clock_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = BrokerCore.apply

    def by_the_wall_clock(self: BrokerCore, event: Any, steady_ms: int) -> Any:
        return apply(self, event, self.state.wall.at(steady_ms))

    monkeypatch.setattr(BrokerCore, "apply", by_the_wall_clock)
    assert any(run(seed, fault_schedule=STEPS).violations for seed in range(SEEDS))
