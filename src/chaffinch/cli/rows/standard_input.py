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

_NOTES_BYTES: Final = 4096


class WatchedInput(io.RawIOBase):
    """What comes through a pipe or a terminal, `source`. `notes`: readable once a signal has come. Both are descriptors of its owner's."""

    def __init__(self, source: int, notes: int) -> None:
        self._source = source
        self._notes = notes
        self._poll = select.poll()
        self._poll.register(source, select.POLLIN)
        self._poll.register(notes, select.POLLIN)

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._source

    def readinto(self, buffer: Any) -> int:
        while True:
            ready = {descriptor for descriptor, _ in self._poll.poll()}  # Here a handler raises, if it does.
            if self._notes in ready:
                os.read(self._notes, _NOTES_BYTES)
            if self._source in ready:
                return os.readv(self._source, [buffer])


@contextmanager
def standard_input() -> Iterator[IO[bytes]]:
    """Standard input as bytes; files, which never keep anybody waiting, as they are. Signals are noted in the main thread alone."""
    plain = sys.stdin.buffer
    if threading.current_thread() is not threading.main_thread() or not keeps_waiting(plain):
        yield plain
        return
    notes, noted = os.pipe()
    try:
        os.set_blocking(notes, False)
        os.set_blocking(noted, False)
        before = signal.set_wakeup_fd(noted, warn_on_full_buffer=False)
        try:
            yield io.BufferedReader(WatchedInput(plain.fileno(), notes))
        finally:
            signal.set_wakeup_fd(before)
    finally:
        os.close(notes)
        os.close(noted)


def keeps_waiting(file: IO[bytes]) -> bool:
    """Whether somebody else may keep whoever reads or writes it waiting."""
    try:
        return not stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except (OSError, io.UnsupportedOperation):  # Nothing of the system's lies below it.
        return False
