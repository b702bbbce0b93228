"""Notes how far logs and journals go, so that the next start can tell when files or records are missing; see `storage/contents.py`.

A log or journal is noted in the very turn in which it gets its first entries, and with `flush.policy=always` in each turn that syncs it.
All others are noted together, at most once in `INTERVAL_MS`. Nothing is synced for that, except with `always` all notes together, once in
`SYNC_INTERVAL_MS`. A note that fails, as on a full disk, is repeated.

The first note of a process is about everything and is synced. Until it succeeds there are no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from chaffinch.broker.core.topics.registry import Partition, TopicRegistry
from chaffinch.storage.contents import Contents, Extent
from chaffinch.storage.data_directory import DataDirectory
from chaffinch.storage.files import StorageError
from chaffinch.storage.journal import Journal

INTERVAL_MS = 20
SYNC_INTERVAL_MS = 10_000
RETRY_MS = 10_000
"""After a failure."""


class ContentsRecorder:
    """See the module. `journals` by their paths. `syncs`: each turn ends with a sync, after which `record_now` is called. `directory` is
    complete with the first note."""

    def __init__(
        self,
        contents: Contents,
        directory: DataDirectory,
        topics: TopicRegistry,
        journals: Mapping[str, Journal],
        steady_ms: int,
        *,
        syncs: bool,
    ) -> None:
        self._contents = contents
        self._directory = directory
        self._topics = topics
        self._journals = journals
        self._counts = dict.fromkeys(journals, 0)  # As they were noted.
        self._empty: list[Journal] = []  # Of which no entry is noted.
        self._grown: dict[Partition, None] = {}
        self._next_ms = steady_ms
        self._syncs = syncs
        self._is_unsynced = False  # With `syncs`.
        self._next_sync_ms = steady_ms
        self._failure_reported = False  # Since the last success.

    def begin(self) -> None:
        """Note everything there is. Durable on return. Raises StorageError."""
        journals = self._journal_extents()
        self._contents.begin({**self._log_extents(self._topics.partitions()), **journals})
        self._directory.complete()
        self._note_counts(journals)

    def grow(self, partitions: Iterable[Partition]) -> None:
        """These got records."""
        is_first = False
        for partition in partitions:
            if partition not in self._grown:
                self._grown[partition] = None
                is_first = is_first or partition.log.directory not in self._contents
        if is_first and not self._syncs:
            self.record_now()

    def check_journals(self) -> None:
        """A journal may have got entries."""
        for journal in self._empty:
            if journal.count and not self._syncs:
                self.record_now()
                return

    @property
    def next_deadline_ms(self) -> int | None:
        """See `ScheduledTask`."""
        if self._has_changes:
            return self._next_ms
        return self._next_sync_ms if self._is_unsynced else None

    @property
    def _has_changes(self) -> bool:
        if self._grown or self._topics.moved_starts or not self._contents.is_begun:
            return True
        return any(journal.count != self._counts[path] for path, journal in self._journals.items())

    def record_now(self) -> None:
        """Note all that has grown. After a failure it is due again."""
        if self._contents.is_begun and self._has_changes:
            with suppress(StorageError):
                self._note()

    def expire(self, steady_ms: int) -> Sequence[str]:
        """See `ScheduledTask`."""
        try:
            if not self._contents.is_begun:
                self.begin()
            self._note()
            if self._is_unsynced and self._next_sync_ms <= steady_ms:
                self._contents.sync()
                self._is_unsynced, self._next_sync_ms = False, steady_ms + SYNC_INTERVAL_MS
        except StorageError as error:
            self._next_ms = self._next_sync_ms = steady_ms + RETRY_MS
            was_reported, self._failure_reported = self._failure_reported, True
            return [] if was_reported else [f"a file that is lost later may not be missed at the next start: {error}"]
        self._next_ms = steady_ms + INTERVAL_MS
        self._failure_reported = False
        return []

    def close(self) -> None:
        """Note where all logs and journals end, once they are closed, and so synced. Raises StorageError."""
        with suppress(StorageError):  # Less is expected then.
            self._contents.note({**self._log_extents(self._topics.partitions()), **self._journal_extents()})
        self._contents.close()

    def _note(self) -> None:
        journals = self._journal_extents()
        moved = [self._topics.partition(*topic_partition) for topic_partition in self._topics.moved_starts]
        changed = {**self._grown, **dict.fromkeys(partition for partition in moved if partition is not None)}
        self._contents.note({**self._log_extents(changed), **journals})
        self._is_unsynced = self._syncs
        self._grown.clear()
        self._topics.moved_starts.clear()
        self._note_counts(journals)

    def _note_counts(self, journals: Mapping[str, Extent]) -> None:
        self._counts = {path: extent.written for path, extent in journals.items()}
        self._empty = [journal for path, journal in self._journals.items() if not self._counts[path]]

    def _log_extents(self, partitions: Iterable[Partition]) -> dict[str, Extent]:
        there = self._topics.partition
        return {partition.log.directory: partition.log.extent for partition in partitions if there(*partition.topic_partition) is partition}

    def _journal_extents(self) -> dict[str, Extent]:
        return {path: Extent(0, journal.count if journal.is_synced else 0, journal.count) for path, journal in self._journals.items()}
