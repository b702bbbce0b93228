"""`make fuzz`: every fuzzer with more seeds than the tests give it, then the property tests of the parsers.

`NUMBA_BOUNDSCHECK=1 python -m tests.fuzz [SEEDS]`; a failure prints its seed and its bytes.
"""

from __future__ import annotations

import sys

import pytest

from tests.fuzz import answer_fuzzer, batch_fuzzer, messages_fuzzer, request_fuzzer, walk_fuzzer

SEEDS = 10
ROUNDS = 5_000


def main(arguments: list[str]) -> int:
    seeds = int(arguments[0]) if arguments else SEEDS
    for fuzzer in (walk_fuzzer, batch_fuzzer, messages_fuzzer, request_fuzzer, answer_fuzzer):
        reached = set().union(*(fuzzer.run(seed, ROUNDS) for seed in range(seeds)))
        print(f"{fuzzer.__name__}: {seeds} seeds, {seeds * ROUNDS} inputs, {len(reached)} kinds of outcome")
    return int(pytest.main(["tests/fuzz/test_protocol.py"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
