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


def test_is_a_standard_future_without_a_lock_of_its_own() -> None:
    future: RecordFuture[int] = RecordFuture()
    assert isinstance(future, concurrent.futures.Future)
    assert "_condition" not in future.__dict__
    assert not future.__dict__
    future.complete(5)
    assert (future.result(), future.exception(), future.done()) == (5, None, True)
    assert "_condition" not in future.__dict__, "asking what is known makes no lock either"


def test_fail() -> None:
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


class Raced(RecordFuture[int]):
    """It is completed by another thread right after it was seen not to be done."""

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


@pytest.mark.parametrize("asks_twice", [False, True])
@pytest.mark.parametrize("shares", [False, True])
def test_result_that_comes_while_it_is_asked_for(shares: bool, asks_twice: bool) -> None:
    future, batch_futures = Raced(), BatchFutures()
    if shares:
        batch_futures.append(future)
        future.batch = batch_futures
        future.complete_it = lambda: complete_batch(batch_futures, lambda index: 7 + index)
    else:
        future.complete_it = lambda: complete_all([future], lambda index: 7 + index)
    for _ in range(1 + asks_twice):
        assert future.result(0) == 7


def test_cannot_be_cancelled() -> None:
    future: RecordFuture[int] = RecordFuture()
    assert not future.cancel()
    assert not future.cancelled()
    future.complete(1)


def test_callbacks_before_and_after() -> None:
    heard: list[Any] = []
    future: RecordFuture[int] = RecordFuture()
    future.add_done_callback(lambda done: heard.append(("before", done.result())))
    future.complete(1)
    future.add_done_callback(lambda done: heard.append(("after", done.result())))
    assert heard == [("before", 1), ("after", 1)]


def test_wait_and_as_completed() -> None:
    futures: list[RecordFuture[int]] = [RecordFuture() for _ in range(3)]
    threading.Thread(target=lambda: complete_all(futures, lambda index: index)).start()
    awaited: list[Any] = [*futures]
    assert {future.result() for future in concurrent.futures.as_completed(awaited, 10)} == {0, 1, 2}
    assert not concurrent.futures.wait(futures, 10).not_done


def test_awaitable_through_asyncio() -> None:
    async def main() -> int:
        future: RecordFuture[int] = RecordFuture()
        threading.Thread(target=lambda: future.complete(7)).start()
        return await asyncio.wrap_future(future)

    assert asyncio.run(main()) == 7


def test_complete_all_mixes_touched_and_untouched() -> None:
    futures: list[RecordFuture[int]] = [RecordFuture() for _ in range(4)]
    heard: list[int] = []
    futures[2].add_done_callback(lambda done: heard.append(done.result()))
    complete_all(futures, lambda index: index)
    assert [future.result(0) for future in futures] == [0, 1, 2, 3]
    assert heard == [2]


def batch_of(count: int) -> tuple[list[RecordFuture[int]], BatchFutures]:
    """Futures that share one outcome."""
    futures: list[RecordFuture[int]] = [RecordFuture() for _ in range(count)]
    batch_futures = BatchFutures()
    batch_futures.extend(futures)
    for index, future in enumerate(futures):
        future.batch, future.index = batch_futures, index
    return futures, batch_futures


def test_batch_completes_at_once_with_watched_futures() -> None:
    futures, batch_futures = batch_of(5)
    heard: list[int] = []
    futures[3].add_done_callback(lambda done: heard.append(done.result()))
    futures[1].add_done_callback(lambda done: heard.append(done.result()))
    batch_futures.callbacks = {4: lambda result, error: heard.append(result), 3: lambda result, error: heard.append(-result)}
    assert not any(future.done() for future in futures)
    complete_batch(batch_futures, lambda index: 10 + index)
    assert heard == [11, 13, -13, 14], "in the order of the batch"
    assert [future.result(0) for future in futures] == [10, 11, 12, 13, 14]
    assert [future.exception() for future in futures] == [None] * 5
    futures[0].add_done_callback(lambda done: heard.append(done.result()))
    assert heard[-1] == 10, "a watcher that comes late hears at once"
    assert not concurrent.futures.wait(futures, 0).not_done
    assert not batch_futures, "one future that is kept does not keep the others"


def test_the_innocents_of_a_batch_are_done_at_once() -> None:
    """Futures that have failed before stay failed, watched or not, and are not completed twice."""
    futures, batch_futures = batch_of(6)
    heard: list[object] = []
    for index in (1, 2, 3):
        futures[index].add_done_callback(lambda done: heard.append(done.exception() or done.result()))
    for index in (0, 3):
        futures[index].fail(ZeroDivisionError(index))
    batch_futures.completed_count = 2
    complete_batch(batch_futures, lambda index: 10 + index, np.array([1, 2, 4, 5]))
    assert [str(future.exception(0)) for future in futures] == ["0", "None", "None", "3", "None", "None"]
    assert [futures[index].result(0) for index in (1, 2, 4, 5)] == [11, 12, 14, 15]
    assert list(map(str, heard)) == ["3", "11", "12"]


def test_a_record_may_fail_before_its_batch_is_done() -> None:
    futures, _receipts = batch_of(3)
    futures[1].fail(ZeroDivisionError())
    assert isinstance(futures[1].exception(0), ZeroDivisionError)
    assert not futures[0].done()
    complete_all([futures[0], futures[2]], lambda index: index)
    assert [futures[0].result(0), futures[2].result(0)] == [0, 1]
    assert isinstance(futures[1].exception(0), ZeroDivisionError)


class OvertakenReceipts(BatchFutures):
    """A thread reads the batch just when another one fails the culprit, and then completes the other futures."""

    __slots__ = ("_seen", "tell")
    tell: Any

    @property
    def outcome(self) -> Any:
        tell, self.tell = self.tell, lambda: None
        tell()
        return self._seen

    @outcome.setter
    def outcome(self, outcome: Any) -> None:
        self._seen = outcome


@pytest.mark.parametrize("ask", [RecordFuture.exception, RecordFuture.result])
def test_a_culprit_is_never_taken_for_an_innocent_of_its_batch(ask: Any) -> None:
    culprit: RecordFuture[int] = RecordFuture()
    batch_futures = OvertakenReceipts()
    batch_futures.extend([culprit, RecordFuture()])
    culprit.batch, culprit.index = batch_futures, 0

    def tell() -> None:
        batch_futures.completed_count = 1
        culprit.fail(ZeroDivisionError())
        complete_batch(batch_futures, lambda index: index, np.array([1]))

    batch_futures.tell = tell
    try:
        found = ask(culprit, 0)
    except ZeroDivisionError as error:
        found = error
    assert isinstance(found, ZeroDivisionError)


def test_a_waiter_misses_nothing_when_its_batch_is_done_at_the_same_moment() -> None:
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


def test_a_waiter_that_comes_at_the_same_moment_misses_nothing() -> None:
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
    """Released whenever a thread is about to wait for a future without watching it."""
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


TOLD: dict[str, Callable[[RecordFuture[int]], None]] = {
    "7 alone": lambda future: future.complete(7),
    "7 with its batch": lambda future: complete_batch(future.batch or BatchFutures(), lambda index: 6 + index),
    "7 beside others": lambda future: complete_all((future.batch or BatchFutures())[1:], lambda index: 7 + index),
    "an error": lambda future: future.fail(ZeroDivisionError()),
    "an error to be made": lambda future: future.fail_with(lambda index: [AssertionError(), ZeroDivisionError()][index], 1),
}


@pytest.mark.parametrize("is_watched_meanwhile", [False, True])
@pytest.mark.parametrize("tell", TOLD)
def test_waiting_threads_are_notified_without_other_parts(waiting: threading.Semaphore, tell: str, is_watched_meanwhile: bool) -> None:
    futures, _receipts = batch_of(2)
    future = futures[1]
    heard: list[object] = []

    def ask(how: Callable[[RecordFuture[int]], object]) -> None:
        try:
            heard.append(how(future))
        except ZeroDivisionError as error:
            heard.append(error)

    asked = [RecordFuture.result, RecordFuture.exception, lambda future: future.result(60), lambda future: future.exception(60)]
    threads = [threading.Thread(target=ask, args=(how,)) for how in asked]
    for thread in threads:
        thread.start()
        assert waiting.acquire(timeout=60)
    assert not future._is_watched
    if is_watched_meanwhile:
        future.add_done_callback(lambda done: heard.append(done.exception() or done.result()))
    TOLD[tell](future)
    for thread in threads:
        thread.join(60)
    right = [repr(ZeroDivisionError())] * 4 if "an error" in tell else ["7", "7", "None", "None"]
    assert sorted(map(repr, heard)) == sorted([*right, *[right[0]] * is_watched_meanwhile])
    assert future._is_watched is is_watched_meanwhile


@pytest.mark.parametrize("ask", [RecordFuture.result, RecordFuture.exception])
def test_who_is_about_to_wait_when_the_outcome_comes_does_not(waiting: threading.Semaphore, ask: Any) -> None:
    """Nobody would wake it up."""
    future, batch_futures = Raced(), BatchFutures()
    batch_futures.append(future)
    future.batch = batch_futures
    future.complete_it = lambda: complete_batch(batch_futures, lambda index: 7)
    assert ask(future, 1) == (7 if ask is RecordFuture.result else None)
    assert not waiting.acquire(blocking=False)


class Peeked(RecordFuture[int]):
    """It is looked at by another thread whenever it joins or leaves a batch."""

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
    """First for the batch, then, because somebody watches by now, for the future itself."""
    futures, _receipts = batch_of(2)
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


@pytest.mark.parametrize(("tell", "seen"), [("7 with its batch", [False, True]), ("an error", [False, True])])
def test_done_future_stays_done(waiting: threading.Semaphore, tell: str, seen: list[bool]) -> None:
    """A batch is done at once; what one of its futures is told after that, because somebody waits for it, takes nothing back."""
    future, batch_futures = Peeked(), BatchFutures()
    batch_futures += [RecordFuture(), future]
    future.batch, future.index = batch_futures, 1
    thread = threading.Thread(target=future.exception)
    thread.start()
    assert waiting.acquire(timeout=60)
    TOLD[tell](future)
    thread.join(60)
    assert future.seen == seen


@pytest.mark.parametrize("ask", [RecordFuture.result, RecordFuture.exception])
def test_who_gives_up_waiting_leaves_no_lock_behind(ask: Any) -> None:
    futures, batch_futures = batch_of(2)
    for _ in range(3):
        with pytest.raises(concurrent.futures.TimeoutError):
            ask(futures[1], 0.001)
    assert not futures[1]._own_locks
    complete_batch(batch_futures, lambda index: index)
    assert futures[1].result(0) == 1


def test_it_cannot_be_pickled(quiet: Producer) -> None:
    future = quiet.send("orders", b"v")
    for one in (future, quiet.send_table("orders", pa.table({"value": [b"v"]})), RecordFuture()):
        with pytest.raises(TypeError, match=r"^a RecordFuture cannot be pickled, .*: pass the value of its result\(\) instead$"):
            pickle.dumps(one)
    metadata = future.result(60)
    assert pickle.loads(pickle.dumps(metadata)) == metadata


def test_no_other_attributes_appear() -> None:
    with pytest.raises(AttributeError):
        _ = RecordFuture().colour


def test_type_checkers_know_that_what_the_producer_gives_can_be_awaited() -> None:
    for method in (Producer.send, Producer.send_table):
        assert str(method.__annotations__["return"]).startswith("RecordFuture[")


class Noticed(Exception):
    """An error that can be referred to weakly, as those without slots can."""


@pytest.mark.parametrize("fail", [lambda future: future.fail(Noticed()), lambda future: future.fail_with(lambda _: Noticed(), 0)])
def test_who_has_raised_it_does_not_keep_an_error(fail: Callable[[RecordFuture[int]], None]) -> None:
    """It holds the frames that it went through: what lies in them would stay until the collector comes."""
    future: RecordFuture[int] = RecordFuture()
    fail(future)
    error = weakref.ref(future.exception(0) or Noticed())
    gc.disable()
    try:
        with pytest.raises(Noticed):
            future.result(0)
        del future
        assert error() is None
    finally:
        gc.enable()


def test_what_a_newer_asyncio_copies() -> None:
    futures, batch_futures = batch_of(2)
    failed: RecordFuture[int] = RecordFuture()
    assert futures[1]._get_snapshot() == (False, False, None, None)
    complete_batch(batch_futures, lambda index: 6 + index)
    failed.fail_with(lambda index: Noticed(index), 5)
    assert futures[1]._get_snapshot() == (True, False, 7, None)
    assert repr(failed._get_snapshot()) == "(True, False, None, Noticed(5))"
