"""No bytes lead the compiled walk outside its buffers or to another result than its twin's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaffinch.records.faults import Fault
from tests.fuzz import walk_fuzzer

ROOT = Path(__file__).parents[2]
ROUNDS = 3000
REACHED = {
    Fault.NONE,
    Fault.RECORD_COUNT,
    Fault.RECORD_LENGTH,
    Fault.RECORD_CUT_SHORT,
    Fault.TIMESTAMP_DELTA,
    Fault.OFFSET_DELTA,
    Fault.KEY_LENGTH,
    Fault.VALUE_LENGTH,
    Fault.HEADER_COUNT,
    Fault.HEADER_KEY_LENGTH,
    Fault.HEADER_VALUE_LENGTH,
    Fault.RECORD_LENGTH_UNUSED,
    Fault.TRAILING_BYTES,
}
"""Every fault a walk can find: a fuzzer that no longer gets there tests nothing."""


@pytest.mark.parametrize("seed", [1, 2])
def test_compiled_and_twin_agree_on_damaged_records(seed):
    assert walk_fuzzer.run(seed, ROUNDS) == REACHED


def test_with_every_index_checked():
    """numba checks no index unless told to at compile time, so this compiles the walk anew, in a process of its own."""
    program = [sys.executable, "-m", "tests.fuzz.walk_fuzzer", "3", str(ROUNDS)]
    finished = subprocess.run(
        program, env=os.environ | {"NUMBA_BOUNDSCHECK": "1"}, capture_output=True, text=True, timeout=280, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert set(map(int, finished.stdout.split())) == REACHED
