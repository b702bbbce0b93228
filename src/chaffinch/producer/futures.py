"""Futures that cost little: a record's future is a `concurrent.futures.Future` whose lock is made only if somebody waits.

Making the standard future costs more than the rest of `send`, because it makes a condition. Most futures are never waited for, or only
after they are done. So the parts of the standard class that need a lock are made on demand, and completing a future that nobody has
touched is a few assignments under one lock shared by all (held for a moment only).

`RecordFuture` follows the standard class's protocol (`_state`, `_condition`, `_waiters`, `_done_callbacks`), so `result(timeout)`,
`add_done_callback`, `concurrent.futures.wait`, `as_completed` and `asyncio.wrap_future` work.
"""

from __future__ import annotations

import concurrent.futures
import logging
import threading
from collections.abc import Generator, Iterable
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
    record: Any = None
    """The record that was handed over, kept for an exception handler if there is one."""

    def __init__(self) -> None:
        pass  # Deliberately not the standard constructor: see above.

    def __getattr__(self, name: str) -> Any:
        if name not in _PARTS:
            raise AttributeError(name)
        with _LOCK:
            for part, make in _PARTS.items():
                self.__dict__.setdefault(part, make())
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
            return self._result  # type: ignore[return-value]
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, or None for success; waits up to `timeout` seconds."""
        # The result is written before the state, so whoever sees the state sees the result.
        return self._exception if self._state == _base.FINISHED else super().exception(timeout)

    def complete(self, result: T) -> None:
        """Done, with a result. Only once, and only by the producer."""
        with _LOCK:
            if "_condition" not in self.__dict__:
                self._result = result
                self._state = _base.FINISHED
                return
        self.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Done, with an error. Only once, and only by the producer."""
        with _LOCK:
            if "_condition" not in self.__dict__:
                self._exception = error
                self._state = _base.FINISHED
                return
        self.set_exception(error)

    def _invoke_callbacks(self) -> None:
        # The standard class lets SystemExit and its like through: they would end the sender thread, and others' outcomes with it.
        for callback in self._done_callbacks:
            try:
                callback(self)
            except BaseException:
                log.exception("a callback of a future raised")


_PARTS: Final[dict[str, Any]] = {"_waiters": list, "_done_callbacks": list, "_condition": threading.Condition}


def complete_all(futures: Iterable[RecordFuture[T]], results: Iterable[T]) -> None:
    """Complete many futures in order, the shared lock taken once for those that nobody has touched."""
    touched: list[tuple[RecordFuture[T], T]] = []
    with _LOCK:
        for future, result in zip(futures, results, strict=True):
            if "_condition" in future.__dict__:
                touched.append((future, result))
            else:
                future._result = result
                future._state = _base.FINISHED
    for future, result in touched:
        future.set_result(result)
