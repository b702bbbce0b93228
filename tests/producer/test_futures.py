"""RecordFuture with the standard library: wait, as_completed, asyncio and callbacks, before and after completion."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from chaffinch import Producer
from chaffinch.producer import futures as futures_module
from chaffinch.producer.core.batches.batch import BatchFutures
from chaffinch.producer.futures import RecordFuture, complete_all, complete_batch


def test_future_is_a_standard_future_without_its_own_lock() -> None:
    future: RecordFuture[int] = RecordFuture()
    assert isinstance(future, concurrent.futures.Future)
    assert "_condition" not in future.__dict__
    assert not future.__dict__
    future.complete(5)
    assert (future.result(), future.exception(), future.done()) == (5, None, True)
    assert "_condition" not in future.__dict__, "reading a known result creates no lock either"


def test_failed_future_raises_its_error() -> None:
    future: RecordFuture[int] = RecordFuture()
    future.fail(ZeroDivisionError())
    assert isinstance(future.exception(0), ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        future.result()


def test_result_times_out() -> None:
    future: RecordFuture[int] = RecordFuture()
    with pytest.raises(concurrent.futures.TimeoutError):
        future.result(0)
    future.complete(1)
    assert future.result(0) == 1


class RacedFuture(RecordFuture[int]):
    """A future that another thread completes right after it was seen to be pending."""

    complete_it: Any = None

    @property
    def _state(self) -> str:
        seen = super()._state
        complete_it, self.complete_it = self.complete_it, None
        if complete_it is not None:
            complete_it()
        return seen

    @_state.setter
    def _state(self, state: str) -> None:
        self._own_state = state


@pytest.mark.parametrize("reads_twice", [False, True])
@pytest.mark.parametrize("has_batch", [False, True])
def test_result_that_arrives_during_the_call_is_returned(has_batch: bool, reads_twice: bool) -> None:
    future, batch_futures = RacedFuture(), BatchFutures()
    if has_batch:
        batch_futures.append(future)
        future.batch = batch_futures
        future.complete_it = lambda: complete_batch(batch_futures, lambda index: 7 + index)
    else:
        future.complete_it = lambda: complete_all([future], lambda index: 7 + index)
    for _ in range(1 + reads_twice):
        assert future.result(0) == 7


def test_future_cannot_be_cancelled() -> None:
    future: RecordFuture[int] = RecordFuture()
    assert not future.cancel()
    assert not future.cancelled()
    future.complete(1)


def test_callbacks_added_before_and_after_completion_are_called() -> None:
    notified: list[Any] = []
    future: RecordFuture[int] = RecordFuture()
    future.add_done_callback(lambda done: notified.append(("before", done.result())))
    future.complete(1)
    future.add_done_callback(lambda done: notified.append(("after", done.result())))
    assert notified == [("before", 1), ("after", 1)]


def test_wait_and_as_completed() -> None:
    futures: list[RecordFuture[int]] = [RecordFuture() for _ in range(3)]
    threading.Thread(target=lambda: complete_all(futures, lambda index: index)).start()
    awaited: list[Any] = [*futures]
    assert {future.result() for future in concurrent.futures.as_completed(awaited, 10)} == {0, 1, 2}
    assert not concurrent.futures.wait(futures, 10).not_done


def test_future_can_be_awaited_through_asyncio() -> None:
    async def main() -> int:
        future: RecordFuture[int] = RecordFuture()
        threading.Thread(target=lambda: future.complete(7)).start()
        return await asyncio.wrap_future(future)

    assert asyncio.run(main()) == 7


def test_complete_all_completes_watched_and_unwatched_futures() -> None:
    futures: list[RecordFuture[int]] = [RecordFuture() for _ in range(4)]
    notified: list[int] = []
    futures[2].add_done_callback(lambda done: notified.append(done.result()))
    complete_all(futures, lambda index: index)
    assert [future.result(0) for future in futures] == [0, 1, 2, 3]
    assert notified == [2]


def batch_of(count: int) -> tuple[list[RecordFuture[int]], BatchFutures]:
    """Futures of one batch, and the batch."""
    futures: list[RecordFuture[int]] = [RecordFuture() for _ in range(count)]
    batch_futures = BatchFutures()
    batch_futures.extend(futures)
    for index, future in enumerate(futures):
        future.batch, future.index = batch_futures, index
    return futures, batch_futures


def test_batch_completes_at_once_with_watched_futures() -> None:
    futures, batch_futures = batch_of(5)
    notified: list[int] = []
    futures[3].add_done_callback(lambda done: notified.append(done.result()))
    futures[1].add_done_callback(lambda done: notified.append(done.result()))
    batch_futures.callbacks = {4: lambda result, error: notified.append(result), 3: lambda result, error: notified.append(-result)}
    assert not any(future.done() for future in futures)
    complete_batch(batch_futures, lambda index: 10 + index)
    assert notified == [11, 13, -13, 14], "in the order of the batch"
    assert [future.result(0) for future in futures] == [10, 11, 12, 13, 14]
    assert [future.exception() for future in futures] == [None] * 5
    futures[0].add_done_callback(lambda done: notified.append(done.result()))
    assert notified[-1] == 10, "a late callback is called at once"
    assert not concurrent.futures.wait(futures, 0).not_done
    assert not batch_futures, "a future that is still referenced does not keep the others alive"


def test_innocents_of_a_batch_complete_at_once() -> None:
    """Futures that failed before stay failed, watched or not, and are not completed twice."""
    futures, batch_futures = batch_of(6)
    notified: list[object] = []
    for index in (1, 2, 3):
        futures[index].add_done_callback(lambda done: notified.append(done.exception() or done.result()))
    for index in (0, 3):
        futures[index].fail(ZeroDivisionError(index))
    batch_futures.completed_count = 2
    complete_batch(batch_futures, lambda index: 10 + index, np.array([1, 2, 4, 5]))
    assert [str(future.exception(0)) for future in futures] == ["0", "None", "None", "3", "None", "None"]
    assert [futures[index].result(0) for index in (1, 2, 4, 5)] == [11, 12, 14, 15]
    assert list(map(str, notified)) == ["3", "11", "12"]


def test_record_can_fail_before_its_batch_completes() -> None:
    futures, _batch_futures = batch_of(3)
    futures[1].fail(ZeroDivisionError())
    assert isinstance(futures[1].exception(0), ZeroDivisionError)
    assert not futures[0].done()
    complete_all([futures[0], futures[2]], lambda index: index)
    assert [futures[0].result(0), futures[2].result(0)] == [0, 1]
    assert isinstance(futures[1].exception(0), ZeroDivisionError)


class OvertakenBatch(BatchFutures):
    """A batch that one thread reads just when another fails the culprit and then completes the other futures."""

    __slots__ = ("_seen", "complete")
    complete: Any

    @property
    def outcome(self) -> Any:
        complete, self.complete = self.complete, lambda: None
        complete()
        return self._seen

    @outcome.setter
    def outcome(self, outcome: Any) -> None:
        self._seen = outcome


@pytest.mark.parametrize("wait_for", [RecordFuture.exception, RecordFuture.result])
def test_culprit_never_gets_the_result_of_an_innocent(wait_for: Any) -> None:
    culprit: RecordFuture[int] = RecordFuture()
    batch_futures = OvertakenBatch()
    batch_futures.extend([culprit, RecordFuture()])
    culprit.batch, culprit.index = batch_futures, 0

    def complete() -> None:
        batch_futures.completed_count = 1
        culprit.fail(ZeroDivisionError())
        complete_batch(batch_futures, lambda index: index, np.array([1]))

    batch_futures.complete = complete
    try:
        found = wait_for(culprit, 0)
    except ZeroDivisionError as error:
        found = error
    assert isinstance(found, ZeroDivisionError)


def test_waiter_racing_its_batch_gets_the_result() -> None:
    for _ in range(200):
        futures, batch_futures = batch_of(2)
        barrier = threading.Barrier(2)
        seen: list[int] = []

        def wait(future: RecordFuture[int] = futures[1], barrier: threading.Barrier = barrier, seen: list[int] = seen) -> None:
            barrier.wait()
            seen.append(future.result(60))

        thread = threading.Thread(target=wait)
        thread.start()
        barrier.wait()
        complete_batch(batch_futures, lambda index: index)
        thread.join(60)
        assert seen == [1]


def test_waiter_racing_its_future_gets_the_result() -> None:
    for _ in range(200):
        future: RecordFuture[int] = RecordFuture()
        barrier = threading.Barrier(2)
        seen: list[int] = []

        def wait(future: RecordFuture[int] = future, barrier: threading.Barrier = barrier, seen: list[int] = seen) -> None:
            barrier.wait()
            seen.append(future.result(60))

        thread = threading.Thread(target=wait)
        thread.start()
        barrier.wait()
        future.complete(1)
        thread.join(60)
        assert seen == [1]


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Semaphore released whenever a thread is about to wait for a future without watching it."""
    semaphore = threading.Semaphore(0)

    class Lock:
        def __init__(self) -> None:
            self._lock = threading.Lock()
            self.release = self._lock.release

        def acquire(self, timeout: float | None = None) -> bool:
            if timeout is None:
                return self._lock.acquire()
            semaphore.release()
            return self._lock.acquire(timeout=timeout)

    monkeypatch.setattr(futures_module, "threading", SimpleNamespace(Lock=Lock))
    return semaphore


COMPLETIONS: dict[str, Callable[[RecordFuture[int]], None]] = {
    "7 alone": lambda future: future.complete(7),
    "7 with its batch": lambda future: complete_batch(future.batch or BatchFutures(), lambda index: 6 + index),
    "7 with some others": lambda future: complete_all((future.batch or BatchFutures())[1:], lambda index: 7 + index),
    "an error": lambda future: future.fail(ZeroDivisionError()),
    "an error from a factory": lambda future: future.fail_with(lambda index: [AssertionError(), ZeroDivisionError()][index], 1),
}


@pytest.mark.parametrize("is_watched_during_wait", [False, True])
@pytest.mark.parametrize("complete", COMPLETIONS)
def test_waiting_threads_are_notified_without_other_parts(
    waiting: threading.Semaphore, complete: str, is_watched_during_wait: bool
) -> None:
    futures, _batch_futures = batch_of(2)
    future = futures[1]
    notified: list[object] = []

    def wait_for(how: Callable[[RecordFuture[int]], object]) -> None:
        try:
            notified.append(how(future))
        except ZeroDivisionError as error:
            notified.append(error)

    waits = [RecordFuture.result, RecordFuture.exception, lambda future: future.result(60), lambda future: future.exception(60)]
    threads = [threading.Thread(target=wait_for, args=(how,)) for how in waits]
    for thread in threads:
        thread.start()
        assert waiting.acquire(timeout=60)
    assert not future._is_watched
    if is_watched_during_wait:
        future.add_done_callback(lambda done: notified.append(done.exception() or done.result()))
    COMPLETIONS[complete](future)
    for thread in threads:
        thread.join(60)
    expected = [repr(ZeroDivisionError())] * 4 if "an error" in complete else ["7", "7", "None", "None"]
    assert sorted(map(repr, notified)) == sorted([*expected, *[expected[0]] * is_watched_during_wait])
    assert future._is_watched is is_watched_during_wait


@pytest.mark.parametrize("wait_for", [RecordFuture.result, RecordFuture.exception])
def test_outcome_before_the_wait_prevents_the_wait(waiting: threading.Semaphore, wait_for: Any) -> None:
    """Nothing would wake up the waiter."""
    future, batch_futures = RacedFuture(), BatchFutures()
    batch_futures.append(future)
    future.batch = batch_futures
    future.complete_it = lambda: complete_batch(batch_futures, lambda index: 7)
    assert wait_for(future, 1) == (7 if wait_for is RecordFuture.result else None)
    assert not waiting.acquire(blocking=False)


class ObservedFuture(RecordFuture[int]):
    """A future that another thread reads whenever it joins or leaves a batch."""

    def __init__(self) -> None:
        self.seen: list[bool] = []
        self._joined: BatchFutures | None = None

    @property
    def batch(self) -> BatchFutures | None:
        return self._joined

    @batch.setter
    def batch(self, batch: BatchFutures | None) -> None:
        self._joined = batch
        self.seen.append(self.done())


def test_repeated_wait_keeps_the_timeout(waiting: threading.Semaphore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first wait is for the batch, the second for the future itself, which has a callback by then."""
    futures, _batch_futures = batch_of(2)
    future, clock, left = futures[1], iter((100.0, 107.0)), list[float | None]()
    monkeypatch.setattr(futures_module, "monotonic", lambda: next(clock))
    monkeypatch.setattr(concurrent.futures.Future, "exception", lambda _self, timeout=None: left.append(timeout))
    monkeypatch.setattr(RecordFuture, "_result_of", lambda _index: None)
    thread = threading.Thread(target=lambda: future.result(60))
    thread.start()
    assert waiting.acquire(timeout=60)
    assert future._own_locks is not None
    future.add_done_callback(lambda _: None)
    future._own_locks[0].release()
    thread.join(60)
    assert left == [53.0]


@pytest.mark.parametrize(("complete", "seen"), [("7 with its batch", [False, True]), ("an error", [False, True])])
def test_done_future_stays_done(waiting: threading.Semaphore, complete: str, seen: list[bool]) -> None:
    """A batch completes at once; completing one of its futures afterwards, because a thread waits for it, does not undo that."""
    future, batch_futures = ObservedFuture(), BatchFutures()
    batch_futures += [RecordFuture(), future]
    future.batch, future.index = batch_futures, 1
    thread = threading.Thread(target=future.exception)
    thread.start()
    assert waiting.acquire(timeout=60)
    COMPLETIONS[complete](future)
    thread.join(60)
    assert future.seen == seen


@pytest.mark.parametrize("wait_for", [RecordFuture.result, RecordFuture.exception])
def test_timed_out_wait_leaves_no_lock_behind(wait_for: Any) -> None:
    futures, batch_futures = batch_of(2)
    for _ in range(3):
        with pytest.raises(concurrent.futures.TimeoutError):
            wait_for(futures[1], 0.001)
    assert not futures[1]._own_locks
    complete_batch(batch_futures, lambda index: index)
    assert futures[1].result(0) == 1


def test_pickling_a_future_raises(inline_producer: Producer) -> None:
    future = inline_producer.send("orders", b"v")
    for one in (future, inline_producer.send_table("orders", pa.table({"value": [b"v"]})), RecordFuture()):
        with pytest.raises(TypeError, match=r"^a RecordFuture cannot be pickled, .*: pass the value of its result\(\) instead$"):
            pickle.dumps(one)
    metadata = future.result(60)
    assert pickle.loads(pickle.dumps(metadata)) == metadata


def test_unknown_attribute_raises() -> None:
    with pytest.raises(AttributeError):
        _ = RecordFuture().colour


def test_send_is_annotated_to_return_a_record_future() -> None:
    for method in (Producer.send, Producer.send_table):
        assert str(method.__annotations__["return"]).startswith("RecordFuture[")


class WeakError(Exception):
    """An error that supports weak references, as classes without slots do."""


@pytest.mark.parametrize("fail", [lambda future: future.fail(WeakError()), lambda future: future.fail_with(lambda _: WeakError(), 0)])
def test_raised_error_is_freed_without_the_collector(fail: Callable[[RecordFuture[int]], None]) -> None:
    """A traceback holds its frames: their objects would stay until the garbage collector runs."""
    future: RecordFuture[int] = RecordFuture()
    fail(future)
    error = weakref.ref(future.exception(0) or WeakError())
    gc.disable()
    try:
        with pytest.raises(WeakError):
            future.result(0)
        del future
        assert error() is None
    finally:
        gc.enable()


def test_get_snapshot_returns_state_and_outcome() -> None:
    futures, batch_futures = batch_of(2)
    failed: RecordFuture[int] = RecordFuture()
    assert futures[1]._get_snapshot() == (False, False, None, None)
    complete_batch(batch_futures, lambda index: 6 + index)
    failed.fail_with(lambda index: WeakError(index), 5)
    assert futures[1]._get_snapshot() == (True, False, 7, None)
    assert repr(failed._get_snapshot()) == "(True, False, None, WeakError(5))"
