"""No bytes lead `decode` outside its buffers, to an undocumented error, or to another result than its twin's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaffinch.records.faults import Fault
from tests.fuzz import batch_fuzzer

ROOT = Path(__file__).parents[2]
ROUNDS = 2000
REACHED = {"tuple", "PayloadUnreadable", "BATCH_LENGTH", "BATCH_CUT_SHORT"} | {
    fault.name for fault in Fault if Fault.RECORD_COUNT <= fault <= Fault.TRAILING_BYTES and fault is not Fault.PAYLOAD
}


@pytest.mark.parametrize("seed", [1, 2])
def test_compiled_loops_and_twin_agree_on_damaged_batches(seed):
    assert batch_fuzzer.run(seed, ROUNDS) >= REACHED


def test_no_index_leaves_its_buffer():
    """With bounds checks an index outside a buffer raises; the compiled loops are built anew for it, outside the cache."""
    finished = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.batch_fuzzer", "3", str(ROUNDS)],
        cwd=ROOT,
        env=os.environ | {"NUMBA_BOUNDSCHECK": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert set(finished.stdout.split()) >= REACHED
