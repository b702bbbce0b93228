"""Ctrl-C while Java is at work: noted, and acted upon when that is over."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def noted() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed, which raises nothing meanwhile.

    PySpark's own handler calls Java in the middle of another call to it, and Py4J prints the traceback of whatever a call is interrupted
    by; and a Java that is interrupted while it starts stays behind. Elsewhere than in the main thread nothing changes.
    """
    times: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before in (None, signal.SIG_IGN):
        yield lambda: False
        return

    def note(number: int, frame: object) -> None:
        times.append(number)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(times)
    finally:
        if signal.getsignal(signal.SIGINT) is note:  # A session that began meanwhile has set its own.
            signal.signal(signal.SIGINT, before)
