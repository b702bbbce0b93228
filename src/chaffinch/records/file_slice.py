"""FileSlice: a byte range of a file with record batches, sent without being loaded (Netty's FileRegion).

The broker needs the number of bytes before it sends a response, but not the bytes. Where possible the system sends them from its page cache
(sendfile(2)). Otherwise they are read in pieces, each sent before the next is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias

PIECE_BYTES = 256 * 1024
"""A quarter of a partition's default fetch size, to fit into a processor's second-level cache."""


class Source(Protocol):
    """A file with records. Positions and lengths are in bytes."""

    def read(self, position: int, length: int) -> bytes: ...

    def descriptor(self) -> int | None:
        """Descriptor of the open file, if there is one, for immediate use."""
        ...

    def held(self) -> HeldSource | None:
        """A source with the same bytes that survives changes to the file; None if that is impossible."""
        ...


class HeldSource(Source, Protocol):
    """A source the caller owns until `close`."""

    def close(self) -> None: ...


class FileSlice:
    """`length` bytes from `position` on. Send it soon: after the current call the file may change, unless it is held."""

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
        """All bytes, in pieces."""
        end = self.position + self._length
        for position in range(self.position, end, PIECE_BYTES):
            yield self.source.read(position, min(PIECE_BYTES, end - position))

    def skip(self, count: int) -> None:
        """Drop the first `count` bytes."""
        self.position += count
        self._length -= count

    def hold(self) -> HeldSource | None:
        """Hold the source so that the slice can be sent later. The caller closes the result; None if it cannot be held."""
        held = self.source.held()
        if held is not None:
            self.source = held
        return held


Part: TypeAlias = bytes | bytearray | memoryview | FileSlice
"""Part of a response."""


def loaded(parts: Sequence[Part]) -> list[bytes | bytearray | memoryview]:
    """The parts with every file slice read."""
    return [bytes(part) if isinstance(part, FileSlice) else part for part in parts]
