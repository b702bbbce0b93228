"""`python -m simulation SEED [--count N] [--verbose]`: replay one world, or many; exit status 1 if a promise was broken.

One line per failing seed, in their order, says what was violated and how to replay it. A world that lacks what each must have, its
records, a crash and a lost answer, has failed too. `--verbose` tells the whole story in virtual time. Worlds know nothing of each other:
many are played in as many processes as there are processors, and the report is the same.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Final

from simulation.report import Report
from simulation.scenario import run
from simulation.workers import prepare

VIOLATIONS_SHOWN: Final = 20
CHUNK: Final = 8
"""Seeds that a process is given at once."""
INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """0: all promises were kept. 1: some were not, or a world lacked something. 130: interrupted; what was played is reported,
    after the worlds that were handed out already."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description="Replay simulated worlds from their seeds.")
    parser.add_argument("seed", type=int, help="the first world's seed")
    parser.add_argument("--count", type=int, default=1, help="how many worlds, with this seed and those after it")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many play at the same time; one per processor")
    parser.add_argument("--verbose", action="store_true", help="tell the story of each world in virtual time")
    chosen = parser.parse_args(arguments)
    began_s = time.perf_counter()
    totals: Counter[str] = Counter()
    played = failed = incomplete = status = 0
    try:
        for report in _reports(chosen.seed, chosen.count, chosen.processes, keeps_trace=chosen.verbose):
            totals.update(report.counters)
            played += 1
            failed += bool(report.violations)
            incomplete += bool(report.missing)
            _print(report, is_verbose=chosen.verbose)
    except KeyboardInterrupt:
        status = INTERRUPTED
    _print_totals(played, failed, incomplete, time.perf_counter() - began_s, totals)
    return status or (1 if failed + incomplete else 0)


def _reports(first: int, count: int, processes: int, *, keeps_trace: bool) -> Iterator[Report]:
    """One per seed, in their order."""
    seeds, play = range(first, first + count), partial(run, keeps_trace=keeps_trace)
    if min(processes, count) <= 1:
        prepare(for_many_worlds=count >= CHUNK)
        yield from map(play, seeds)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(processes, count), mp_context=context, initializer=prepare)
    try:
        yield from pool.map(play, seeds, chunksize=min(CHUNK, -(-count // processes)))
    finally:
        pool.shutdown(cancel_futures=True)


def _print(report: Report, *, is_verbose: bool) -> None:
    for line in report.trace:
        print(line)
    if is_verbose:
        for violation in report.violations[:VIOLATIONS_SHOWN]:
            print(f"violated: {violation}")
    if failure := _failure(report):
        print(f"seed {report.seed}: {failure}; replay: python -m simulation {report.seed} --verbose", flush=True)


def _failure(report: Report) -> str:
    """Of a world that has failed, in a few words; empty for others."""
    if report.violations:
        more = f" (and {len(report.violations) - 1} more)" if len(report.violations) > 1 else ""
        return report.violations[0] + more
    return f"the world lacks what each must have: {', '.join(report.missing)}" if report.missing else ""


def _print_totals(count: int, failed: int, incomplete: int, seconds: float, totals: Counter[str]) -> None:
    emit = ", ".join(f"{number} {name}" for name, number in totals.most_common())
    outcome = f"{failed} failed, {incomplete} lacked records, a crash or a lost answer"
    print(f"{count} worlds in {seconds:.1f} s, {count / seconds:.2f} a second; {outcome}; {emit}", file=sys.stderr)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # As Ctrl-C, which a shell keeps from what it runs in the background.
    sys.exit(main())
