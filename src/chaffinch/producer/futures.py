"""RecordFuture: a cheap `concurrent.futures.Future` for the outcome of one `send`. Its lock is created only if a thread waits.

Creating the standard future costs more than the rest of `send`, because it creates a condition. Most futures are never waited for, or only
after they are done. So the parts of the standard class that need a lock are created on demand.

- The futures of a batch share one outcome (`BatchFutures.outcome`), and are done when it is set.
- Only watched futures are completed one by one: a thread waits for them, or uses a part of the standard class that needs a lock.
- `result` and `exception` wait on a bare lock. Any other use of such a part makes the future watched.
- A future that no thread has touched is completed by a few assignments under one shared lock, which is held only briefly.
- The callbacks of `send` belong to the batch rather than to each future, for the same reason.

`RecordFuture` follows the standard class's protocol (`_state`, `_condition`, `_waiters`, `_done_callbacks`), so `result(timeout)`,
`add_done_callback`, `concurrent.futures.wait`, `as_completed` and `asyncio.wrap_future` work.
"""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import _base
from time import monotonic
from typing import Any, ClassVar, Final, Generic, NoReturn, Protocol, TypeVar

from chaffinch.client.condition import Condition
from chaffinch.errors import IllegalStateException
from chaffinch.producer.core.batches.batch import BatchFutures, Rows
from chaffinch.producer.records import RecordMetadata
from chaffinch.public_names import exported_from

T = TypeVar("T")


class FutureCompleter(Protocol):
    """The thread that completes futures, as the futures see it."""

    is_in_other_process: bool

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is that thread."""

    def read_response(self, futures: BatchFutures, timeout: float | None) -> None:
        """A caller is about to wait for one of these futures: it may read the response itself, within `timeout` seconds."""

    def expedite(self, futures: BatchFutures) -> None:
        """A thread checks whether one of these futures is done, or adds a callback."""

    @property
    def holds_lock(self) -> bool:
        """Whether the caller's thread holds a lock that the completing thread needs, because it has interrupted another call."""


log = logging.getLogger("chaffinch.producer")

Callback = Callable[[RecordMetadata | None, BaseException | None], object]
NO_CALLBACKS: Final[Mapping[int, Callback]] = {}

# Guards the creation of a future's parts against its completion. A signal handler that interrupts either may take the lock again: the
# interrupted call then leaves the parts that the handler has created, and no future is completed in the meantime.
SHARED_LOCK: Final[Any] = threading.RLock()  # Typed Any for `_is_owned`, which `threading.Condition` uses, too.


@exported_from("chaffinch")
class RecordFuture(concurrent.futures.Future[T], Generic[T]):
    """The outcome of one `send`. It cannot be cancelled, because the record may have been sent already."""

    # Set by `send`. Slots are cheap to set; for other attributes Python may have to create a dictionary for each future.
    __slots__ = ("batch", "index")
    batch: BatchFutures | None
    """The futures that share its outcome, unless it has its own outcome or is watched. It is the one at `index`."""
    index: int

    # Attributes of the standard constructor, as class defaults; `_condition`, `_own_waiters` and `_done_callbacks` are missing until
    # __getattr__ creates them.
    _completer: ClassVar[weakref.ref[FutureCompleter] | None] = None
    """The thread that completes the future; None once it is gone.

    A class attribute (see `future_class_of`), because an instance attribute would slow down `send`.
    """
    _own_state: str = _base.PENDING
    _result: T | None = None
    _exception: Any = None
    """The error; or a function of `index` that makes it on access: see `fail_with`."""
    _result_of: Callable[[int], T] | None = None
    """A function of `index` that makes the result on access: see `complete_all`."""
    _is_watched = False
    """A part that needs a lock has been created."""
    _own_locks: list[threading.Lock] | None = None
    """Locks of threads that wait without watching; each is released when the outcome is known."""
    record: Any = None
    """The record as the caller handed it over, if there is an exception handler."""

    # Deliberately not the standard constructor: see above. That of `object` is not a Python call.
    __init__ = object.__init__

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        # `concurrent.futures.wait` and `as_completed` read this before they wait; their timeout is not known here.
        self._check_wait(None)
        waiters: list[Any] = self._own_waiters
        return waiters

    @property
    def _state(self) -> str:
        batch = self.batch
        return self._own_state if batch is None or batch.outcome is None or self._is_watched else _base.FINISHED

    @_state.setter
    def _state(self, state: str) -> None:
        self._own_state = state

    def __getattr__(self, name: str) -> Any:
        if name in _UNSET:
            return _UNSET[name]
        if name not in _PARTS:
            raise AttributeError(name)
        with SHARED_LOCK:
            # The parts last: after an interruption the next access creates the missing ones.
            if self.batch is not None and not self._is_watched:
                if self.batch.outcome is None:
                    self.batch.watched.append(self.index)
                else:
                    self._result_of, self._own_state = self.batch.outcome, _base.FINISHED
            self._is_watched = True
            for part, make in _PARTS.items():
                self.__dict__.setdefault(part, make())
        self._expedite()
        return self.__dict__[name]

    def __repr__(self) -> str:
        # The standard class creates a lock here, and does not show the outcome.
        if self._state != _base.FINISHED:
            return f"<{type(self).__name__} pending>"
        error = self.exception()
        return f"<{type(self).__name__} done: {self.result()!r}>" if error is None else f"<{type(self).__name__} failed: {error!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled, it belongs to its process: pass the value of its result() instead")

    def __await__(self) -> Generator[Any, None, T]:
        """`await future` in any running asyncio loop."""
        import asyncio  # Loaded already, since the caller awaits.

        self._check_wait(None)
        return asyncio.wrap_future(self).__await__()

    def cancel(self) -> bool:
        """Not possible, because the record may have been sent: always returns False."""
        return False

    def done(self) -> bool:
        """Whether the outcome is known."""
        is_done = self._state == _base.FINISHED
        if not is_done:
            self._expedite()
        return is_done

    def _expedite(self) -> None:
        """A thread checks the future without waiting: the sender thread has to read the response."""
        batch, completer = self.batch, None if self._completer is None else self._completer()
        if batch is not None and completer is not None:
            completer.expedite(batch)

    def result(self, timeout: float | None = None) -> T:
        """Wait for the outcome, and return the record's metadata. Takes no lock if the future is done.

        Args:
            timeout: seconds to wait; None for no limit, 0 for no wait.

        Returns:
            The RecordMetadata of `send`, or the SendTableResult of `send_table`.

        Raises:
            KafkaException: the record failed; each record has its own exception.
            TimeoutError: there is no outcome after `timeout` seconds.
            IllegalStateException: the wait would never end: in a callback of the same producer, in a signal handler that has interrupted
                a call of it, or in a forked child.
        """
        if self._state != _base.FINISHED:
            timeout = self._wait(timeout)
        if self._state != _base.FINISHED or self._exception is not None:
            error = self._error(timeout)
            if error is not None:
                try:
                    raise error
                finally:
                    self = error = None  # type: ignore[assignment]  # Its traceback holds this frame, which would hold it.
        batch = self.batch
        result_of = self._result_of if self._own_state == _base.FINISHED or batch is None else batch.outcome
        if result_of is None:
            return self._result  # type: ignore[return-value]
        # Two threads may both make the result; both are equal.
        result = result_of(self.index)
        if result_of is self._result_of:
            self._result, self._result_of = result, None
        return result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcome, and return the error.

        Args:
            timeout: seconds to wait; None for no limit, 0 for no wait.

        Returns:
            The record's KafkaException; None if the record was written.

        Raises:
            TimeoutError: there is no outcome after `timeout` seconds.
            IllegalStateException: as for `result`.
        """
        batch = self.batch
        if batch is not None and batch.outcome is not None and not batch.completed_count:
            return None  # No record of the batch has failed.
        if self._state != _base.FINISHED:
            timeout = self._wait(timeout)
        return self._error(timeout)

    def _error(self, timeout: float | None) -> BaseException | None:
        """The error, made if necessary. A watched future waits in the standard way."""
        if self._state != _base.FINISHED:
            super().exception(timeout)
        # The result is written before the state, so a thread that sees the state sees the result.
        error: BaseException | None = self._exception
        if error is not None and not isinstance(error, BaseException):
            # Two threads may both make the error; both are equal.
            error = self._exception = error(self.index)
        return error

    def _get_snapshot(self) -> tuple[bool, bool, T | None, BaseException | None]:
        """Done, cancelled, result, error. Newer asyncio calls this (`_copy_future_state`); the standard class reads the parts unchanged,
        but here result and error may still have to be made.
        """
        if self._state != _base.FINISHED:
            return False, False, None, None
        error = self.exception(0)
        return True, False, self.result(0) if error is None else None, error

    def _wait(self, timeout: float | None) -> float | None:
        """Wait until the outcome is known, unless the future is watched: then the caller waits in the standard way.

        Returns the rest of the timeout for that wait.
        """
        self._check_wait(timeout)
        if timeout is not None and timeout <= 0:
            return timeout
        began = monotonic()
        if self.batch is not None and self._completer is not None and (completer := self._completer()) is not None:
            completer.read_response(self.batch, timeout)
            if self._state == _base.FINISHED:
                return timeout
            self._check_process()  # A signal handler may have forked in the meantime.
            if timeout is not None:
                timeout = max(0.0, timeout - (monotonic() - began))
                began = monotonic()
        lock = threading.Lock()
        lock.acquire()
        with SHARED_LOCK:
            if self._is_watched or self._state == _base.FINISHED:
                return timeout
            if self._own_locks is None:
                if self.batch is not None:
                    self.batch.watched.append(self.index)
                self._own_locks = []  # Set last, so that an interrupted call can be repeated.
            self._own_locks.append(lock)
        if lock.acquire(timeout=-1 if timeout is None else timeout):
            # Its batch has an outcome. A future that is watched by now gets it when the watched futures are completed.
            return None if timeout is None else max(0.0, timeout - (monotonic() - began))
        with SHARED_LOCK:
            self._own_locks = [other for other in self._own_locks if other is not lock]
        return 0

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[T]], object]) -> None:
        """Call a function when the outcome is known, at once if it is known already.

        Args:
            fn: called with the future, on the producer's thread, or on this thread if the outcome is known. Its exceptions are logged.

        Raises:
            IllegalStateException: the future belongs to the parent process of this forked child.
        """
        if getattr(fn, "__module__", None) == "asyncio.futures" and _runs_a_loop():
            # Called by `asyncio.wrap_future`: the loop of this thread will wait for the future.
            self._check_wait(None)
        self._check_process()
        super().add_done_callback(fn)

    def _check_process(self) -> FutureCompleter | None:
        """Raise IllegalStateException in a forked child, where the future is never completed. Returns the completing thread, if any."""
        completer = None if self._completer is None else self._completer()
        if completer is None or self._state == _base.FINISHED:
            return None
        if completer.is_in_other_process:
            raise IllegalStateException("the outcome of a record that was sent before the fork is known only in the parent process")
        return completer

    def _check_wait(self, timeout: float | None) -> None:
        """Raise IllegalStateException if the wait would never end: on the completing thread, on one that blocks it, in a forked child."""
        completer = self._check_process()
        if completer is None or (timeout is not None and timeout <= 0):
            return
        if completer.is_own_thread:
            raise IllegalStateException(
                "waiting for a future within a callback of the same producer would wait for itself: use on_delivery or add_done_callback"
            )
        if completer.holds_lock:
            raise IllegalStateException(
                "waiting for a future in a signal handler would wait for the call of the producer that it interrupts"
            )

    def complete(self, result: T) -> None:
        """Complete with a result. Called once, and only by the producer."""
        with SHARED_LOCK:
            if not self._is_watched:
                # In this order: its batch may be done already, and a thread that has seen that reads the result without the lock.
                self._result, self._own_state, self.batch = result, _base.FINISHED, None
        self._notify_waiters(result, None)

    def fail(self, error: BaseException) -> None:
        """Complete with an error. Called once, and only by the producer."""
        with SHARED_LOCK:
            if not self._is_watched:
                self._exception, self._own_state, self.batch = error, _base.FINISHED, None
        self._notify_waiters(None, error)

    def fail_with(self, error_of: Callable[[int], BaseException], index: int) -> None:
        """Complete with the error of an index, which is made on access: few errors of a failed batch are ever read."""
        with SHARED_LOCK:
            if not self._is_watched:
                self._exception, self.index, self._own_state, self.batch = error_of, index, _base.FINISHED, None
        self._notify_waiters(None, error_of(index) if self._is_watched else None)

    def _notify_waiters(self, result: Any, error: BaseException | None) -> None:
        """Notify waiting threads and callbacks. The state of an unwatched future is set already."""
        for lock in self._own_locks or ():
            lock.release()
        if self._state != _base.FINISHED:
            if error is None:
                self.set_result(result)
            else:
                self.set_exception(error)

    def _invoke_callbacks(self) -> None:
        # The standard class propagates SystemExit and the like, which would end the sender thread before the outcomes of other records.
        for callback in self._done_callbacks:
            try:
                callback(self)
            except BaseException:
                log.exception("a callback of a future raised")


def _runs_a_loop() -> bool:
    """Whether an asyncio loop runs in this thread."""
    import asyncio  # Loaded already, since asyncio is the caller.

    try:
        return bool(asyncio.get_running_loop())
    except RuntimeError:
        return False


def future_class_of(completer: FutureCompleter) -> type[RecordFuture[Any]]:
    """The class of one producer's futures."""

    class OwnFuture(RecordFuture[T]):
        # Weak, because classes are in reference cycles, and the producer must be freed without the garbage collector.
        _completer = weakref.ref(completer)

    OwnFuture.__name__ = OwnFuture.__qualname__ = RecordFuture.__name__
    OwnFuture.__module__ = RecordFuture.__module__
    own: type[RecordFuture[Any]] = OwnFuture
    return own


_UNSET: Final[dict[str, Any]] = {"batch": None, "index": 0}
_PARTS: Final[dict[str, Any]] = {"_own_waiters": list, "_done_callbacks": list, "_condition": Condition}


def call(callback: Callback, result: Any, error: BaseException | None, logged: type[BaseException] = BaseException) -> None:
    """Call `on_delivery(result, error)`, and log an exception of class `logged`, since there is no caller to raise it to.

    On the sender thread that is every exception: SystemExit and the like would end it, and the outcomes of other records with it. On the
    thread of `send` SystemExit, KeyboardInterrupt and the like end the call: they may come from a signal handler during the callback.
    """
    try:
        callback(result, error)
    except logged:
        log.exception("a delivery callback raised")


def complete_all(
    futures: Sequence[RecordFuture[T]], result_of: Callable[[int], T], callbacks: Mapping[int, Callback] = NO_CALLBACKS
) -> None:
    """Complete many futures in order. The shared lock is taken once for those that no thread has touched. `callbacks`: by index.

    `result_of` makes the result of the future at an index, on access: most results are never read, and each would be one more object for
    the garbage collector.
    """
    watched_indices: list[int] = []
    with SHARED_LOCK:
        for index, future in enumerate(futures):
            if future._is_watched or future._own_locks is not None:
                watched_indices.append(index)
            else:
                future._result_of, future.index, future.batch = result_of, index, None
                future._state = _base.FINISHED
    _complete_watched({index: futures[index] for index in watched_indices}, result_of, callbacks)


def complete_batch(futures: BatchFutures, result_of: Callable[[int], T], rows: Rows | None = None) -> None:
    """Complete all futures of a batch: unwatched ones with a single assignment, watched ones in order.

    `rows`: ascending indices of the futures to complete, if all others have failed already; None: all.
    """
    with SHARED_LOCK:
        futures.outcome = result_of
        watched = set(futures.watched)
    if rows is not None:
        watched.intersection_update(rows.tolist())
    watched_futures = {index: futures[index] for index in watched}
    # A reference to one future must not keep the others alive.
    futures.clear()
    callbacks, futures.callbacks = futures.callbacks, {}
    _complete_watched(watched_futures, result_of, callbacks)


def _complete_watched(futures: Mapping[int, RecordFuture[T]], result_of: Callable[[int], T], callbacks: Mapping[int, Callback]) -> None:
    """Complete the watched futures, and run the callbacks, in order."""
    for index in sorted(futures.keys() | callbacks.keys()):
        result = result_of(index)
        if (future := futures.get(index)) is not None:
            future.complete(result)
        if (callback := callbacks.get(index)) is not None:
            call(callback, result, None)
