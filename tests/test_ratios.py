"""What the benchmarks say of a ratio: how sure it is, and whether an aim is met."""

from __future__ import annotations

import random
import statistics

import pytest

from benchmarks.ratios import Aim, Ratio, outside_count


@pytest.mark.parametrize(
    ("rounds", "outside"),
    [(1, 0), (2, 0), (3, 0), (5, 0), (6, 0), (7, 0), (8, 0), (9, 1), (11, 1), (12, 2), (15, 3), (20, 5), (25, 7)],
)
def test_rounds_outside_match_the_sign_test_tables(rounds: int, outside: int) -> None:
    assert outside_count(rounds) == outside


def test_interval_covers_the_median_as_often_as_stated() -> None:
    rng = random.Random(4)
    intervals = [Ratio.of([rng.lognormvariate(0, 0.3) for _ in range(11)]) for _ in range(3000)]
    assert sum(one.low <= 1 <= one.high for one in intervals) / 3000 >= 0.95


def test_median_is_over_all_rounds() -> None:
    values = [1.0, 9.0, 2.0, 8.0]
    ratio = Ratio.of(values)
    assert (ratio.median, ratio.low, ratio.high, str(ratio)) == (statistics.median(values), 1.0, 9.0, "5.00 (1.00 to 9.00)")


@pytest.mark.parametrize(
    ("aim", "ratio", "is_met"),
    [
        (Aim(at_least=3), Ratio(3.0, 2.0, 4.0), True),
        (Aim(at_least=3), Ratio(2.99, 2.0, 4.0), False),
        (Aim(at_most=1 / 3), Ratio(0.33, 0.2, 0.5), True),
        (Aim(at_most=1 / 3), Ratio(0.34, 0.2, 0.5), False),
        (Aim(at_least=1), Ratio(0.98, 0.95, 1.0), True),
        (Aim(at_least=1), Ratio(0.98, 0.95, 0.99), False),
        (Aim(at_least=1), Ratio(0.96, 0.8, 1.2), False),
        (Aim(at_most=1), Ratio(1.02, 1.0, 1.1), True),
        (Aim(at_most=1), Ratio(1.02, 1.01, 1.1), False),
        (Aim(at_most=1), Ratio(1.04, 0.8, 1.2), False),
    ],
)
def test_verdict_uses_the_median_and_allows_for_noise(aim: Aim, ratio: Ratio, is_met: bool) -> None:
    assert aim.is_met(ratio) is is_met


@pytest.mark.parametrize(
    ("aim", "ratio", "needs_more_rounds"),
    [
        (Aim(at_least=1), Ratio(0.98, 0.90, 1.05), True),
        (Aim(at_most=1), Ratio(1.01, 0.90, 1.05), True),
        (Aim(at_least=1), Ratio(1.00, 0.975, 1.03), False),
        (Aim(at_least=1), Ratio(0.90, 0.80, 0.99), False),
        (Aim(at_least=1), Ratio(1.20, 1.01, 1.40), False),
        (Aim(at_least=3), Ratio(2.90, 2.00, 4.00), False),
    ],
)
def test_rounds_continue_only_while_undecided(aim: Aim, ratio: Ratio, needs_more_rounds: bool) -> None:
    assert aim.needs_more_rounds(ratio) is needs_more_rounds
