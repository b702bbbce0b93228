"""Mutations: a guarantee broken by hand, and the worlds in which a checker has to find it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any, Final

import pytest

from chaffinch.storage.contents import Contents
from chaffinch.storage.log_state import NOTHING_EXPECTED
from simulation import checkers
from simulation.consumers import consumer_checkers
from simulation.nemesis import FaultSchedule
from simulation.network import NetworkFaults
from simulation.scenario import run

Patch = pytest.MonkeyPatch

ROUGH = NetworkFaults(cut_share=0.4, lost_response_share=0.08, slow_share=0.01, silent_share=0.05)
SLOW = NetworkFaults(latency_max_ms=20, slow_share=0.08)
KILLS = FaultSchedule(broker_death_ms=500)
POWER = FaultSchedule(broker_death_ms=400, power_loss_share=0.8)
NO_ACTORS: dict[str, Any] = {
    "plain_count": 0,
    "transactional_count": 0,
    "version_2_count": 0,
    "transaction_version": 1,
    "query_count": 0,
    "reader_count": 0,
    "transformer_count": 0,
    "producer_records": 90,
    "required_records": 0,
}
PLAIN: dict[str, Any] = {**NO_ACTORS, "plain_count": 2, "faults": ROUGH, "fault_schedule": KILLS, "bad_share": 0.1}
TRANSACTIONAL: dict[str, Any] = {**PLAIN, "plain_count": 0, "transactional_count": 2}
TRANSACTIONAL_2: dict[str, Any] = {**TRANSACTIONAL, "transaction_version": 2}
RECREATED: dict[str, Any] = {**PLAIN, "faults": SLOW, "fault_schedule": FaultSchedule(recreate_ms=300)}
TRIMMED: dict[str, Any] = {
    **PLAIN,
    "faults": NetworkFaults(lost_response_share=0.1),
    "fault_schedule": FaultSchedule(broker_death_ms=800, trim_ms=200),
}
VERSION_2: dict[str, Any] = {**NO_ACTORS, "version_2_count": 2, "transactional_count": 1, "flush_policy": "always", "fault_schedule": POWER}
QUERY: dict[str, Any] = {
    **PLAIN,
    "plain_count": 0,
    "query_count": 1,
    "fault_schedule": FaultSchedule(broker_death_ms=500, client_death_ms=100),
}


RAISED: Final = "raised:"
CORRUPT: Final = "CorruptLog: cannot recover"
"""The broker itself sees what its disk has become, and does not start."""
OUT_OF_RANGE: Final = "is out of range, it begins at"
"""A reader of committed records has read further than the log goes by now."""


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """A guarantee, how it is broken, and which checker has to find it.

    `says`: words of the violation that is expected, one of them, in any of the seeds. `by`: the checker that has to say so; empty: any.
    `raises`: words of an exception that counts too, of the simulation's own clients or of a core that notices by itself; without `says`
    it is all that is expected. `first`: the seed to begin with, the one that shows it at the moment where many do not; after a change of
    the code another one may, and is found from there on."""

    name: str
    breaks: Callable[[Patch], None]
    knobs: dict[str, Any] = field(default_factory=dict)
    says: tuple[str, ...] = ()
    raises: tuple[str, ...] = ()
    by: str = ""
    seeds: int = 20
    first: int = 0

    def __post_init__(self) -> None:
        if not self.says + self.raises:
            raise ValueError(f"{self.name}: nothing is expected, and anything would do")

    def is_found(self, violation: str, checker: str) -> bool:
        words = self.raises if violation.startswith(RAISED) else self.says
        return self.by in ("", checker) and any(each in violation for each in words)


def returns(target: Any, name: str, value: Any) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(target, name, lambda *_arguments, **_keywords: value)


def without_contents_record(breaks: Callable[[Patch], None]) -> Callable[[Patch], None]:
    """The same, and the data directory does not know what it must contain: the broker would refuse to start before a checker finds more."""

    def both(patch: Patch) -> None:
        breaks(patch)
        patch.setattr(Contents, "expected", lambda *_: NOTHING_EXPECTED)

    return both


def find(mutation: Mutation, patch: Patch) -> None:
    """Some seed fails, with the violation that the mutation calls for."""
    mutation.breaks(patch)
    whose = note_checkers(patch)
    seen: list[str] = []
    with _quiet():
        for seed in range(mutation.first, mutation.first + mutation.seeds):
            violations = run(seed, **mutation.knobs).violations
            seen += violations[:2]
            if any(mutation.is_found(violation, whose.get(violation, "")) for violation in violations):
                return
    pytest.fail(f"{mutation.seeds} seeds, found only: {seen[:5]}")


def checker_names(module: ModuleType) -> list[str]:
    """Its public functions that yield violations."""
    functions = {
        name: value for name, value in vars(module).items() if isinstance(value, FunctionType) and value.__module__ == module.__name__
    }
    return [name for name, function in functions.items() if name[0] != "_" and function.__annotations__["return"] == "Iterator[str]"]


def note_checkers(patch: Patch) -> dict[str, str]:
    """For each violation from now on: the checker that found it."""
    found: dict[str, str] = {}

    def with_newest(name: str, checker: Callable[..., Iterator[str]]) -> Callable[..., Iterator[str]]:
        def checks(*arguments: Any) -> Iterator[str]:
            for violation in checker(*arguments):
                found[violation] = name
                yield violation

        return checks

    for module in (checkers, consumer_checkers):
        for name in checker_names(module):
            patch.setattr(module, name, with_newest(name, getattr(module, name)))
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
