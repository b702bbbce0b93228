"""Helpers for tests of waits: calls in background threads, futures in asyncio, and a blocked sender thread."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from chaffinch import Producer
from chaffinch.producer.core import events

LATEST_S = 60
T = TypeVar("T")


def in_thread(call: Callable[[], Any]) -> Future[Any]:
    """Run the call in a daemon thread; the future has its result or exception."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


async def awaited(future: Any) -> Any:
    return await future


async def wrapped(future: Any) -> Any:
    return await asyncio.wrap_future(future)


def outcome_in_child(call: Callable[[], Any]) -> str:
    """What the call raises in a forked child of this process, by name: TimeoutError where it does not return."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, type(in_thread(call).exception(LATEST_S)).__name__.encode())
        except BaseException as error:
            os.write(writer, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as told:
        return told.read()


@contextmanager
def held_up(producer: Producer) -> Iterator[None]:
    """Block the sender thread, as a callback that does not return. Calls of the producer go on."""
    is_there, may_go = threading.Event(), threading.Event()

    def hold_up(_: Future[None]) -> None:
        is_there.set()
        may_go.wait(LATEST_S)

    def flush(call: Future[None]) -> events.Event:
        call.add_done_callback(hold_up)
        return events.FlushCalled(call=call)

    producer._sender.call(flush)
    assert is_there.wait(LATEST_S)
    try:
        yield
    finally:
        may_go.set()


def noting(seen: list[Any], call: Callable[..., T]) -> Callable[..., T]:
    """The call, which adds one to `seen` each time."""

    def noted(*arguments: Any) -> T:
        seen.append(None)
        return call(*arguments)

    return noted
