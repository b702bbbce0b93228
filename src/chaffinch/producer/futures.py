"""Futures that cost little: a record's future is a `concurrent.futures.Future` whose lock is made only if somebody waits.

Making the standard future costs more than the rest of `send`, because it makes a condition. Most futures are never waited for, or only
after they are done. So the parts of the standard class that need a lock are made on demand, and completing a future that nobody has
touched is a few assignments under one lock shared by all (held for a moment only).

The callback of `send` is an attribute rather than one of the standard class's callbacks, for the same reason.

`RecordFuture` follows the standard class's protocol (`_state`, `_condition`, `_waiters`, `_done_callbacks`), so `result(timeout)`,
`add_done_callback`, `concurrent.futures.wait`, `as_completed` and `asyncio.wrap_future` work.
"""

from __future__ import annotations

import concurrent.futures
import logging
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import _base
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

log = logging.getLogger("chaffinch.producer")

# Guards the moment in which a future's parts come into being against the moment in which it is completed.
_LOCK: Final = threading.Lock()


class RecordFuture(concurrent.futures.Future[T], Generic[T]):
    """The outcome of one `send`. It cannot be cancelled: what was handed over may be on its way."""

    # What the standard constructor sets per instance, as defaults of the class; `_condition`, `_waiters` and `_done_callbacks` are
    # missing until __getattr__ makes them.
    _state: str = _base.PENDING
    _result: T | None = None
    _exception: BaseException | None = None
    _result_of: Callable[[int], T] | None = None
    _index = 0
    """What makes the result once somebody asks for it: see `complete_all`."""
    _is_watched = False
    """Somebody has asked for a part that needs a lock."""
    record: Any = None
    """The record that was handed over, kept for an exception handler if there is one."""

    on_delivery: Callable[[RecordFuture[T]], None] | None = None
    """Called before any other callback once the outcome is there; it must not raise."""

    # Deliberately not the standard constructor: see above. That of `object` is no call of Python's.
    __init__ = object.__init__

    def __getattr__(self, name: str) -> Any:
        if name not in _PARTS:
            raise AttributeError(name)
        with _LOCK:
            for part, make in _PARTS.items():
                self.__dict__.setdefault(part, make())
            self._is_watched = True
        return self.__dict__[name]

    def __await__(self) -> Generator[Any, None, T]:
        """`await future` in any running loop of asyncio."""
        import asyncio  # Loaded already by whoever awaits.

        return asyncio.wrap_future(self).__await__()

    def cancel(self) -> bool:
        """Nothing: a record cannot be taken back."""
        return False

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._state == _base.FINISHED

    def result(self, timeout: float | None = None) -> T:
        """The metadata, or the error raised; waits up to `timeout` seconds. Asking a future that is done takes no lock."""
        if self._state == _base.FINISHED and self._exception is None:
            result_of = self._result_of
            if result_of is None:
                return self._result  # type: ignore[return-value]
            # Two threads may both make it; it is the same.
            self._result = result = result_of(self._index)
            self._result_of = None
            return result
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, or None for success; waits up to `timeout` seconds."""
        # The result is written before the state, so whoever sees the state sees the result.
        return self._exception if self._state == _base.FINISHED else super().exception(timeout)

    def complete(self, result: T) -> None:
        """Done, with a result. Only once, and only by the producer."""
        with _LOCK:
            if not self._is_watched:
                self._result = result
                self._state = _base.FINISHED
        self._settled(result, None)

    def fail(self, error: BaseException) -> None:
        """Done, with an error. Only once, and only by the producer."""
        with _LOCK:
            if not self._is_watched:
                self._exception = error
                self._state = _base.FINISHED
        self._settled(None, error)

    def _settled(self, result: Any, error: BaseException | None) -> None:
        """Tell those who wait; without anybody the state is written already."""
        if self._state != _base.FINISHED:
            if error is None:
                self.set_result(result)
            else:
                self.set_exception(error)
        if self.on_delivery is not None:
            self.on_delivery(self)

    def _invoke_callbacks(self) -> None:
        # The standard class lets SystemExit and its like through: they would end the sender thread, and others' outcomes with it.
        for callback in self._done_callbacks:
            try:
                callback(self)
            except BaseException:
                log.exception("a callback of a future raised")


_PARTS: Final[dict[str, Any]] = {"_waiters": list, "_done_callbacks": list, "_condition": threading.Condition}


def complete_all(futures: Sequence[RecordFuture[T]], result_of: Callable[[int], T]) -> None:
    """Complete many futures in order, the shared lock taken once for those that nobody has touched.

    `result_of` gives the result of the future at an index; it is made when somebody asks: of most nobody does, and each would be one
    more object for Python's collector to go round.
    """
    told: list[int] = []
    with _LOCK:
        for index, future in enumerate(futures):
            if not future._is_watched:
                future._result_of = result_of
                future._index = index
                future._state = _base.FINISHED
                if future.on_delivery is None:
                    continue
            told.append(index)
    for index in told:
        futures[index]._settled(result_of(index), None)
