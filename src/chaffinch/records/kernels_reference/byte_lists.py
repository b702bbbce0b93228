"""Byte columns as Python lists, which plain loops process several times faster than NumPy arrays."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Int64s: TypeAlias = npt.NDArray[np.int64]

NULL = -1
CORRUPT = -2
"""Lengths of a null, and of an entry whose offsets do not ascend within the data."""


def lengths(offsets: Int64s, data_bytes: int, valid: Bytes) -> list[int]:
    """Length of each entry; NULL and CORRUPT as above, CORRUPT first."""
    starts, ends = offsets[:-1], offsets[1:]
    is_corrupt = (starts < 0) | (ends < starts) | (ends > data_bytes)
    found = np.where(is_corrupt, 0, ends) - np.where(is_corrupt, 0, starts)
    if len(valid):
        found[valid == 0] = NULL
    found[is_corrupt] = CORRUPT
    result: list[int] = found.tolist()
    return result
