"""What callers want to be told of: partitions that come and go, and what became of their commits. In their own thread, without the lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from chaffinch.consumer.consumer_thread import ConsumerThread
from chaffinch.consumer.core.consumer_core import ConsumerCore
from chaffinch.consumer.core.rebalance import Callback
from chaffinch.errors import KafkaException
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition
from chaffinch.runtime.clock import Clock

OnPartitions = Callable[[list[TopicPartition]], object]
OnCommit = Callable[[Mapping[TopicPartition, OffsetAndMetadata], KafkaException | None], object]


class Callbacks:
    """Those of one consumer. `listeners`: by the kind of callback, `assign`, `revoke` or `lost`."""

    def __init__(self, core: ConsumerCore, thread: ConsumerThread, clock: Clock) -> None:
        self.listeners: Mapping[str, OnPartitions | None] = {}
        self._core = core
        self._thread = thread
        self._clock = clock
        self._telling = ""
        self._commits: deque[tuple[OnCommit, Mapping[TopicPartition, OffsetAndMetadata], KafkaException | None]] = deque()

    @property
    def is_telling(self) -> bool:
        """Whether a listener runs: who calls now is that listener."""
        return bool(self._telling)

    def run(self) -> None:
        """Everything that is due: what a rebalance wants the caller to do, and what became of commits. With the lock held, once."""
        self.tell_commits()
        while (callback := self._core.next_callback(self._clock.now_ms())) is not None:
            error = self.tell(callback)
            self._core.callback_done(callback)
            self._thread.push()
            if error is not None:
                raise error

    def tell(self, callback: Callback | None) -> KafkaException | None:
        """Run a listener; what it raised, as one of our own."""
        listener = None if callback is None else self.listeners.get(callback.kind)
        if callback is None or listener is None or (callback.kind != "assign" and self._telling not in ("", "assign")):
            return None  # Who ends it all from within on_revoke knows already.
        told_before, self._telling = self._telling, callback.kind
        with self._unlocked():
            try:
                listener(list(callback.partitions))
            except KafkaException as error:
                return error
            except Exception as error:
                failure = KafkaException(f"the callback on_{callback.kind} raised {error!r}")
                failure.__cause__ = error
                return failure
            finally:
                self._telling = told_before
        return None

    def note_commit(
        self, callback: OnCommit | None, offsets: Mapping[TopicPartition, OffsetAndMetadata], error: KafkaException | None
    ) -> None:
        """A commit is over; `tell_commits` says so."""
        if callback is not None:
            self._commits.append((callback, offsets, error))

    def tell_commits(self) -> None:
        while self._commits:
            callback, offsets, error = self._commits.popleft()
            with self._unlocked():
                callback(offsets, error)

    @contextmanager
    def _unlocked(self) -> Iterator[None]:
        """Give the lock away for as long as a callback runs, if it is held."""
        lock = self._thread.changed
        is_held = lock._is_owned()  # type: ignore[attr-defined]
        if is_held:
            lock.release()
        try:
            yield
        finally:
            if is_held:
                lock.acquire()
