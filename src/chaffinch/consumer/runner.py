"""Runner of a consumer's core: what its calls need from the background thread, or from the event loop.

The calls (`calls.py`) are coroutines. On an event loop they suspend while they wait. With a background thread they never do: `ThreadRunner`
blocks the caller's thread instead, and `finish` runs the call in one step. So `Consumer` and `AsyncConsumer` share all calls.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from chaffinch.consumer.consumer_thread import ConsumerThread
from chaffinch.errors import KafkaException

T = TypeVar("T")


class Pending:
    """The result of a call, set by the core."""

    __slots__ = ("error", "is_done", "result")

    def __init__(self) -> None:
        self.is_done = False
        self.result: Any = None
        self.error: KafkaException | None = None

    def complete(self, result: Any = None, error: KafkaException | None = None) -> None:
        self.is_done, self.result, self.error = True, result, error


class Runner(Protocol):
    """Runs a core. Members as in `ConsumerThread`."""

    @property
    def death(self) -> KafkaException | None: ...

    @property
    def is_stopping(self) -> bool: ...

    async def run(self, call: Callable[[], T]) -> T:
        """Call a function that may change the core. Never suspends."""
        ...

    async def run_until(self, call: Callable[[], T | None], limit_s: float | None) -> T | None:
        """Call a function after each change until its result is not None; at least once. None after `limit_s` seconds."""
        ...

    def post(self, call: Callable[[], object]) -> None:
        """Call a function before later calls, without waiting for it."""

    def notify(self) -> None:
        """Report a change, so that functions of `run_until` are called again."""

    def stop(self, timeout_ms: int | None = None) -> None:
        """End the runner. Requests in flight are dropped."""


class ThreadRunner:
    """The background thread as a runner. Its coroutines block instead of suspending."""

    def __init__(self, thread: ConsumerThread) -> None:
        self._thread = thread
        self.post, self.notify, self.stop = thread.post, thread.notify, thread.stop

    @property
    def death(self) -> KafkaException | None:
        return self._thread.death

    @property
    def is_stopping(self) -> bool:
        return self._thread.is_stopping

    async def run(self, call: Callable[[], T]) -> T:
        return self._thread.run(call)

    async def run_until(self, call: Callable[[], T | None], limit_s: float | None) -> T | None:
        return self._thread.run_until(call, limit_s)


def finish(call: Callable[..., Coroutine[Any, Any, T]], *arguments: Any, **keywords: Any) -> T:
    """Run a coroutine function that never suspends; returns its result or raises its exception."""
    try:
        # In one expression: a KeyboardInterrupt between call and start would leave a coroutine that was never awaited.
        call(*arguments, **keywords).send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("a call of a consumer suspended outside an event loop")
