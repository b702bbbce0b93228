"""Record batches that stand in a file and are read no sooner than they are sent.

Whoever answers must know how many bytes will follow before the first of them leaves, but needs none of them. Read piece by piece, each sent
before the next is read, they stay in the processor's cache on their way, and the reader has the first ones earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

PIECE_BYTES = 256 * 1024
"""A quarter of what a partition gives by default, to fit into a processor's second-level cache. Other sizes were not tried."""


class Stretch:
    """`length` bytes from `position` on, which `read(position, length)` reads. To be sent soon: once the caller's turn is over the file may
    be another."""

    __slots__ = ("_length", "_position", "_read")

    def __init__(self, read: Callable[[int, int], bytes], position: int, length: int) -> None:
        self._read = read
        self._position = position
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __bytes__(self) -> bytes:
        return self._read(self._position, self._length)

    def pieces(self) -> Iterator[bytes]:
        """All of it, in turn."""
        end = self._position + self._length
        for position in range(self._position, end, PIECE_BYTES):
            yield self._read(position, min(PIECE_BYTES, end - position))


Part: TypeAlias = bytes | bytearray | memoryview | Stretch
"""What an answer is made of."""


def loaded(parts: Sequence[Part]) -> list[bytes | bytearray | memoryview]:
    """The same, with every stretch read now."""
    return [bytes(part) if isinstance(part, Stretch) else part for part in parts]
