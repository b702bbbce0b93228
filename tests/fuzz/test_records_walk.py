"""No bytes lead the compiled walk to another result than its twin's. That none leads it outside its buffers: `test_bounds.py`."""

import pytest

from chaffinch.records.errors import Fault
from tests.fuzz import walk_fuzzer

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
def test_compiled_and_twin_agree_on_damaged_records(seed: int) -> None:
    assert walk_fuzzer.run(seed, ROUNDS) == REACHED
