"""`make fuzz`: many more rounds than the tests take, then those tests. Run it with NUMBA_BOUNDSCHECK=1.

`python -m tests.fuzz [first seed]`: a failing seed is in the message, and `python -m tests.fuzz.walk_fuzzer SEED ROUNDS` replays it.
"""

import sys

import pytest

from tests.fuzz import batch_fuzzer, walk_fuzzer

SEEDS = 20
ROUNDS = 5000


def main(first_seed: int) -> int:
    for fuzzer in (walk_fuzzer, batch_fuzzer):
        for seed in range(first_seed, first_seed + SEEDS):
            fuzzer.run(seed, ROUNDS)
        print(f"{fuzzer.__name__}: {SEEDS * ROUNDS} inputs, nothing found")
    return pytest.main(["tests/fuzz"])


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
