"""An in-memory source of file slices."""

from __future__ import annotations


class BytesSource:
    """Notes what is `asked` for: positions and lengths."""

    def __init__(self, data: bytes | bytearray) -> None:
        self.data = data
        self.reads: list[tuple[int, int]] = []

    def read(self, position: int, length: int) -> bytes:
        self.reads.append((position, length))
        return bytes(self.data[position : position + length])

    def descriptor(self) -> None:
        return None

    def held(self) -> None:
        return None
