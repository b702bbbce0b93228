"""What callers want to be told of: partitions that come and go, and what became of their commits. In their own thread, without the lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from chaffinch.consumer.core.rebalance import Callback
from chaffinch.errors import KafkaException
from chaffinch.identifiers import OffsetAndMetadata, TopicPartition

OnPartitions = Callable[[list[TopicPartition]], object]
OnCommit = Callable[[Mapping[TopicPartition, OffsetAndMetadata], KafkaException | None], object]


class Callbacks:
    """Those of one consumer. `listeners`: by the kind of callback, `assign`, `revoke` or `lost`."""

    def __init__(self) -> None:
        self.listeners: Mapping[str, OnPartitions | None] = {}
        self._running = ""
        self._commits: deque[tuple[OnCommit, Mapping[TopicPartition, OffsetAndMetadata], KafkaException | None]] = deque()

    @property
    def is_running(self) -> bool:
        """Whether a listener runs: who calls now is that listener."""
        return bool(self._running)

    @property
    def has_completed_commits(self) -> bool:
        """Whether `run_commit_callbacks` has something to tell."""
        return bool(self._commits)

    def clear_running(self) -> None:
        """Whichever ran when the call was interrupted."""
        self._running = ""

    def run_listener(self, callback: Callback | None) -> KafkaException | None:
        """Run a listener; what it raised, as one of our own."""
        listener = None if callback is None else self.listeners.get(callback.kind)
        if callback is None or listener is None or (callback.kind != "assign" and self._running not in ("", "assign")):
            return None  # Who ends it all from within on_revoke knows already.
        outer, self._running = self._running, callback.kind
        try:
            listener(list(callback.partitions))
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
        """A commit is over; `run_commit_callbacks` says so."""
        if callback is not None:
            self._commits.append((callback, offsets, error))

    def run_commit_callbacks(self) -> None:
        """Raises what a callback raised, as one of our own; those after it are told by the next call."""
        while self._commits:
            callback, offsets, error = self._commits.popleft()
            try:
                callback(offsets, error)
            except KafkaException:
                raise
            except Exception as raised:
                raise _wrapped_error("on_commit", raised) from raised


def _wrapped_error(callback: str, raised: Exception) -> KafkaException:
    failure = KafkaException(f"the callback {callback} raised {raised!r}")
    failure.__cause__ = raised
    return failure
