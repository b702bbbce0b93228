"""Calls that Linux has and Python does not offer."""

import ctypes
import sys
from collections.abc import Callable
from typing import cast

STATFS_BYTES_MAX = 256  # Of struct statfs, which has 120 on the usual machines; see statfs(2).


def from_c_library(name: str, *arguments: type) -> Callable[..., int] | None:
    """None where it is absent."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is not None:
        function.argtypes = arguments
        function.restype = ctypes.c_int
    return cast("Callable[..., int] | None", function)


_fstatfs = from_c_library("fstatfs", ctypes.c_int, ctypes.c_void_p) if sys.platform == "linux" else None


def file_system_type(descriptor: int) -> int:
    """The number in statfs(2) of the file system on which the open file lies; 0 where it cannot be told."""
    found = ctypes.create_string_buffer(STATFS_BYTES_MAX)
    if _fstatfs is None or _fstatfs(descriptor, found) != 0:
        return 0
    return int.from_bytes(found.raw[:4], sys.byteorder)
