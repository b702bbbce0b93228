"""Sending what stands in files, past the transport, which would take all of it into memory first.

The system sends it from its own pages, as much at a time as the socket has room for (`listeners.SEND_BUFFER_BYTES`: what waits there is
still in the processor's cache when the client reads it). When there is room again the event loop says so. Under TLS, and behind what waits
in the transport, there is no way past it.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from chaffinch.records.file_slice import PIECE_BYTES, FileSlice, HeldSource, Part

NO_DESCRIPTOR: Final = -1

_CAN_SEND_FILES: Final = hasattr(os, "sendfile")

BYTES_PER_TURN: Final = 1 << 20
"""At most so much leaves in one turn of the loop, however fast the client reads: then it is the others' turn."""


class FileSender:
    """Of one connection. `on_end()`: all has left that was on its way; `on_failure(error)`: something of it cannot be read, or the
    connection is lost, and the rest is dropped. Both are called from the event loop, never from within `send`."""

    def __init__(self, transport: asyncio.Transport, on_end: Callable[[], None], on_failure: Callable[[Exception], None]) -> None:
        self._transport = transport
        self._socket = _socket_of(transport)
        self._on_end = on_end
        self._on_failure = on_failure
        self._left: deque[Part] = deque()
        self._held: dict[FileSlice, HeldSource] = {}
        self._partitions = NO_DESCRIPTOR
        self._loop: asyncio.AbstractEventLoop
        self.bytes_left = 0
        """Of what is on its way."""

    def send(self, parts: Sequence[Part]) -> None:
        """Send `parts`, in order, behind what is on its way. What does not leave now will be the same when it does, whatever becomes of the
        files.

        Raises what reading raises, and ConnectionError; some of it is sent then, and the connection is of no use any more.
        """
        if not self.bytes_left and (self._socket == NO_DESCRIPTOR or self._transport.get_write_buffer_size()):
            self._give_to_transport(parts)
            return
        was_idle = not self.bytes_left
        self._left.extend(parts)
        self.bytes_left += sum(map(len, parts))
        if was_idle:
            self._proceed()
        if self.bytes_left:
            self._hold()
            try:
                self._watch()
            except OSError:  # The process has no descriptor left.
                self.fall_back_to_transport()

    def fall_back_to_transport(self) -> None:
        """Have the transport send the rest, read now. Raises what reading raises."""
        parts = list(self._left)
        try:
            self._give_to_transport(parts)
        finally:
            self.drop()

    def drop(self) -> None:
        """Nothing more is sent."""
        self._unwatch()
        for part in list(self._held):
            self._release(part)
        self._left.clear()
        self.bytes_left = 0

    def _give_to_transport(self, parts: Iterable[Part]) -> None:
        for part in parts:
            for piece in part.pieces() if isinstance(part, FileSlice) else (part,):
                self._transport.write(piece)

    def _proceed(self) -> None:
        """Send what the socket has room for, or as much as a turn may."""
        left, budget = self._left, BYTES_PER_TURN
        try:
            while left and budget > 0:
                part = left[0]
                if isinstance(part, FileSlice):
                    sent = send_part(self._socket, part, budget)
                    is_over = not len(part)
                else:
                    sent = os.write(self._socket, memoryview(part)[:budget])
                    is_over = sent == len(part)
                    if not is_over:
                        left[0] = memoryview(part)[sent:]
                budget -= sent
                self.bytes_left -= sent
                if is_over:
                    self._release(left.popleft())
        except BlockingIOError:
            pass

    def _hold(self) -> None:
        """From now on the files may change."""
        for index, part in enumerate(self._left):
            if isinstance(part, FileSlice) and part not in self._held:
                held = part.hold()
                if held is None:
                    self._left[index] = bytes(part)
                else:
                    self._held[part] = held

    def _release(self, part: Part) -> None:
        held = self._held.pop(part, None) if isinstance(part, FileSlice) else None
        if held is not None:
            held.close()

    def _watch(self) -> None:
        """Hear when there is room: by a descriptor of its own, since the loop has the socket's for its transport alone."""
        if self._partitions == NO_DESCRIPTOR:
            self._loop = asyncio.get_running_loop()
            self._partitions = os.dup(self._socket)
            self._loop.add_writer(self._partitions, self._on_writable)

    def _unwatch(self) -> None:
        if self._partitions != NO_DESCRIPTOR:
            watched, self._partitions = self._partitions, NO_DESCRIPTOR
            self._loop.remove_writer(watched)
            os.close(watched)

    def _on_writable(self) -> None:
        try:
            self._proceed()
        except Exception as error:
            self.drop()
            self._on_failure(error)
            return
        if not self.bytes_left:
            self._unwatch()
            self._on_end()


def send_part(socket: int, file_slice: FileSlice, bytes_max: int) -> int:
    """Have the socket take the first bytes, as many as it has room for: they are gone from the stretch then. Returns how many.

    Raises BlockingIOError where there is no room, ConnectionError, and what reading raises.
    """
    count = min(bytes_max, len(file_slice))
    sent = _sent_by_system(socket, file_slice, count)
    if not sent:
        sent = os.write(socket, file_slice.source.read(file_slice.position, min(count, PIECE_BYTES)))
    file_slice.skip(sent)
    return sent


def _sent_by_system(socket: int, file_slice: FileSlice, count: int) -> int:
    """0 where the system cannot: no file, a short one, a failing disk, a lost connection. Reading it, and sending that, says which."""
    descriptor = file_slice.source.descriptor() if _CAN_SEND_FILES else None
    if descriptor is None:
        return 0
    try:
        return os.sendfile(socket, descriptor, file_slice.position, count)
    except BlockingIOError:
        raise
    except OSError:
        return 0


def _socket_of(transport: asyncio.Transport) -> int:
    """The descriptor that bytes may be written to as they are; NOWHERE if TLS lies between."""
    if transport.get_extra_info("sslcontext") is not None:
        return NO_DESCRIPTOR
    found = transport.get_extra_info("socket")
    return NO_DESCRIPTOR if found is None else int(found.fileno())
