"""malloc settings, in a separate process."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource
from chaffinch.runtime.allocator import keep_freed_memory
kept = keep_freed_memory() if ASKED else None
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def read_and_send():
    parts = [bytearray(1 << 20) for _ in range(4)]
read_and_send()
before = faults()
for _ in range(20):
    read_and_send()
print(kept, faults() - before)
"""


def run(has_allocator_settings: bool) -> tuple[str, int]:
    program = PROGRAM.replace("ASKED", str(has_allocator_settings))
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    kept, faults = finished.stdout.split()
    return kept, int(faults)


def test_freed_megabytes_are_used_again() -> None:
    kept, faults = run(True)
    if kept == "False":
        pytest.skip("this C library has no mallopt")
    assert faults < 100
    assert run(False)[1] > 4 * 20 * 100, "else there is nothing to be gained"
