"""No bytes lead the loops over old formats and over snappy blocks to another result than their twins'."""

import pytest

from tests.fuzz import messages_fuzzer

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
def test_compiled_loops_and_twins_agree(seed: int) -> None:
    assert messages_fuzzer.run(seed, ROUNDS) >= REACHED
