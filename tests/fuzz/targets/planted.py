"""A parser with a fault behind four bytes, which random input does not reach. Guided fuzzing finds them one after the other."""

from __future__ import annotations

from collections.abc import Iterator

PARTS = ()


def _parse(data: bytes) -> int:
    if len(data) < 4 or data[0] != 0x4B:
        return 0
    if data[1] != 0x2A:
        return 1
    if data[2] != 0xC3:
        return 2
    if data[3] != data[1] ^ data[2]:
        return 3
    raise ZeroDivisionError("the fault that was planted")


FUNCTIONS = (_parse,)


def seeds() -> Iterator[bytes]:
    yield bytes(8)


def check(data: bytes) -> None:
    _parse(data)
