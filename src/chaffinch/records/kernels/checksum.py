"""Compiled twin of `kernels_reference/checksum.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from chaffinch.records.kernels.compiled import INT64, compiled, inlined
from chaffinch.records.kernels_reference.checksum import ONE, POLYNOMIAL, X_TO_8


@inlined
def _multiply(one: Any, other: Any) -> Any:
    product, factor = np.int64(0), other
    for bit in range(31, -1, -1):
        product ^= factor & -(one >> bit & 1)
        factor = factor >> 1 ^ POLYNOMIAL & -(factor & 1)
    return product


@compiled(INT64, INT64)
def shift_crc(crc: int, zeros: int) -> int:
    power: Any = np.int64(ONE)
    square: Any = np.int64(X_TO_8)
    while zeros > 0:
        if zeros & 1:
            power = _multiply(power, square)
        square = _multiply(square, square)
        zeros >>= 1
    return _multiply(crc, power)  # type: ignore[no-any-return]
