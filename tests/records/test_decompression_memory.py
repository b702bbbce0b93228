"""A payload that unpacks to a gigabyte costs a refusal and no gigabyte: in a process of its own that may not grow by more, codec by codec.

Each bomb is one compressed mebibyte of zeros, a thousand times: streams put end to end, which every codec here reads as one.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from chaffinch.records.compression import Compression

LIMIT_MIB = 128
"""The broker's default for `max.decompressed.bytes`."""

GROWTH_MIB_MAX = 300
"""One buffer of the limit, the first estimate before it, and the codec's own memory; a gigabyte would be three times as much."""

PROGRAM = """
import resource, sys
from chaffinch.records.compression import Compression, PayloadTooLarge, compress, decompress
codec, limit, growth = Compression[sys.argv[1]], int(sys.argv[2]) << 20, int(sys.argv[3]) << 20
bomb = bytes(compress(codec, bytes(1 << 20))) * 1024
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + growth, size + growth))
try:
    decompress(codec, bomb, limit)
except PayloadTooLarge:
    print("refused")
except MemoryError:
    print("too much memory")
"""

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")


def outcome(codec: Compression, limit_mib: int) -> str:
    arguments = [sys.executable, "-c", PROGRAM, codec.name, str(limit_mib), str(GROWTH_MIB_MAX)]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=280, check=True).stdout.strip()


@pytest.mark.parametrize("codec", list(Compression)[1:])
def test_gigabyte_bomb_is_refused_without_its_memory(codec: Compression) -> None:
    assert outcome(codec, LIMIT_MIB) == "refused"


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_larger_limit_exceeds_the_memory_limit(codec: Compression) -> None:
    """Snappy says beforehand what it holds, and is refused without any buffer."""
    assert outcome(codec, 4 * LIMIT_MIB) == "too much memory"
