"""Command line of the simulation: `python -m simulation SEED [--count N] [--verbose]` replays one world or many.

Prints one line per failing seed, in seed order, with the first violation and the command that replays it. A world also fails if it lacks
a required event: its records, a broker crash and a lost response. `--verbose` prints the whole trace in virtual time. Worlds are
independent: they run in one process per processor, and the report does not depend on the number of processes.
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
"""Seeds handed to a process at a time."""
INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0: no violations. 1: violations, or a required event is missing. 130: interrupted; worlds that were already handed out
    finish first, then the totals so far are printed."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description="Replay simulated worlds from their seeds.")
    parser.add_argument("seed", type=int, help="the first world's seed")
    parser.add_argument("--count", type=int, default=1, help="number of worlds, with this and the following seeds")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="worlds run at the same time; default: one per processor"
    )
    parser.add_argument("--verbose", action="store_true", help="print the trace of each world in virtual time")
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
    """One report per seed, in seed order."""
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
    """A short description of why the world failed; empty if it did not."""
    if report.violations:
        more = f" (and {len(report.violations) - 1} more)" if len(report.violations) > 1 else ""
        return report.violations[0] + more
    return f"the world lacks required events: {', '.join(report.missing)}" if report.missing else ""


def _print_totals(count: int, failed: int, incomplete: int, seconds: float, totals: Counter[str]) -> None:
    emit = ", ".join(f"{number} {name}" for name, number in totals.most_common())
    outcome = f"{failed} failed, {incomplete} lacked records, a crash or a lost response"
    print(f"{count} worlds in {seconds:.1f} s, {count / seconds:.2f} a second; {outcome}; {emit}", file=sys.stderr)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Treated as Ctrl-C, because a shell makes background commands ignore SIGINT.
    sys.exit(main())
