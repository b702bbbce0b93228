"""CRC-32C after appended zero bytes: a product with a power of x, modulo the polynomial, with the usual reversed bits."""

from __future__ import annotations

POLYNOMIAL = 0x82F63B78
ONE = 1 << 31
X_TO_8 = 1 << 23


def multiply(one: int, other: int) -> int:
    """The product of two polynomials of 32 bits, modulo POLYNOMIAL."""
    product = 0
    for bit in range(31, -1, -1):
        if one >> bit & 1:
            product ^= other
        other = other >> 1 ^ (POLYNOMIAL if other & 1 else 0)
    return product


def shift_crc(crc: int, zeros: int) -> int:
    """`crc` (0 to 2^32 - 1) after `zeros` (0 or more) zero bytes.

    For equally long a and b, crc32c(a + c) ^ crc32c(b + c) is crc32c(a) ^ crc32c(b) shifted by len(c), for any bytes c.
    """
    power, square = ONE, X_TO_8
    while zeros > 0:
        if zeros & 1:
            power = multiply(power, square)
        square = multiply(square, square)
        zeros >>= 1
    return multiply(crc, power)
