"""Whole worlds: the regular seeds, the regression seeds, and that a seed determines its world.

More of them by `make simulate SEED=1 SEEDS=100000`.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections import Counter
from functools import lru_cache
from typing import Any

import pytest

from simulation.scenario import run
from tests.simulation.reached_counters import REACHED
from tests.simulation.regression_seeds import REGRESSIONS, VERSION_2

CHUNKS, CHUNK = 4, 10


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


played = lru_cache(maxsize=None)(run)
"""Each regular world is run once, by the first test that needs it."""


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_promise_is_kept(chunk: int) -> None:
    """Rough worlds and calm ones; each has its 200 records, a crash and a lost response."""
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        report = played(seed)
        assert report.violations == (), f"replay: python -m simulation {seed} --verbose"
        assert report.missing == (), seed


@pytest.mark.parametrize("thing", sorted(REACHED))
def test_counter_is_reached(thing: str) -> None:
    reports = [played(seed) for seed in REACHED[thing]]
    assert [report.violations for report in reports] == [()] * len(reports)
    assert any(report.counters.get(thing) for report in reports), f"no world of {REACHED[thing]}"


@pytest.mark.parametrize("chunk", range(4))
def test_both_transaction_versions_have_no_violations(chunk: int) -> None:
    """Side by side, with brokers that die while a transaction ends."""
    totals: Counter[str] = Counter()
    for seed in range(chunk * 10, (chunk + 1) * 10):
        report = run(seed, **{**VERSION_2, "transactional_count": 1})
        assert report.violations == (), seed
        totals.update(report.counters)
    assert totals["transactions committed"] >= 50
    assert totals["transactions aborted"] >= 20
    assert totals["armed ends"] >= 5


@pytest.mark.parametrize(("behaviour", "seed", "knobs"), REGRESSIONS, ids=[f"{behaviour}, {seed}" for behaviour, seed, _ in REGRESSIONS])
def test_regression_seeds_have_no_violations(behaviour: str, seed: int, knobs: dict[str, Any]) -> None:
    # They failed before our producers spoke another version of transactions.
    assert run(seed, **{"transaction_version": 1, **knobs}).violations == (), behaviour


@pytest.mark.parametrize("seed", [3, 17])
def test_seed_determines_the_world(seed: int) -> None:
    """The same in one process, and in processes whose sets and dictionaries of strings are ordered differently."""
    expected = run(seed)
    assert run(seed, keeps_trace=True).digest == expected.digest
    program = f"import json; from simulation.scenario import run; r = run({seed}); print(json.dumps([r.digest, dict(r.counters)]))"
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True
        )
        assert json.loads(done.stdout) == [expected.digest, dict(expected.counters)]


def test_different_seeds_give_different_worlds() -> None:
    assert run(1).digest != run(2).digest
