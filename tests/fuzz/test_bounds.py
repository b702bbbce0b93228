"""No bytes lead the compiled loops outside their buffers.

numba checks indices only if enabled at compile time, and does not cache such code: all loops are compiled again, in one process.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import test_records_batch, test_records_messages, test_records_walk

ROOT = Path(__file__).parents[2]
PROGRAM = """
from tests.fuzz import batch_fuzzer, messages_fuzzer, walk_fuzzer
for fuzzer, rounds in ((batch_fuzzer, {0}), (messages_fuzzer, {1}), (walk_fuzzer, {2})):
    print(fuzzer.__name__, *sorted(map(str, fuzzer.run(3, rounds))), sep=";")
"""
TESTS = (test_records_batch, test_records_messages, test_records_walk)


@pytest.fixture(scope="module")
def reached() -> dict[str, set[str]]:
    """What each fuzzer has come to, by its name. An index outside its buffer is an IndexError, and ends the process."""
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(*(test.ROUNDS for test in TESTS))],
        cwd=ROOT,
        env=os.environ | {"NUMBA_BOUNDSCHECK": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return {name: set(kinds) for name, *kinds in (line.split(";") for line in finished.stdout.splitlines())}


@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.__name__.rpartition("_")[2])
def test_compiled_loops_stay_within_their_buffers(reached: dict[str, set[str]], test: object) -> None:
    name = test.__name__.replace("test_records_", "") + "_fuzzer"  # type: ignore[attr-defined]
    assert reached[name] >= {str(kind) for kind in test.REACHED}  # type: ignore[attr-defined]
