"""Interruptible standard input: Ctrl-C and SIGTERM take effect at any moment.

Python checks for signals before a read and when a read is interrupted. A signal between the two does not interrupt the read: its handler
would run with the next input, possibly never. Polling the input together with Python's wakeup descriptor (`signal.set_wakeup_fd`) closes
this gap.
"""

from __future__ import annotations

import io
import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Final

_WAKEUP_BYTES: Final = 4096


class InterruptibleInput(io.RawIOBase):
    """Raw input from a pipe or terminal, `source`. `wakeup_reader` becomes readable on a signal. The caller owns both descriptors."""

    def __init__(self, source: int, wakeup_reader: int) -> None:
        self._source = source
        self._wakeup_reader = wakeup_reader
        self._poll = select.poll()
        self._poll.register(source, select.POLLIN)
        self._poll.register(wakeup_reader, select.POLLIN)

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._source

    def readinto(self, buffer: Any) -> int:
        while True:
            ready = {descriptor for descriptor, _ in self._poll.poll()}  # A signal handler that raises, raises here.
            if self._wakeup_reader in ready:
                os.read(self._wakeup_reader, _WAKEUP_BYTES)
            if self._source in ready:
                return os.readv(self._source, [buffer])


@contextmanager
def standard_input() -> Iterator[IO[bytes]]:
    """Standard input as bytes. A regular file is not wrapped, since it never blocks; nor is any input outside of the main thread."""
    plain = sys.stdin.buffer
    if threading.current_thread() is not threading.main_thread() or not can_block(plain):
        yield plain
        return
    wakeup_reader, wakeup_writer = os.pipe()
    try:
        os.set_blocking(wakeup_reader, False)
        os.set_blocking(wakeup_writer, False)
        before = signal.set_wakeup_fd(wakeup_writer, warn_on_full_buffer=False)
        try:
            yield io.BufferedReader(InterruptibleInput(plain.fileno(), wakeup_reader))
        finally:
            signal.set_wakeup_fd(before)
    finally:
        os.close(wakeup_reader)
        os.close(wakeup_writer)


def can_block(file: IO[bytes]) -> bool:
    """Whether a read or write may block on another process: true for everything but regular files."""
    try:
        return not stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except (OSError, io.UnsupportedOperation):  # It has no descriptor.
        return False
