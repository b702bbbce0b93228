"""Futures that cost little: a record's future is a `concurrent.futures.Future` whose lock is made only if somebody waits.

Making the standard future costs more than the rest of `send`, because it makes a condition. Most futures are never waited for, or only
after they are done. So the parts of the standard class that need a lock are made on demand, and completing a future that nobody has
touched is a few assignments under one lock shared by all (held for a moment only). Mostly not even that: the futures of a batch share
their outcome (`Receipts.outcome`), and are done when that is there; only those that somebody watches, or waits for, are completed one by
one. Who just waits for one (`result`, `exception`) waits on a bare lock; whatever else asks for a part has it watched.

The callbacks of `send` are kept by the batch rather than by each future, for the same reason.

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

T = TypeVar("T")


class FutureCompleter(Protocol):
    """The thread that completes futures, as far as those need to know it."""

    is_in_other_process: bool

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is that thread."""

    def read_response(self, futures: BatchFutures, timeout: float | None) -> None:
        """A caller is about to wait for a future of these: he may fetch the outcome himself, within `timeout` seconds."""

    def expedite(self, futures: BatchFutures) -> None:
        """Somebody looks whether one of these is done, or wants to be told."""

    @property
    def holds_lock(self) -> bool:
        """Whether the caller's thread holds a lock that that thread needs: the caller has interrupted another call."""


log = logging.getLogger("chaffinch.producer")

Callback = Callable[[RecordMetadata | None, BaseException | None], object]
NO_CALLBACKS: Final[Mapping[int, Callback]] = {}

# Guards the moment in which a future's parts come into being against the moment in which it is completed. A signal handler that comes in
# such a moment may take it again: whatever it makes of a future then is left as it is by who was interrupted, and nobody completes any.
SHARED_LOCK: Final[Any] = threading.RLock()  # Of Any for `_is_owned`, which `threading.Condition` asks, too.


class RecordFuture(concurrent.futures.Future[T], Generic[T]):
    """The outcome of one `send`. It cannot be cancelled: what was handed over may be on its way."""

    # What `send` sets. Slots cost the same whatever was set before; of other attributes Python may have to make a dictionary each time.
    __slots__ = ("batch", "index")
    batch: BatchFutures | None
    """What it shares its outcome with, unless it has one of its own, or is watched; it is the one at `index`."""
    index: int

    # What the standard constructor sets per instance, as defaults of the class; `_condition`, `_own_waiters` and `_done_callbacks` are
    # missing until __getattr__ makes them.
    _completer: ClassVar[weakref.ref[FutureCompleter] | None] = None
    """Who will complete it, None once that is gone. Of the class, see `future_class_of`, because one attribute more would be felt in
    `send`."""
    _own_state: str = _base.PENDING
    _result: T | None = None
    _exception: Any = None
    """The error; or what makes it, of `index`, once somebody asks for it: see `fail_with`."""
    _result_of: Callable[[int], T] | None = None
    """Makes the result, of `index`, once somebody asks for it: see `complete_all`."""
    _is_watched = False
    """Somebody has asked for a part that needs a lock."""
    _own_locks: list[threading.Lock] | None = None
    """Of those who wait without watching; each is released when the outcome is there."""
    record: Any = None
    """The record that was handed over, kept for an exception handler if there is one."""

    # Deliberately not the standard constructor: see above. That of `object` is no call of Python's.
    __init__ = object.__init__

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        # `concurrent.futures.wait` and `as_completed` come here before they wait, with a timeout that is not known here.
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
            # The parts last: of whoever is interrupted before the next one makes those that lack.
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
        # That of the standard class makes a lock, and does not say what the outcome is.
        if self._state != _base.FINISHED:
            return f"<{type(self).__name__} pending>"
        error = self.exception()
        return f"<{type(self).__name__} done: {self.result()!r}>" if error is None else f"<{type(self).__name__} failed: {error!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled, it belongs to its process: hand over what its result() gives")

    def __await__(self) -> Generator[Any, None, T]:
        """`await future` in any running loop of asyncio."""
        import asyncio  # Loaded already by whoever awaits.

        self._check_wait(None)
        return asyncio.wrap_future(self).__await__()

    def cancel(self) -> bool:
        """Nothing: a record cannot be taken back."""
        return False

    def done(self) -> bool:
        """Whether the outcome is known."""
        is_done = self._state == _base.FINISHED
        if not is_done:
            self._expedite()
        return is_done

    def _expedite(self) -> None:
        """Somebody looks, and does not wait: then the outcome is not his to fetch."""
        batch, completer = self.batch, None if self._completer is None else self._completer()
        if batch is not None and completer is not None:
            completer.expedite(batch)

    def result(self, timeout: float | None = None) -> T:
        """The metadata, or the error raised; waits up to `timeout` seconds. Asking a future that is done takes no lock."""
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
        # Two threads may both make it; it is the same.
        result = result_of(self.index)
        if result_of is self._result_of:
            self._result, self._result_of = result, None
        return result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, or None for success; waits up to `timeout` seconds."""
        batch = self.batch
        if batch is not None and batch.outcome is not None and not batch.completed_count:
            return None  # None of them failed before.
        if self._state != _base.FINISHED:
            timeout = self._wait(timeout)
        return self._error(timeout)

    def _error(self, timeout: float | None) -> BaseException | None:
        """The error, made if need be; who is watched waits the standard way."""
        if self._state != _base.FINISHED:
            super().exception(timeout)
        # The result is written before the state, so whoever sees the state sees the result.
        error: BaseException | None = self._exception
        if error is not None and not isinstance(error, BaseException):
            # Of two threads each may make it; both say the same.
            error = self._exception = error(self.index)
        return error

    def _get_snapshot(self) -> tuple[bool, bool, T | None, BaseException | None]:
        """Done, cancelled, result, error. A newer asyncio asks this of the standard class (`_copy_future_state`), where it reads the parts
        as they are: here result and error may still have to be made."""
        if self._state != _base.FINISHED:
            return False, False, None, None
        error = self.exception(0)
        return True, False, self.result(0) if error is None else None, error

    def _wait(self, timeout: float | None) -> float | None:
        """Wait until the outcome is there, unless somebody watches: then the standard way is to be gone. So long one may wait there."""
        self._check_wait(timeout)
        if timeout is not None and timeout <= 0:
            return timeout
        began = monotonic()
        if self.batch is not None and self._completer is not None and (completer := self._completer()) is not None:
            completer.read_response(self.batch, timeout)
            if self._state == _base.FINISHED:
                return timeout
            self._check_process()  # A signal handler may have forked meanwhile.
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
                self._own_locks = []  # Not before: who is interrupted in between may come again.
            self._own_locks.append(lock)
        if lock.acquire(timeout=-1 if timeout is None else timeout):
            # Its batch has an outcome; of a future that is watched by now it comes when those who watch are told.
            return None if timeout is None else max(0.0, timeout - (monotonic() - began))
        with SHARED_LOCK:
            self._own_locks = [other for other in self._own_locks if other is not lock]
        return 0

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[T]], object]) -> None:
        """Call `fn(future)` once the outcome is there, at once if it is."""
        if getattr(fn, "__module__", None) == "asyncio.futures" and _runs_a_loop():
            # `asyncio.wrap_future`, and a loop of this very thread will wait for it.
            self._check_wait(None)
        self._check_process()
        super().add_done_callback(fn)

    def _check_process(self) -> FutureCompleter | None:
        """IllegalStateException in a forked child, where a future that is not done will never be. Else who will complete it, if anybody."""
        completer = None if self._completer is None else self._completer()
        if completer is None or self._state == _base.FINISHED:
            return None
        if completer.is_in_other_process:
            raise IllegalStateException("the outcome of what was sent before the fork is known in the parent process alone")
        return completer

    def _check_wait(self, timeout: float | None) -> None:
        """IllegalStateException for who would wait for ever: the thread that completes the future, who holds it up, or a forked child."""
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
        """Done, with a result. Only once, and only by the producer."""
        with SHARED_LOCK:
            if not self._is_watched:
                # In this order: its batch may be done already, and who was told so asks again without the lock.
                self._result, self._own_state, self.batch = result, _base.FINISHED, None
        self._notify_waiters(result, None)

    def fail(self, error: BaseException) -> None:
        """Done, with an error. Only once, and only by the producer."""
        with SHARED_LOCK:
            if not self._is_watched:
                self._exception, self._own_state, self.batch = error, _base.FINISHED, None
        self._notify_waiters(None, error)

    def fail_with(self, error_of: Callable[[int], BaseException], index: int) -> None:
        """The same, with the error of an index, made when somebody asks for it: of a whole batch that failed few are."""
        with SHARED_LOCK:
            if not self._is_watched:
                self._exception, self.index, self._own_state, self.batch = error_of, index, _base.FINISHED, None
        self._notify_waiters(None, error_of(index) if self._is_watched else None)

    def _notify_waiters(self, result: Any, error: BaseException | None) -> None:
        """Tell those who wait and watch; without anybody who watches the state is written already."""
        for lock in self._own_locks or ():
            lock.release()
        if self._state != _base.FINISHED:
            if error is None:
                self.set_result(result)
            else:
                self.set_exception(error)

    def _invoke_callbacks(self) -> None:
        # The standard class lets SystemExit and its like through: they would end the sender thread, and others' outcomes with it.
        for callback in self._done_callbacks:
            try:
                callback(self)
            except BaseException:
                log.exception("a callback of a future raised")


def _runs_a_loop() -> bool:
    """Whether a loop of asyncio runs in this thread."""
    import asyncio  # Loaded already, or it would not have asked.

    try:
        return bool(asyncio.get_running_loop())
    except RuntimeError:
        return False


def future_class_of(completer: FutureCompleter) -> type[RecordFuture[Any]]:
    """The class of one producer's futures."""

    class OwnFuture(RecordFuture[T]):
        # Weak: the producer's end must not wait for the collector, and classes are in cycles.
        _completer = weakref.ref(completer)

    OwnFuture.__name__ = OwnFuture.__qualname__ = RecordFuture.__name__
    own: type[RecordFuture[Any]] = OwnFuture
    return own


_UNSET: Final[dict[str, Any]] = {"batch": None, "index": 0}
_PARTS: Final[dict[str, Any]] = {"_own_waiters": list, "_done_callbacks": list, "_condition": Condition}


def call(callback: Callback, result: Any, error: BaseException | None, logged: type[BaseException] = BaseException) -> None:
    """Call `on_delivery(result, error)`; what it raises of the class `logged` is logged, because nobody else is there to hear of it.

    In the sender thread that is everything: SystemExit and its like would end it, and others' outcomes with it. In the thread of who
    called `send` they end the call, as Ctrl-C and what signal handlers raise do: those may come while the callback runs."""
    try:
        callback(result, error)
    except logged:
        log.exception("a delivery callback raised")


def complete_all(
    futures: Sequence[RecordFuture[T]], result_of: Callable[[int], T], callbacks: Mapping[int, Callback] = NO_CALLBACKS
) -> None:
    """Complete many futures in order, the shared lock taken once for those that nobody has touched. `callbacks`: by index.

    `result_of` gives the result of the future at an index; it is made when somebody asks: of most nobody does, and each would be one
    more object for Python's collector to go round.
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
    """Complete all futures of a batch at once: one assignment for those that nobody watches, in order for the others.

    `rows`: the indices of those that are completed, ascending, where all the others have failed already; None: all.
    """
    with SHARED_LOCK:
        futures.outcome = result_of
        watched = set(futures.watched)
    if rows is not None:
        watched.intersection_update(rows.tolist())
    watched_futures = {index: futures[index] for index in watched}
    # Who keeps one future does not keep the others.
    futures.clear()
    callbacks, futures.callbacks = futures.callbacks, {}
    _complete_watched(watched_futures, result_of, callbacks)


def _complete_watched(futures: Mapping[int, RecordFuture[T]], result_of: Callable[[int], T], callbacks: Mapping[int, Callback]) -> None:
    """Complete the futures that somebody watches, and call those who wanted it, in order."""
    for index in sorted(futures.keys() | callbacks.keys()):
        result = result_of(index)
        if (future := futures.get(index)) is not None:
            future.complete(result)
        if (callback := callbacks.get(index)) is not None:
            call(callback, result, None)
