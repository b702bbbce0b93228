"""Rebalance and commit callbacks of a consumer. They run on the caller's thread, without a lock, or on its event loop."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Mapping

from chaffinch.consumer.core.rebalance import Callback
from chaffinch.errors import KafkaException
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition

OnPartitions = Callable[[list[TopicPartition]], object]
OnCommit = Callable[[Mapping[TopicPartition, OffsetAndMetadata], KafkaException | None], object]


class Callbacks:
    """The callbacks of one consumer. `listeners`: by kind, `assign`, `revoke` or `lost`. `may_await`: they may be coroutine functions."""

    def __init__(self, *, may_await: bool = False) -> None:
        self._may_await = may_await
        self.listeners: Mapping[str, OnPartitions | None] = {}
        self._running = ""
        self._commits: deque[tuple[OnCommit, Mapping[TopicPartition, OffsetAndMetadata], KafkaException | None]] = deque()

    @property
    def is_running(self) -> bool:
        """Whether a listener runs: then the current call comes from that listener."""
        return bool(self._running)

    @property
    def has_completed_commits(self) -> bool:
        """Whether `run_commit_callbacks` has a callback to run."""
        return bool(self._commits)

    def clear_running(self) -> None:
        """Forget the listener that ran when a call was interrupted."""
        self._running = ""

    async def run_listener(self, callback: Callback | None) -> KafkaException | None:
        """Run the listener; return its exception as a KafkaException, or None."""
        listener = None if callback is None else self.listeners.get(callback.kind)
        if callback is None or listener is None or (callback.kind != "assign" and self._running not in ("", "assign")):
            return None  # `close` or `unsubscribe` within on_revoke: the listener has these partitions already.
        outer, self._running = self._running, callback.kind
        try:
            await self._run(listener, list(callback.partitions))
        except KafkaException as error:
            return error
        except Exception as error:
            return _wrapped_error(f"on_{callback.kind}", error)
        finally:
            self._running = outer
        return None

    def add_completed_commit(
        self, callback: OnCommit | None, offsets: Mapping[TopicPartition, OffsetAndMetadata], error: KafkaException | None
    ) -> None:
        """Queue the callback of a completed commit for `run_commit_callbacks`."""
        if callback is not None:
            self._commits.append((callback, offsets, error))

    async def run_commit_callbacks(self) -> None:
        """Run the queued commit callbacks. Raises the exception of a callback as a KafkaException; the next call runs the rest."""
        while self._commits:
            callback, offsets, error = self._commits.popleft()
            try:
                await self._run(callback, offsets, error)
            except KafkaException:
                raise
            except Exception as raised:
                raise _wrapped_error("on_commit", raised) from raised

    async def _run(self, callback: Callable[..., object], *arguments: object) -> None:
        result = callback(*arguments)
        if self._may_await and inspect.isawaitable(result):
            await result


def _wrapped_error(callback: str, raised: Exception) -> KafkaException:
    failure = KafkaException(f"the callback {callback} raised {raised!r}")
    failure.__cause__ = raised
    return failure
