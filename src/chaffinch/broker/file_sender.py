"""Sends parts of files to a socket with sendfile(2), bypassing the transport, which would first load all of it into memory.

The kernel sends from its page cache, as much at a time as the socket buffer takes (`socket.send.buffer.bytes`: what waits there is still in
the CPU cache when the client reads it). The event loop reports when the socket is writable again. With TLS, or while the transport has
buffered data, the transport is used instead.
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
"""Bytes sent in one event loop turn, however fast the client reads; then other connections get their turn."""


class FileSender:
    """Sends responses with file parts on one connection.

    `on_end()`: everything was sent. `on_failure(error)`: part of it cannot be read, or the connection is lost; the rest is dropped. Both
    are called from the event loop, never from within `send`.
    """

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
        """Bytes that are queued and not yet sent."""

    def send(self, parts: Sequence[Part]) -> None:
        """Send `parts` in order, after what is queued. Unsent parts keep their content even if the files change.

        Raises read errors and ConnectionError; part of the data is then sent, and the connection is unusable.
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
            except OSError:  # The process has no file descriptor left.
                self.fall_back_to_transport()

    def fall_back_to_transport(self) -> None:
        """Read the rest and pass it to the transport. Raises read errors."""
        parts = list(self._left)
        try:
            self._give_to_transport(parts)
        finally:
            self.drop()

    def drop(self) -> None:
        """Drop everything that is queued."""
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
        """Send until the socket buffer is full or the turn's limit is reached."""
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
        """Keep the queued file parts readable: from now on the files may change."""
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
        """Watch for writability through a duplicated descriptor: the event loop reserves the socket's own for its transport."""
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
    """Send the first bytes of a file part, as many as the socket takes, and advance it. Returns the count.

    Raises BlockingIOError if the socket buffer is full, ConnectionError, and read errors.
    """
    count = min(bytes_max, len(file_slice))
    sent = _sent_by_system(socket, file_slice, count)
    if not sent:
        sent = os.write(socket, file_slice.source.read(file_slice.position, min(count, PIECE_BYTES)))
    file_slice.skip(sent)
    return sent


def _sent_by_system(socket: int, file_slice: FileSlice, count: int) -> int:
    """Bytes sent by sendfile(2); 0 if that is impossible (no file, a short file, a disk error, a lost connection). Reading and writing the
    part then raises the actual error.
    """
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
    """The socket's descriptor; NO_DESCRIPTOR with TLS."""
    if transport.get_extra_info("sslcontext") is not None:
        return NO_DESCRIPTOR
    found = transport.get_extra_info("socket")
    return NO_DESCRIPTOR if found is None else int(found.fileno())
