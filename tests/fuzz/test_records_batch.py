"""No bytes lead `decode` to an undocumented error, or to another result than its twin's."""

import pytest

from chaffinch.records.errors import Fault
from tests.fuzz import batch_fuzzer

ROUNDS = 2000
REACHED = {"tuple", "PayloadUnreadable", "BATCH_LENGTH", "BATCH_CUT_SHORT"} | {
    fault.name for fault in Fault if Fault.RECORD_COUNT <= fault <= Fault.TRAILING_BYTES and fault is not Fault.PAYLOAD
}


@pytest.mark.parametrize("seed", [1, 2])
def test_compiled_loops_and_twin_agree_on_damaged_batches(seed: int) -> None:
    assert batch_fuzzer.run(seed, ROUNDS) >= REACHED
