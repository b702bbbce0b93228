"""A promise that is broken by hand, and the worlds in which somebody has to notice."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from chaffinch.simulation.nemesis import Deeds
from chaffinch.simulation.network import Faults
from chaffinch.simulation.scenario import run

Patch = pytest.MonkeyPatch

ROUGH = Faults(cut_share=0.4, lost_answer_share=0.08, slow_share=0.01, silent_share=0.05)
SLOW = Faults(latency_max_ms=20, slow_share=0.08)
KILLS = Deeds(broker_death_ms=500)
POWER = Deeds(broker_death_ms=400, power_loss_share=0.8)
NOBODY: dict[str, Any] = {
    "plain_count": 0,
    "transactional_count": 0,
    "version_2_count": 0,
    "transaction_version": 1,
    "query_count": 0,
    "reader_count": 0,
    "transformer_count": 0,
    "producer_records": 90,
    "records_least": 0,
}
PLAIN: dict[str, Any] = {**NOBODY, "plain_count": 2, "faults": ROUGH, "deeds": KILLS, "bad_share": 0.1}
TRANSACTIONAL: dict[str, Any] = {**PLAIN, "plain_count": 0, "transactional_count": 2}
TRANSACTIONAL_2: dict[str, Any] = {**TRANSACTIONAL, "transaction_version": 2}
REMADE: dict[str, Any] = {**PLAIN, "faults": SLOW, "deeds": Deeds(remake_ms=300)}
SHORTENED: dict[str, Any] = {**PLAIN, "faults": Faults(lost_answer_share=0.1), "deeds": Deeds(broker_death_ms=800, shorten_ms=200)}
VERSION_2: dict[str, Any] = {**NOBODY, "version_2_count": 2, "transactional_count": 1, "flush_policy": "always", "deeds": POWER}
QUERY: dict[str, Any] = {**PLAIN, "plain_count": 0, "query_count": 1, "deeds": Deeds(broker_death_ms=500, client_death_ms=100)}


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """`says`: words of the violation that is expected, in any order of seeds; empty: any will do. `first`: the seed to begin with,
    the one that shows it at the moment where many do not; after a change of the code another one may, and is found from there on."""

    name: str
    breaks: Callable[[Patch], None]
    knobs: dict[str, Any] = field(default_factory=dict)
    says: tuple[str, ...] = ()
    seeds: int = 20
    first: int = 0


def returns(target: Any, name: str, value: Any) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(target, name, lambda *_arguments, **_keywords: value)


def find(mutation: Mutation, patch: Patch) -> None:
    """Some seed fails, with the violation that the mutation calls for."""
    mutation.breaks(patch)
    seen: list[str] = []
    with _quiet():
        for seed in range(mutation.first, mutation.first + mutation.seeds):
            violations = run(seed, **mutation.knobs).violations
            seen += violations[:2]
            if any(not mutation.says or any(words in violation for words in mutation.says) for violation in violations):
                return
    pytest.fail(f"{mutation.seeds} seeds, found only: {seen[:5]}")


@contextmanager
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
