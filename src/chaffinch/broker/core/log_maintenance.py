"""Log maintenance: retention and compaction as a scheduled task that works in slices and checks only partitions that may need it.

A partition is checked when a new segment begins, when its options change, when its oldest records reach their maximum age, and when the
wall clock, which determines their age, is set (`TopicRegistry.request_maintenance`); never just because time passes. Retention is checked
on a grid of `log.retention.check.interval.ms`, compaction on one of `log.cleaner.backoff.ms`, as in Apache Kafka. One log is compacted at a
time, the one with the largest dirty ratio first; see `storage/compaction.py`. A second task expires producers.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chaffinch.broker.core.topics.registry import Partition, TopicRegistry
from chaffinch.identifiers import TopicPartition
from chaffinch.records.errors import RecordsError
from chaffinch.storage import retention
from chaffinch.storage.compaction import SLICE_BYTES, Cleanable, Compaction, cleanable
from chaffinch.storage.files import CorruptLog, StorageError
from chaffinch.storage.wall_time import WallTime

LOGGER = logging.getLogger(__name__)

NOTICED_PER_CALL = 1_000
WORK_PER_CALL = 50
"""Limit of work units in one call, for retention and for compaction checks separately: about 10 ms. Checking a partition and deleting a
segment count 1 each."""
WORK_OF_A_CHANGE = 10
"""Work units of a log whose segments are deleted or whose active segment is rolled: several of its files are synced."""
PAUSE_MS = 1
"""Pause between two slices of a compaction, in which requests are handled."""
RETRY_DOUBLINGS_MAX = 6
"""After a disk error, compaction or its cleanup is retried after 1, 2, 4 ... 64 times `log.cleaner.backoff.ms`: each attempt starts over,
and on a full disk it would read and write everything without success."""


class LogMaintenance:
    """See the module docstring. Disk errors are retried with increasing intervals; a damaged log is not compacted again until the next
    start.
    """

    def __init__(self, topics: TopicRegistry, settings: Mapping[str, Any], wall: WallTime, steady_ms: int) -> None:
        self._topics = topics
        self._settings = settings
        self._wall = wall
        self._steady_ms = steady_ms
        self._retention = _DueTimes(steady_ms, lambda: settings["log.retention.check.interval.ms"])
        self._compaction = _DueTimes(steady_ms, lambda: self._backoff_ms)
        self._dirty: dict[TopicPartition, float] = {}
        self._damaged: set[str] = set()  # Directories: a new topic of the same name has a different one.
        self._failed: dict[str, tuple[int, int]] = {}  # Directory -> number of consecutive failures, and time (ms) of the next attempt.
        self._job: _Job | None = None
        self._slice_ms = steady_ms
        self._next_ms: int | None = None  # Cached by `run_due`, since it is read after every request.

    @property
    def _backoff_ms(self) -> int:
        """At least 1: with 0 a log that cannot be compacted would be retried without a pause."""
        return max(1, int(self._settings["log.cleaner.backoff.ms"]))

    @property
    def next_deadline_ms(self) -> int | None:
        return self._steady_ms if self._topics.maintenance_queue else self._next_ms

    def run_due(self, steady_ms: int) -> Sequence[str]:
        self._steady_ms = steady_ms
        lines: list[str] = []
        self._notice()
        for due, check in ((self._retention, self._check_retention), (self._compaction, self._check_compaction)):
            work = 0
            while work < WORK_PER_CALL and (topic_partition := due.take(steady_ms)) is not None:
                work += 1 + check(topic_partition, steady_ms, lines)
        if self._slice_ms <= steady_ms:
            self._compact(steady_ms, lines)
        deadlines = [self._retention.next_ms, self._compaction.next_ms, self._slice_ms if self._job or self._dirty else None]
        self._next_ms = min((deadline for deadline in deadlines if deadline is not None), default=None)
        return lines

    def _notice(self) -> None:
        wanted = self._topics.maintenance_queue
        for topic_partition in wanted[-NOTICED_PER_CALL:]:
            self._retention.put(topic_partition, self._steady_ms)
            self._compaction.put(topic_partition, self._steady_ms)
        del wanted[-NOTICED_PER_CALL:]

    # Retention --------------------------------------------------------------------------------------------------------------------------

    def _check_retention(self, topic_partition: TopicPartition, steady_ms: int, lines: list[str]) -> int:
        """Returns how much work there was."""
        partition = self._topics.partition(*topic_partition)
        if partition is None:
            return 0
        try:
            count = partition.log.delete_old_segments(steady_ms, WORK_PER_CALL)
        except StorageError as error:
            lines.append(f"old records of {topic_partition} cannot be deleted now: {error}")
            self._retention.put(topic_partition, steady_ms)
            return WORK_OF_A_CHANGE
        if count == WORK_PER_CALL:  # There may be more.
            self._retention.put_back(topic_partition, steady_ms)
            return count
        due_ms = retention.next_expiry_ms(partition.log.files.segments, partition.log.config)
        if due_ms is not None:
            # Records above the high watermark cannot be deleted yet and are due again later.
            self._retention.put(topic_partition, max(self._wall.when(due_ms), steady_ms))
        return count + WORK_OF_A_CHANGE if count else 0

    # Compaction -------------------------------------------------------------------------------------------------------------------------

    def _check_compaction(self, topic_partition: TopicPartition, steady_ms: int, lines: list[str]) -> int:
        """Returns how much work there was."""
        partition = self._topics.partition(*topic_partition)
        if partition is None:
            return 0
        has_swap = partition.log.files.state.swap is not None and (self._job is None or self._job.partition is not partition)
        if not has_swap and not (partition.log.config.compacts and self._settings["log.cleaner.enable"]):
            return 0
        directory = partition.log.directory
        if directory in self._damaged:
            return 0
        again_ms = self._failed.get(directory, (0, steady_ms))[1]
        if again_ms > steady_ms:
            self._compaction.put(topic_partition, again_ms - 1)
            return 0
        try:
            if has_swap:  # An error or a completed compaction has left replaced files behind.
                if partition.log.files.end_swap(WORK_PER_CALL):
                    self._failed.pop(directory, None)
                self._compaction.put_back(topic_partition, steady_ms)
                return WORK_PER_CALL
            found = self._cleanable(partition, steady_ms)
            is_rolled = found.must_roll
            if is_rolled:
                partition.log.roll(steady_ms)
                found = self._cleanable(partition, steady_ms)
        except StorageError as error:
            self._put_off(partition, error, steady_ms, lines)
            return WORK_OF_A_CHANGE
        if found.is_due(partition.log.config):
            self._dirty[topic_partition] = found.dirty_ratio
        elif found.check_again_ms is not None:
            self._compaction.put(topic_partition, self._wall.when(found.check_again_ms))
        return WORK_OF_A_CHANGE if is_rolled else 0

    def _cleanable(self, partition: Partition, steady_ms: int) -> Cleanable:
        log = partition.log
        return cleanable(log.files.segments, log.files.state, log.config, log.last_stable_offset, self._wall.at(steady_ms))

    def _compact(self, steady_ms: int, lines: list[str]) -> None:
        """Run one slice of the current compaction; start the next compaction if there is none."""
        job = self._job
        if job is not None and self._topics.partition(*job.partition.topic_partition) is not job.partition:
            job.compaction.abandon()
            job = self._job = None
        if job is None:
            job = self._job = self._next_job(steady_ms, lines)
        if job is None:
            return
        try:
            is_done = job.compaction.step()
        except (StorageError, RecordsError) as error:
            self._job = None
            self._put_off(job.partition, error, steady_ms, lines)
        else:
            if is_done:
                read, written = job.compaction.bytes_read, job.compaction.bytes_written
                LOGGER.info("%s is compacted: %d bytes read, %d written", job.partition.topic_partition, read, written)
                self._failed.pop(job.partition.log.directory, None)
                self._job = None
                self._compaction.put(job.partition.topic_partition, steady_ms)
        self._slice_ms = steady_ms + max(PAUSE_MS, int(1000 * SLICE_BYTES / self._settings["log.cleaner.io.max.bytes.per.second"]))

    def _next_job(self, steady_ms: int, lines: list[str]) -> _Job | None:
        while self._dirty:
            topic_partition = max(self._dirty, key=self._dirty.__getitem__)
            del self._dirty[topic_partition]
            partition = self._topics.partition(*topic_partition)
            if partition is None:
                continue
            try:
                found = self._cleanable(partition, steady_ms)
            except StorageError as error:
                self._put_off(partition, error, steady_ms, lines)
                continue
            if found.is_due(partition.log.config) and self._settings["log.cleaner.enable"]:  # Check again: options may have changed.
                map_bytes_max = self._settings["log.cleaner.dedupe.buffer.size"]
                wall_ms = self._wall.at(steady_ms)
                return _Job(partition, Compaction(partition.log, found.end_offset, wall_ms, map_bytes_max=map_bytes_max))
        return None

    def _put_off(self, partition: Partition, error: StorageError | RecordsError, steady_ms: int, lines: list[str]) -> None:
        """Postpone a failed compaction with increasing intervals; permanently if the log is damaged."""
        lines.append(f"compaction of {partition.topic_partition} failed: {error}")
        directory = partition.log.directory
        if isinstance(error, CorruptLog | RecordsError):
            self._damaged.add(directory)
        times = self._failed.get(directory, (0, 0))[0]
        wait_ms = self._backoff_ms << min(times, RETRY_DOUBLINGS_MAX)
        self._failed[directory] = times + 1, steady_ms + wait_ms
        self._compaction.put(partition.topic_partition, steady_ms)


class _Job:
    """A compaction in progress."""

    __slots__ = ("compaction", "partition")

    def __init__(self, partition: Partition, compaction: Compaction) -> None:
        self.partition = partition
        self.compaction = compaction


class _DueTimes:
    """Due times of partitions on a grid of `interval_ms()`, which may change; the latest call for a partition applies."""

    def __init__(self, start_ms: int, interval_ms: Callable[[], int]) -> None:
        self._start_ms = start_ms
        self._interval_ms = interval_ms
        self._due: dict[TopicPartition, int] = {}
        self._heap: list[tuple[int, TopicPartition]] = []

    @property
    def next_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def put(self, topic_partition: TopicPartition, due_ms: int) -> None:
        """Schedule at the first grid point after `due_ms`."""
        interval_ms = self._interval_ms()
        self.put_back(topic_partition, self._start_ms + ((due_ms - self._start_ms) // interval_ms + 1) * interval_ms)

    def put_back(self, topic_partition: TopicPartition, due_ms: int) -> None:
        """Schedule exactly at `due_ms`: the work was not finished."""
        if self._due.get(topic_partition) != due_ms:
            self._due[topic_partition] = due_ms
            heapq.heappush(self._heap, (due_ms, topic_partition))

    def take(self, steady_ms: int) -> TopicPartition | None:
        """Remove and return a due partition; None if there is none."""
        while self._heap and self._heap[0][0] <= steady_ms:
            due_ms, topic_partition = heapq.heappop(self._heap)
            if self._due.get(topic_partition) == due_ms:
                del self._due[topic_partition]
                return topic_partition
        return None


PARTITIONS_PER_CALL = 500
"""Partitions per call: the broker handles requests between two calls."""


class ProducerExpiry:
    """Scheduled task that expires producers which have written nothing to a partition for `producer.id.expiration.ms` (ProducerStateManager
    in Kafka). Every `producer.id.expiration.check.interval.ms` it checks all partitions, a limited number per call.

    Idle time is the broker's steady time since the producer's last append. Apache Kafka compares with record timestamps, so there a
    producer that writes old events expires while it writes.
    """

    def __init__(self, topics: TopicRegistry, settings: Mapping[str, Any], steady_ms: int) -> None:
        self._topics = topics
        self._settings = settings
        self._left: list[TopicPartition] = []
        self.next_deadline_ms = steady_ms + self._interval_ms

    def run_due(self, steady_ms: int) -> list[str]:
        """Check the next partitions. Returns no log lines: expired producers are routine."""
        if not self._left:
            self._left = [partition.topic_partition for partition in self._topics.partitions()]
        for tp in self._left[-PARTITIONS_PER_CALL:]:
            partition = self._topics.partition(*tp)
            if partition is not None:
                self._forget(partition, steady_ms)
        del self._left[-PARTITIONS_PER_CALL:]
        self.next_deadline_ms = steady_ms if self._left else steady_ms + self._interval_ms
        return []

    def _forget(self, partition: Partition, steady_ms: int) -> None:
        partition.log.forget_idle_producers(steady_ms, self._settings["producer.id.expiration.ms"])

    @property
    def _interval_ms(self) -> int:
        interval_ms: int = self._settings["producer.id.expiration.check.interval.ms"]
        return interval_ms
