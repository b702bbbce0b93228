"""Sending what stands in files: each piece is written to the socket before the next is read.

The transport would take all of it first. So it gets only what the socket does not take at once, as it would have tried itself.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence

from chaffinch.records.stretch import Part, Stretch

NOWHERE = -1


def socket_of(transport: asyncio.Transport) -> int:
    """The descriptor that bytes may be written to as they are; NOWHERE if TLS lies between."""
    if transport.get_extra_info("sslcontext") is not None:
        return NOWHERE
    found = transport.get_extra_info("socket")
    return NOWHERE if found is None else int(found.fileno())


def send(transport: asyncio.Transport, descriptor: int, parts: Sequence[Part]) -> None:
    """Write `parts` in order. Raises what reading them raises, and ConnectionError when the connection is lost; some of it is sent then."""
    is_full = descriptor == NOWHERE or transport.get_write_buffer_size() > 0
    for piece in _pieces(parts):
        written = 0 if is_full else _written(descriptor, piece)
        if written < len(piece):
            is_full = True
            transport.write(memoryview(piece)[written:])


def _pieces(parts: Sequence[Part]) -> Iterator[bytes | bytearray | memoryview]:
    for part in parts:
        if isinstance(part, Stretch):
            yield from part.pieces()
        else:
            yield part


def _written(descriptor: int, piece: bytes | bytearray | memoryview) -> int:
    try:
        return os.write(descriptor, piece)
    except BlockingIOError:
        return 0
