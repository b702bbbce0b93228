"""Linux system calls that Python does not offer, through ctypes."""

import ctypes
import sys
from collections.abc import Callable
from typing import cast

STATFS_BYTES_MAX = 256  # Upper limit of the size of struct statfs: 120 on common machines; see statfs(2).


def from_c_library(name: str, *arguments: type) -> Callable[..., int] | None:
    """A function of the C library; None if it is missing."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is not None:
        function.argtypes = arguments
        function.restype = ctypes.c_int
    return cast("Callable[..., int] | None", function)


_fstatfs = from_c_library("fstatfs", ctypes.c_int, ctypes.c_void_p) if sys.platform == "linux" else None


def file_system_type(descriptor: int) -> int:
    """Magic number (statfs(2)) of the file system of an open file; 0 if unknown."""
    found = ctypes.create_string_buffer(STATFS_BYTES_MAX)
    if _fstatfs is None or _fstatfs(descriptor, found) != 0:
        return 0
    return int.from_bytes(found.raw[:4], sys.byteorder)
