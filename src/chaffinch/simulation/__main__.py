"""`python -m chaffinch.simulation SEED [--count N] [--verbose]`: replay one world, or many; exit status 1 if a promise was broken.

One line per failing seed says what was violated and how to replay it. `--verbose` tells the whole story in virtual time.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

from chaffinch.simulation.scenario import Report, run

VIOLATIONS_SHOWN: Final = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """0: all promises were kept. 1: some were not."""
    parser = argparse.ArgumentParser(prog="python -m chaffinch.simulation", description="Replay simulated worlds from their seeds.")
    parser.add_argument("seed", type=int, help="the first world's seed")
    parser.add_argument("--count", type=int, default=1, help="how many worlds, with this seed and those after it")
    parser.add_argument("--verbose", action="store_true", help="tell the story of each world in virtual time")
    chosen = parser.parse_args(arguments)
    # Torn ends that recovery reports are what these worlds are made of.
    logging.disable(logging.WARNING)
    began_s = time.perf_counter()
    totals: Counter[str] = Counter()
    failed = 0
    for seed in range(chosen.seed, chosen.seed + chosen.count):
        report = run(seed, keeps_story=chosen.verbose)
        totals.update(report.counters)
        failed += bool(report.violations)
        _print(report, is_verbose=chosen.verbose)
    _print_totals(chosen.count, failed, time.perf_counter() - began_s, totals)
    return 1 if failed else 0


def _print(report: Report, *, is_verbose: bool) -> None:
    for line in report.story:
        print(line)
    if is_verbose:
        for violation in report.violations[:VIOLATIONS_SHOWN]:
            print(f"violated: {violation}")
    if report.violations:
        more = f" (and {len(report.violations) - 1} more)" if len(report.violations) > 1 else ""
        print(f"seed {report.seed}: {report.violations[0]}{more}; replay: python -m chaffinch.simulation {report.seed} --verbose")


def _print_totals(count: int, failed: int, seconds: float, totals: Counter[str]) -> None:
    happened = ", ".join(f"{number} {name}" for name, number in totals.most_common())
    print(f"{count} worlds in {seconds:.1f} s, {count / seconds:.1f} a second; {failed} failed; {happened}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
