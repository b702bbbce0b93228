"""Calls in threads of their own, and futures waited for by asyncio, for tests of who waits for what."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


def in_thread(call: Callable[[], Any]) -> Future[Any]:
    """What the call returns or raises, told by a thread that nobody has to wait for."""
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
