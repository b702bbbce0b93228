"""One partition's log as its readers see it: what stands where, and how far they may see.

Nothing here changes what is on disk; `partition_log.PartitionLog` adds all that does.
"""

from typing import NamedTuple

from chaffinch.identifiers import TopicPartition
from chaffinch.storage import leader_epochs
from chaffinch.storage.aborted_transactions import overlapping
from chaffinch.storage.files import BytesLike, FileSystem
from chaffinch.storage.log_config import LogConfig
from chaffinch.storage.log_files import LogFiles
from chaffinch.storage.producer_sequences import CompletedTransaction, OngoingTransaction, ProducerSequences
from chaffinch.storage.recovery import RecoveredLog
from chaffinch.storage.segment import Found
from chaffinch.storage.timestamps import Timestamps


class LogPosition(NamedTuple):
    """A place in a log's files: the base offset of a segment, and a byte in it. Bytes are counted within one segment only."""

    segment: int
    position: int


class OffsetOutOfRange(Exception):
    """A read below the log's start or beyond its end."""

    def __init__(self, topic_partition: TopicPartition, offset: int, log_start_offset: int, log_end_offset: int) -> None:
        super().__init__(topic_partition, offset, log_start_offset, log_end_offset)
        self.topic_partition = topic_partition
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset

    def __str__(self) -> str:
        return f"offset {self.offset} of {self.topic_partition} is not between {self.log_start_offset} and {self.log_end_offset}"


class ReadableLog:
    """See the module. `config` may be replaced at any time. Offsets in `[log_start_offset, log_end_offset)` can be read."""

    __slots__ = (
        "_files",
        "_high_watermark",
        "_producers",
        "_segments",
        "_undecided",
        "config",
        "directory",
        "log_end_offset",
        "log_start_offset",
        "topic_partition",
    )

    def __init__(
        self, file_system: FileSystem, directory: str, topic_partition: TopicPartition, config: LogConfig, recovered: RecoveredLog
    ) -> None:
        self.topic_partition = topic_partition
        self.config = config
        self.directory = directory
        self.log_start_offset = recovered.log_start_offset
        self.log_end_offset = recovered.log_end_offset
        self._files = LogFiles(file_system, directory, recovered)
        self._segments = self._files.segments  # The very list.
        self._producers = recovered.producers
        self._high_watermark: int | None = None
        self._undecided: list[CompletedTransaction] = []  # Ended, but the marker is not yet below the high watermark.

    def find(self, offset: int, bytes_max: int, upper_bound_offset: int | None = None, at_least_one: bool = True) -> Found | None:
        """Whole batches from the one that holds `offset`, at most `bytes_max` bytes of them and none that begins at `upper_bound_offset`
        (default: the log's end) or later. `at_least_one`: the first batch comes even if it is larger. The first batch may begin before
        `offset`. All from one segment. Raises OffsetOutOfRange, StorageError; None at the upper bound.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(self.topic_partition, offset, self.log_start_offset, self.log_end_offset)
        end = self.log_end_offset if upper_bound_offset is None else min(upper_bound_offset, self.log_end_offset)
        if offset >= end:
            return None
        for segment in self._files.from_offset(offset):
            found = segment.find(offset, bytes_max, end, at_least_one=at_least_one)
            if found is not None or not at_least_one or segment.end_offset >= end:
                return found
        return None

    def read(self, offset: int, bytes_max: int, upper_bound_offset: int | None = None, at_least_one: bool = True) -> list[BytesLike]:
        """The bytes of what `find` finds; empty where it finds nothing."""
        found = self.find(offset, bytes_max, upper_bound_offset, at_least_one)
        return [] if found is None else [bytes(found.records)]

    def position_of(self, offset: int) -> LogPosition:
        """Where a read at `offset` begins; without a look at the file when that is the log's end. Raises StorageError."""
        if offset >= self.log_end_offset:
            last = self._segments[-1] if self._segments else None
            return LogPosition(self.log_end_offset, 0) if last is None else LogPosition(last.base_offset, last.size)
        segment = self._files.from_offset(offset)[0]
        return LogPosition(segment.base_offset, segment.position_of(offset))

    def epoch_at(self, offset: int) -> int:
        """The leader epoch of the batch that holds `offset`, or of the first after it; -1 at the log's end. Raises StorageError."""
        return leader_epochs.epoch_at(self._files.segments, offset)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """(the largest leader epoch in the log up to `epoch`, the offset at which a later one begins). Raises StorageError."""
        return leader_epochs.end_of_epoch(self._files.segments, epoch, self.log_start_offset, self.log_end_offset)

    def max_timestamp(self) -> int:
        """The largest timestamp (ms) of a record from the log's start on; -1 while there is none. Raises StorageError."""
        return self._timestamps.latest()

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record whose timestamp (ms) is `timestamp` or later; None if there is none."""
        return self._timestamps.first_from(timestamp)

    @property
    def _timestamps(self) -> Timestamps:
        return Timestamps(self._files.from_offset(self.log_start_offset), self.log_start_offset, self.config.decompressed_bytes_max)

    # How far readers may see.

    @property
    def high_watermark(self) -> int:
        """Offsets below it are on every in-sync replica: the log's end, unless somebody said otherwise."""
        return self.log_end_offset if self._high_watermark is None else self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int | None) -> None:
        """None: follow the log's end again."""
        if offset is not None and not self.log_start_offset <= offset <= self.log_end_offset:
            raise ValueError(
                f"high watermark {offset} of {self.topic_partition} is not within its log, which ends at {self.log_end_offset}"
            )
        self._high_watermark = offset
        self._undecided = [completed for completed in self._undecided if completed.last_offset >= self.high_watermark]

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided: where the oldest open one begins, or the high watermark."""
        stable = self.high_watermark
        first_ongoing = self._producers.first_ongoing_offset
        if first_ongoing is not None and first_ongoing < stable:
            stable = first_ongoing
        for completed in self._undecided:
            stable = min(stable, completed.first_offset)
        return max(stable, self.log_start_offset)

    def aborted_transactions(self, fetch_offset: int, upper_bound_offset: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of aborted transactions with records in `[fetch_offset, upper_bound_offset)`, for a Fetch answer."""
        return overlapping((segment.aborted for segment in self._files.from_offset(fetch_offset)), fetch_offset, upper_bound_offset)

    def has_ongoing_transaction(self, producer_id: int, epoch: int | None = None) -> bool:
        """With `epoch`: whether this very epoch of the producer writes it."""
        return self._producers.has_ongoing(producer_id, epoch)

    def ongoing_transactions(self) -> list[OngoingTransaction]:
        """Oldest first."""
        return list(self._producers.ongoing())

    @property
    def producers(self) -> ProducerSequences:
        """To look at, not to change."""
        return self._producers

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def files(self) -> LogFiles:
        """What the log consists of on disk: for compaction."""
        return self._files
