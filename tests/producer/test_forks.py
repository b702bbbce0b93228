"""Forked children: each call of the parent's producer raises an error, and none hangs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from chaffinch import EmbeddedBroker, Producer
from chaffinch.errors import IllegalStateException
from chaffinch.producer import process_hooks
from chaffinch.producer.futures import SHARED_LOCK, RecordFuture, complete_all
from tests.client.interrupts import Interrupt
from tests.producer.threads import awaited, blocked_sender, in_thread, outcome_in_child, wrapped

Make = Callable[..., Producer]
TABLE = pa.table({"value": [b"v"]})
LATEST_S = 60
"""Time-out of waits that end sooner unless something hangs."""


@pytest.fixture
def forked(producer_of: Make, broker: EmbeddedBroker) -> Iterator[tuple[Producer, Callable[[Callable[[], Any]], str]]]:
    """A producer, and a function that makes a call in a forked child and returns the name of its exception."""
    producer = producer_of(broker, transactional_id=None)
    producer.send("orders", b"v").result(LATEST_S)
    yield producer, outcome_in_child
    producer.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
class TestFork:
    """The sender thread stays with the parent: calls in a child raise at once, and the parent goes on."""

    def test_calls_in_a_child_raise_and_the_parent_goes_on(self, forked: tuple[Producer, Callable[[Callable[[], Any]], str]]) -> None:
        producer, call_in_child = forked
        assert call_in_child(producer.flush) == "IllegalStateException"
        assert call_in_child(lambda: producer.send("orders", b"child").result(2)) == "IllegalStateException"
        assert call_in_child(producer.close) == "NoneType"
        assert producer.send("orders", b"parent").result(LATEST_S).offset >= 0

    def test_every_call_in_a_child_raises_also_after_close(self, forked: tuple[Producer, Callable[[Callable[[], Any]], str]]) -> None:
        producer, call_in_child = forked

        def after_close() -> None:
            producer.close()
            for call in (
                producer.flush,
                producer.metrics,
                lambda: producer.send("orders", b"v"),
                lambda: producer.send_table("orders", TABLE),
            ):
                with pytest.raises(IllegalStateException, match="in a forked child"):
                    call()

        assert call_in_child(producer.metrics) == "IllegalStateException"
        assert call_in_child(after_close) == "NoneType"

    def test_waiting_in_a_child_for_futures_of_the_parent_raises(
        self, producer_of: Make, forked: tuple[Producer, Callable[[Callable[[], Any]], str]]
    ) -> None:
        """They never complete in the child, which gets an error instead of waiting."""
        producer, call_in_child = forked
        with blocked_sender(producer):  # So that no record is sent before the calls in the children.
            waiting, joined = [producer.send("orders", b"v") for _ in range(2)]
            watched = producer.send("orders", b"v", partition=1)
            watched.add_done_callback(lambda _: None)
            table = producer.send_table("orders", pa.table({"value": [b"v"]}))
            waits = waiting.result, waiting.exception, joined.result, watched.result, table.result, lambda: asyncio.run(awaited(waiting))
            assert {call_in_child(call) for call in waits} == {"IllegalStateException"}
            futures: list[Any] = [table, joined]
            waits_of_libraries: tuple[Callable[[], object], ...] = (
                lambda: concurrent.futures.wait([waiting]),
                lambda: concurrent.futures.wait([watched], return_when=concurrent.futures.FIRST_COMPLETED),
                lambda: list(concurrent.futures.as_completed(futures)),
                lambda: asyncio.run(wrapped(waiting)),
            )
            assert {call_in_child(call) for call in waits_of_libraries} == {"IllegalStateException"}
        assert [future.exception(LATEST_S) for future in (waiting, joined, watched, table)] == [None] * 4
        assert call_in_child(waiting.result) == "NoneType", "the outcome was known before the fork"
        assert call_in_child(lambda: concurrent.futures.wait([waiting, watched])) == "NoneType"

    def test_fork_while_another_thread_holds_the_lock(self, forked: tuple[Producer, Callable[[Callable[[], Any]], str]]) -> None:
        producer, call_in_child = forked
        is_over = threading.Event()

        def run_until_over() -> None:
            while not is_over.is_set():
                producer.metrics()

        thread = in_thread(run_until_over)
        try:
            assert {call_in_child(producer.flush) for _ in range(5)} == {"IllegalStateException"}
        finally:
            is_over.set()
        thread.result(LATEST_S)

    def test_fork_while_another_thread_completes_futures(self, forked: tuple[Producer, Callable[[Callable[[], Any]], str]]) -> None:
        """All futures share a lock, which producers of the child need."""
        _, call_in_child = forked
        is_over = threading.Event()

        def run_until_over() -> None:
            while not is_over.is_set():
                complete_all([RecordFuture() for _ in range(1000)], lambda index: index)

        def take_the_lock() -> None:
            assert SHARED_LOCK.acquire(timeout=60)

        thread = in_thread(run_until_over)
        try:
            assert {call_in_child(take_the_lock) for _ in range(20)} == {"NoneType"}
        finally:
            is_over.set()
        thread.result(LATEST_S)


def fork() -> None:
    """The hooks that Python calls in the parent, even if the first raises."""
    try:
        process_hooks._before_fork()
    finally:
        process_hooks._HELD.clear()


class TestLocksAfterFork:
    """Each lock of the parent is free after a fork."""

    def check(self, producer: Producer) -> None:
        locks: list[Any] = [producer._lock, SHARED_LOCK, process_hooks._FORKING]
        for lock in locks:
            assert not lock._is_owned()
        in_thread(producer.metrics).result(LATEST_S)

    def test_locks_are_free_after_forks_of_many_threads(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        before = sys.getswitchinterval()

        def fork_often() -> None:
            for _ in range(500):
                fork()

        with producer_of(broker) as producer:
            sys.setswitchinterval(1e-6)
            try:
                for done in [in_thread(fork_often) for _ in range(3)]:
                    done.result(LATEST_S)
            finally:
                sys.setswitchinterval(before)
            self.check(producer)

    def test_locks_are_free_after_ctrl_c_at_every_moment(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker) as producer:
            for index in count():
                interrupt = Interrupt(index)
                with suppress(KeyboardInterrupt), interrupt:
                    fork()
                self.check(producer)
                if not interrupt.has_happened:
                    break
            assert index > 10
