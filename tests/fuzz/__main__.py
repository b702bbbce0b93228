"""`make fuzz`: the guided targets, and beside them every other fuzzer with more seeds than tests give it; then property tests of parsers.

`NUMBA_BOUNDSCHECK=1 python -m tests.fuzz [SEEDS]`; a failure prints its seed and its bytes. The targets take half of the time, in processes
of their own, one at a time.
"""

from __future__ import annotations

import logging
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fuzz import batch_fuzzer, connection_fuzzer, guided, messages_fuzzer, request_fuzzer, response_fuzzer, walk_fuzzer

SEEDS = 10
ROUNDS = 5_000
WORLDS = 20
"""Of connections, for each seed."""
GUIDED_RUNS = {"streams": 20_000, "messages": 20_000, "batches": 10_000}
"""For each seed."""


def main(arguments: list[str]) -> int:
    seeds = int(arguments[0]) if arguments else SEEDS
    logging.disable(logging.WARNING)  # Of the brokers, each of which has much to say.
    with ThreadPoolExecutor(1) as beside:
        is_guided = guided.is_available()
        runs = {name: beside.submit(guided.run, name, 1, seeds * GUIDED_RUNS[name]) for name in guided.TARGETS if is_guided}
        for fuzzer in (walk_fuzzer, batch_fuzzer, messages_fuzzer, request_fuzzer, response_fuzzer):
            reached = set().union(*(fuzzer.run(seed, ROUNDS) for seed in range(seeds)))
            print(f"{fuzzer.__name__}: {seeds} seeds, {seeds * ROUNDS} inputs, {len(reached)} kinds of outcome", flush=True)
        seen = sum((connection_fuzzer.run(seed, WORLDS) for seed in range(seeds)), connection_fuzzer.NOTHING)
        counts = ", ".join(f"{count} {what}" for what, count in seen.items())
        print(f"{connection_fuzzer.__name__}: {seeds} seeds, {seeds * WORLDS} worlds, {counts}", flush=True)
        for name, run in runs.items():
            print(f"tests.fuzz.targets.{name}: {run.result()}", flush=True)
    if not is_guided:
        print(f"{', '.join(guided.TARGETS)}: not run, for atheris, which guides them, comes for Linux on x86-64 only")
    return int(pytest.main(["tests/fuzz/test_protocol.py", "tests/fuzz/test_guided.py"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
