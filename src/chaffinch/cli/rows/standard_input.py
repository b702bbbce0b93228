"""Standard input, read so that Ctrl-C and SIGTERM are heard at any moment.

Python looks for signals before it reads and when a read is broken off. One that comes between the two breaks nothing off: it would be heard
when the next line comes, which may be never. A wait for the input and for Python's own note of a signal (`signal.set_wakeup_fd`) has no
such gap.
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
    """What comes through a pipe or a terminal, `source`. `wakeup_reader`: readable once a signal has come. Both are descriptors of its
    owner's."""

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
            ready = {descriptor for descriptor, _ in self._poll.poll()}  # Here a handler raises, if it does.
            if self._wakeup_reader in ready:
                os.read(self._wakeup_reader, _WAKEUP_BYTES)
            if self._source in ready:
                return os.readv(self._source, [buffer])


@contextmanager
def standard_input() -> Iterator[IO[bytes]]:
    """Standard input as bytes; files, which never keep anybody waiting, as they are. Signals are noted in the main thread alone."""
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
    """Whether somebody else may keep whoever reads or writes it waiting."""
    try:
        return not stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except (OSError, io.UnsupportedOperation):  # Nothing of the system's lies below it.
        return False
