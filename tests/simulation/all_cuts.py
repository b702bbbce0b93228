"""`make cuts`: the whole table of `commit_cuts.py`, each cell at several operations of its step, in several worlds."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import product

from simulation.workers import prepare
from tests.simulation.commit_cuts import CUTS, Ends, played, token_write_played

OCCURRENCES = 3
PROGRAMS = {"query": played, "write with a token": token_write_played}
"""Micro-batches of a query; and `write_table` or `df.write`, without a checkpoint."""
CHUNK = 16


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="worlds for each cell and operation")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args()
    began_s = time.perf_counter()
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    tasks = list(product(CUTS, seeds, range(OCCURRENCES)))
    made: Counter[str] = Counter()
    faults = 0
    pool = ProcessPoolExecutor(chosen.processes, mp_context=multiprocessing.get_context("spawn"), initializer=prepare)
    with pool:
        for name, program in PROGRAMS.items():
            for (cell, seed, occurrence), (fault, is_made) in zip(tasks, pool.map(program, tasks, chunksize=CHUNK), strict=True):
                made[name] += is_made
                if fault is not None:
                    faults += 1
                    where = f"{cell.step.value}, {cell.kind.value}, {cell.phase.value}, operation {occurrence}, seed {seed}"
                    print(f"{name}: {where}: {fault}", flush=True)
    reachable = sum(ends is not Ends.UNREACHABLE for ends in CUTS.values())
    print(
        f"{len(CUTS)} cells, {reachable} of them reachable; {len(PROGRAMS) * len(tasks)} worlds, "
        + ", ".join(f"{made[name]} with their cut of a {name}" for name in PROGRAMS)
        + f", {faults} faults, {time.perf_counter() - began_s:.0f} s"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
