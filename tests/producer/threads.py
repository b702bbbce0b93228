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
    """Name of the exception that the call raises in a forked child of this process; TimeoutError if it does not return."""
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
    with os.fdopen(reader) as received:
        return received.read()


@contextmanager
def blocked_sender(producer: Producer) -> Iterator[None]:
    """Block the sender thread, as a callback that does not return does. Calls of the producer still work."""
    is_blocked, may_continue = threading.Event(), threading.Event()

    def block(_: Future[None]) -> None:
        is_blocked.set()
        may_continue.wait(LATEST_S)

    def flush(call: Future[None]) -> events.Event:
        call.add_done_callback(block)
        return events.FlushCalled(call=call)

    producer._sender.call(flush)
    assert is_blocked.wait(LATEST_S)
    try:
        yield
    finally:
        may_continue.set()


def counting(seen: list[Any], call: Callable[..., T]) -> Callable[..., T]:
    """Wrap the call so that each use appends to `seen`."""

    def counted(*arguments: Any) -> T:
        seen.append(None)
        return call(*arguments)

    return counted
