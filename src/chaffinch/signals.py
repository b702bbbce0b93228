"""Temporary signal handlers, and a block that defers signals.

Internal; may change without notice.
"""

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
    """Within the block, each of these signals has the handler that `by` returns for its previous one.

    Signals that are ignored or have the default action stay so. A handler set inside the block, as PySpark sets its own for Ctrl-C, is
    kept. On threads other than the main thread nothing changes: no handler is ever called there.
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
    """Defer signal handlers to the end of the block, for code that must not be interrupted halfway.

    A second signal of the same number is not deferred.
    """
    waiting: dict[int, Handler] = {}
    is_over = False

    def deferring(handler: Handler) -> Handler:
        def note(number: int, frame: FrameType | None) -> None:
            # Also after the block: if a handler raises before all are restored, this one stays in place of the others.
            if is_over or waiting.pop(number, None) is not None:
                handler(number, None)
            else:
                waiting[number] = handler

        return note

    def call() -> None:
        """Call the deferred handlers. The signals are not raised again, because an event loop has seen them through its wake-up
        descriptor.
        """
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
