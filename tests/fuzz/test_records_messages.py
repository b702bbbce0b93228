"""No bytes lead the loops over old formats and over snappy blocks outside their buffers or to another result than their twins'."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import messages_fuzzer

ROOT = Path(__file__).parents[2]
ROUNDS = 2000
REACHED = {
    "NONE",
    "BATCH_MAGIC",
    "MESSAGE_SIZE",
    "MESSAGE_CUT_SHORT",
    "MESSAGE_KEY_LENGTH",
    "MESSAGE_VALUE_LENGTH",
    "RECORD_LENGTH_UNUSED",
    "TRAILING_BYTES",
    *(f"snappy {number}" for number in range(-6, 1)),
}
"""Every end there is but MESSAGE_TIMESTAMP, which needs a right checksum around a size of its own: `test_messages.py` has it."""


@pytest.mark.parametrize("seed", [1, 2])
def test_compiled_loops_and_twins_agree(seed):
    assert messages_fuzzer.run(seed, ROUNDS) >= REACHED


def test_with_every_index_checked():
    """The loops are compiled anew for it, outside the cache."""
    finished = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.messages_fuzzer", "3", str(ROUNDS)],
        cwd=ROOT,
        env=os.environ | {"NUMBA_BOUNDSCHECK": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert {name.replace("_", " ") if name.startswith("snappy") else name for name in finished.stdout.split()} >= REACHED
