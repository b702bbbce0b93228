"""What a CRC-32C becomes when zeros follow: a number times a power of x, modulo the polynomial, bits in reverse as everywhere in it."""

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
    """`crc` (0 to 2^32 - 1) shifted by `zeros` bytes (0 and more): for equally long a and b, crc32c(a + c) ^ crc32c(b + c) is that of
    crc32c(a) ^ crc32c(b), whatever the bytes of c are."""
    power, square = ONE, X_TO_8
    while zeros > 0:
        if zeros & 1:
            power = multiply(power, square)
        square = multiply(square, square)
        zeros >>= 1
    return multiply(crc, power)
