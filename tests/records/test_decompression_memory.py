"""A payload that unpacks to a gigabyte costs a refusal and no gigabyte: the peak of a process of its own, codec by codec.

Each bomb is one compressed mebibyte of zeros, a thousand times: streams put end to end, which every codec here reads as one.
"""

import subprocess
import sys

import pytest

from chaffinch.records.compression import Compression

LIMIT_MIB = 128
"""The broker's default for `max.decompressed.bytes`."""

PEAK_MIB_MAX = 2 * LIMIT_MIB
"""One buffer of the limit, and what a codec needs besides; a gigabyte would be four times as much."""

PROGRAM = """
import resource, sys
from chaffinch.records.compression import Compression, PayloadTooLarge, compress, decompress
codec = Compression[sys.argv[1]]
bomb = bytes(compress(codec, bytes(1 << 20))) * 1024
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decompress(codec, bomb, int(sys.argv[2]) << 20)
except PayloadTooLarge:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before >> 10)
"""


@pytest.mark.parametrize("codec", list(Compression)[1:])
def test_a_gigabyte_is_never_there(codec: Compression) -> None:
    arguments = [sys.executable, "-c", PROGRAM, codec.name, str(LIMIT_MIB)]
    finished = subprocess.run(arguments, capture_output=True, text=True, timeout=100, check=True)
    assert int(finished.stdout) < PEAK_MIB_MAX


def test_the_measure_sees_what_is_there() -> None:
    """With a limit of 512 MiB the process does grow by more than the bound above."""
    arguments = [sys.executable, "-c", PROGRAM, "ZSTD", str(4 * LIMIT_MIB)]
    finished = subprocess.run(arguments, capture_output=True, text=True, timeout=100, check=True)
    assert int(finished.stdout) > PEAK_MIB_MAX
