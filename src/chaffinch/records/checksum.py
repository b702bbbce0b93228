"""CRC-32C (Castagnoli, RFC 3720 appendix B.4): the checksum of record batch format 2. The only importer of the `crc32c` wheel.

The wheel uses the processor's own instruction, about 27 GB/s, and lets other threads run while it works on large buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec

Buffer = bytes | bytearray | memoryview


def _wheel_function() -> Callable[[Buffer, int], int]:
    """The wheel's function from its compiled module alone where that is found: the package around it looks up its own version, for
    which it imports `importlib.metadata` and `email`, 15 ms of every process that touches a batch."""
    package = find_spec("crc32c")
    spec = PathFinder.find_spec("_crc32c", package.submodule_search_locations) if package else None
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        if hasattr(module, "crc32c"):
            return module.crc32c  # type: ignore[no-any-return]
    from crc32c import crc32c as function

    return function


_crc32c = _wheel_function()


def crc32c(data: Buffer, start: int = 0) -> int:
    """The CRC-32C of `data`, 0 to 2^32 - 1.

    `start` is the checksum of the bytes before: `crc32c(b, crc32c(a)) == crc32c(a + b)`, so a batch whose header and
    payload lie apart needs no copy.
    """
    return _crc32c(data, start)
