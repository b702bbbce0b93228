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
        self._telling = ""
        self._commits: deque[tuple[OnCommit, Mapping[TopicPartition, OffsetAndMetadata], KafkaException | None]] = deque()

    @property
    def is_telling(self) -> bool:
        """Whether a listener runs: who calls now is that listener."""
        return bool(self._telling)

    @property
    def are_commits_over(self) -> bool:
        """Whether `tell_commits` has something to tell."""
        return bool(self._commits)

    def none_runs(self) -> None:
        """Whichever ran when the call was interrupted."""
        self._telling = ""

    def tell(self, callback: Callback | None) -> KafkaException | None:
        """Run a listener; what it raised, as one of our own."""
        listener = None if callback is None else self.listeners.get(callback.kind)
        if callback is None or listener is None or (callback.kind != "assign" and self._telling not in ("", "assign")):
            return None  # Who ends it all from within on_revoke knows already.
        told_before, self._telling = self._telling, callback.kind
        try:
            listener(list(callback.partitions))
        except KafkaException as error:
            return error
        except Exception as error:
            return _failure(f"on_{callback.kind}", error)
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
        """Raises what a callback raised, as one of our own; those after it are told by the next call."""
        while self._commits:
            callback, offsets, error = self._commits.popleft()
            try:
                callback(offsets, error)
            except KafkaException:
                raise
            except Exception as raised:
                raise _failure("on_commit", raised) from raised


def _failure(callback: str, raised: Exception) -> KafkaException:
    failure = KafkaException(f"the callback {callback} raised {raised!r}")
    failure.__cause__ = raised
    return failure
