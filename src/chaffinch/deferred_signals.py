"""Signals that have to wait, because what they would interrupt cannot be left halfway."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Signal handlers are called when the block is over. A signal that comes a second time is not kept waiting.

    Elsewhere than in the main thread nothing changes: no handler is ever called there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: handler for number in range(1, signal.NSIG) if callable(handler := signal.getsignal(number))}
    waiting: list[int] = []
    is_over = False

    def note(number: int, frame: object) -> None:
        # Once it is over, too: a handler that raises before all of them are back leaves this in the place of the others.
        if is_over:
            handlers[number](number, None)
        elif number in waiting:
            waiting.remove(number)
            handlers[number](number, None)
        else:
            waiting.append(number)

    def call() -> None:
        """Not by sending them anew: an event loop has heard already, through the descriptor that wakes it up."""
        if waiting:
            number = waiting.pop(0)
            try:
                handlers[number](number, None)
            finally:
                call()

    try:
        for number in handlers:
            signal.signal(number, note)
        yield
    finally:
        is_over = True
        try:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        finally:
            call()
