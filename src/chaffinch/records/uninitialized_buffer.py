"""A bytearray of a given size whose bytes are whatever lay there: who asks for it writes each of them, or cuts the rest off.

`bytearray(size)` fills with zeros, which was a tenth of what the encoding and sending of a large table took.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

_make: Final[Any] = ctypes.pythonapi.PyByteArray_FromStringAndSize
"""Of CPython's stable ABI; it copies nothing when it is given no string."""

_make.restype, _make.argtypes = ctypes.py_object, (ctypes.c_char_p, ctypes.c_ssize_t)


def uninitialized_buffer(size: int) -> bytearray:
    """Room for `size` bytes. MemoryError as from `bytearray`."""
    made: bytearray = _make(None, size)
    return made
