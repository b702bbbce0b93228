"""Record batches that stand in a file and are read no sooner than they are sent.

Whoever answers must know how many bytes will follow before the first of them leaves, but needs none of them. Where the system can, it
sends them from its own pages (sendfile(2)), and nobody reads them at all; else they are read piece by piece, each sent before the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias

PIECE_BYTES = 256 * 1024
"""A quarter of what a partition gives by default, to fit into a processor's second-level cache."""


class Source(Protocol):
    """A file with records. Positions and lengths are in bytes."""

    def read(self, position: int, length: int) -> bytes: ...

    def descriptor(self) -> int | None:
        """Of the open file, where the system keeps one: to be used at once."""
        ...

    def held(self) -> HeldSource | None:
        """The same bytes whatever becomes of the file; None where that cannot be had."""
        ...


class HeldSource(Source, Protocol):
    """Of whoever has it until `close`."""

    def close(self) -> None: ...


class FileSlice:
    """`length` bytes from `position` on. To be sent soon: once the caller's turn is over the file may be another, unless it is held."""

    __slots__ = ("_length", "position", "source")

    def __init__(self, source: Source, position: int, length: int) -> None:
        self.source = source
        self.position = position
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __bytes__(self) -> bytes:
        return self.source.read(self.position, self._length)

    def pieces(self) -> Iterator[bytes]:
        """All of it, in turn."""
        end = self.position + self._length
        for position in range(self.position, end, PIECE_BYTES):
            yield self.source.read(position, min(PIECE_BYTES, end - position))

    def skip(self, count: int) -> None:
        """The first bytes are not part of it any more."""
        self.position += count
        self._length -= count

    def hold(self) -> HeldSource | None:
        """Keep what it reads from, so that it may be sent later: of whoever calls, to be closed after. None where that cannot be."""
        held = self.source.held()
        if held is not None:
            self.source = held
        return held


Part: TypeAlias = bytes | bytearray | memoryview | FileSlice
"""What an answer is made of."""


def loaded(parts: Sequence[Part]) -> list[bytes | bytearray | memoryview]:
    """The same, with every stretch read now."""
    return [bytes(part) if isinstance(part, FileSlice) else part for part in parts]
