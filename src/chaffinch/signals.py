"""Signal handlers for a while: what sets them and puts those of before back, and the block that signals wait for."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def handled(numbers: Iterable[int], by: Callable[[Handler], Handler]) -> Iterator[None]:
    """Within the block each of these signals has the handler that `by` makes of the one that it had.

    Signals that are ignored, or end the process by themselves, stay so; and a handler that was set meanwhile, as PySpark sets its own for
    Ctrl-C, is left. Elsewhere than in the main thread nothing changes: no handler is ever called there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    changed: list[tuple[int, Handler, Handler]] = []
    try:
        for number in numbers:
            if callable(before := signal.getsignal(number)):
                changed.append((number, before, by(before)))
                signal.signal(number, changed[-1][-1])
        yield
    finally:
        for number, before, handler in changed:
            if signal.getsignal(number) is handler:
                signal.signal(number, before)


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Signal handlers are called when the block is over, because what they would interrupt cannot be left halfway. A signal that comes a
    second time is not kept waiting."""
    waiting: dict[int, Handler] = {}
    is_over = False

    def deferring(handler: Handler) -> Handler:
        def note(number: int, frame: FrameType | None) -> None:
            # Once it is over, too: a handler that raises before all of them are back leaves this in the place of the others.
            if is_over or waiting.pop(number, None) is not None:
                handler(number, None)
            else:
                waiting[number] = handler

        return note

    def call() -> None:
        """Not by sending them anew: an event loop has heard already, through the descriptor that wakes it up."""
        if waiting:
            number = next(iter(waiting))
            try:
                waiting.pop(number)(number, None)
            finally:
                call()

    try:
        with handled(range(1, signal.NSIG), deferring):
            try:
                yield
            finally:
                is_over = True
    finally:
        call()
