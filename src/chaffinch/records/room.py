"""A bytearray of a given size whose bytes are whatever lay there: who asks for it writes each of them, or cuts the rest off.

`bytearray(size)` fills with zeros, which was a tenth of what the encoding and sending of a large table took.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final


def _of_the_interpreter() -> Callable[[None, int], bytearray] | None:
    """PyByteArray_FromStringAndSize of CPython's stable ABI, which copies nothing when given no string; other interpreters may lack it."""
    make: Any = getattr(getattr(ctypes, "pythonapi", None), "PyByteArray_FromStringAndSize", None)
    if make is None:
        return None
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_char_p, ctypes.c_ssize_t)
    found: Callable[[None, int], bytearray] = make
    return found


_make: Final = _of_the_interpreter()


def uninitialised(size: int) -> bytearray:
    """Room for `size` bytes. MemoryError as from `bytearray`."""
    return bytearray(size) if _make is None else _make(None, size)
