"""Contents recorder: records the extent of logs and journals, so that the next start can detect missing files or records; see
`storage/contents.py`.

A log or journal is recorded in the same turn in which it receives its first entries, and with `flush.policy=always` in each turn that syncs
it. All others are recorded together, at most once in `INTERVAL_MS`. Recording does not sync, except with `always`: once in
`SYNC_INTERVAL_MS` for all records together. A failed record, for example on a full disk, is retried.

The first record of a process covers everything and is synced. Until it succeeds there are no others.
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
"""Retry interval after a failure."""


class ContentsRecorder:
    """See the module docstring. `journals`: by path. `syncs`: each turn ends with a sync, followed by `record_now`. `directory` is complete
    with the first record.
    """

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
        self._counts = dict.fromkeys(journals, 0)  # As recorded.
        self._empty: list[Journal] = []  # Journals without recorded entries.
        self._grown: dict[Partition, None] = {}
        self._next_ms = steady_ms
        self._syncs = syncs
        self._is_unsynced = False  # Only with `syncs`.
        self._next_sync_ms = steady_ms
        self._failure_reported = False  # Since the last success.

    def begin(self) -> None:
        """Record everything. Durable on return. Raises StorageError."""
        journals = self._journal_extents()
        self._contents.begin({**self._log_extents(self._topics.partitions()), **journals})
        self._directory.complete()
        self._note_counts(journals)

    def grow(self, partitions: Iterable[Partition]) -> None:
        """Mark partitions that received records."""
        is_first = False
        for partition in partitions:
            if partition not in self._grown:
                self._grown[partition] = None
                is_first = is_first or partition.log.directory not in self._contents
        if is_first and not self._syncs:
            self.record_now()

    def check_journals(self) -> None:
        """Record now if a journal has received its first entries."""
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
        """Record all changes. A failure is retried later."""
        if self._contents.is_begun and self._has_changes:
            with suppress(StorageError):
                self._note()

    def run_due(self, steady_ms: int) -> Sequence[str]:
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
            return [] if was_reported else [f"the next start may not detect files that are lost from now on: {error}"]
        self._next_ms = steady_ms + INTERVAL_MS
        self._failure_reported = False
        return []

    def close(self) -> None:
        """Record the ends of all logs and journals after they are closed, and therefore synced. Raises StorageError."""
        with suppress(StorageError):  # The next start then expects less.
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
