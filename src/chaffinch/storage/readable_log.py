"""Read side of a partition log: positions, high watermark, last stable offset, leader epochs, timestamps.

Nothing here changes the disk; the subclass `partition_log.PartitionLog` does.

Leader epochs ascend along a log and are part of every batch header, so they are found by bisection: a few header reads, and no extra file
(Apache Kafka keeps a file of epochs for each log).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from chaffinch.identifiers import NO_TIMESTAMP, TopicPartition
from chaffinch.records.batch import BatchView, decode
from chaffinch.records.batch_header import BatchHeader
from chaffinch.storage.aborted_transactions import overlapping
from chaffinch.storage.files import BytesLike, FileSystem
from chaffinch.storage.log_config import LogConfig
from chaffinch.storage.log_files import LogFiles
from chaffinch.storage.producer_sequences import CompletedTransaction, OngoingTransaction, ProducerSequences
from chaffinch.storage.recovery import RecoveredLog
from chaffinch.storage.segment import Found, Segment


class LogPosition(NamedTuple):
    """A position in a log's files: base offset of a segment, and a byte within that segment."""

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
    """See the module docstring. `config` may be replaced at any time. Offsets in `[log_start_offset, log_end_offset)` can be read."""

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
        self._segments = self._files.segments  # The same list object.
        self._producers = recovered.producers
        self._high_watermark: int | None = None
        self._undecided: list[CompletedTransaction] = []  # Ended by a marker that is not yet below the high watermark.

    def find(self, offset: int, bytes_max: int, upper_bound_offset: int | None = None, at_least_one: bool = True) -> Found | None:
        """Whole batches from the one that holds `offset` on, all from one segment; None at the upper bound.

        At most `bytes_max` bytes, and no batch that begins at `upper_bound_offset` (default: the log's end) or later. `at_least_one`:
        return the first batch even if it is larger. The first batch may begin before `offset`. Raises OffsetOutOfRange, StorageError.
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
        """The bytes of the result of `find`; empty if there is none."""
        found = self.find(offset, bytes_max, upper_bound_offset, at_least_one)
        return [] if found is None else [bytes(found.records)]

    def position_of(self, offset: int) -> LogPosition:
        """Position at which a read of `offset` begins; at the log's end without a file access. Raises StorageError."""
        if offset >= self.log_end_offset:
            last = self._segments[-1] if self._segments else None
            return LogPosition(self.log_end_offset, 0) if last is None else LogPosition(last.base_offset, last.size)
        segment = self._files.from_offset(offset)[0]
        return LogPosition(segment.base_offset, segment.position_of(offset))

    def epoch_at(self, offset: int) -> int:
        """The leader epoch of the batch that holds `offset`, or of the first after it; -1 at the log's end. Raises StorageError."""
        return epoch_at(self._files.segments, offset)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """(the largest leader epoch in the log up to `epoch`, the offset at which a later one begins). Raises StorageError."""
        return end_of_epoch(self._files.segments, epoch, self.log_start_offset, self.log_end_offset)

    def max_timestamp(self) -> int:
        """The largest timestamp (ms) of a record from the log's start on; -1 while there is none. Raises StorageError."""
        return self._timestamps.latest()

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record whose timestamp (ms) is `timestamp` or later; None if there is none."""
        return self._timestamps.first_from(timestamp)

    @property
    def _timestamps(self) -> Timestamps:
        return Timestamps(self._files.from_offset(self.log_start_offset), self.log_start_offset, self.config.decompressed_bytes_max)

    # Upper bounds for readers.

    @property
    def high_watermark(self) -> int:
        """Offsets below it are on every in-sync replica: the log's end, unless it was set."""
        return self.log_end_offset if self._high_watermark is None else self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int | None) -> None:
        """Set the high watermark; None follows the log's end again."""
        if offset is not None and not self.log_start_offset <= offset <= self.log_end_offset:
            raise ValueError(
                f"high watermark {offset} of {self.topic_partition} is not within its log, which ends at {self.log_end_offset}"
            )
        self._high_watermark = offset
        self._undecided = [completed for completed in self._undecided if completed.last_offset >= self.high_watermark]

    @property
    def last_stable_offset(self) -> int:
        """Offset below which every transaction is decided: start of the oldest open one, or the high watermark."""
        stable = self.high_watermark
        first_ongoing = self._producers.first_ongoing_offset
        if first_ongoing is not None and first_ongoing < stable:
            stable = first_ongoing
        for completed in self._undecided:
            stable = min(stable, completed.first_offset)
        return max(stable, self.log_start_offset)

    def aborted_transactions(self, fetch_offset: int, upper_bound_offset: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of aborted transactions with records in `[fetch_offset, upper_bound_offset)`, for a Fetch
        response.
        """
        return overlapping((segment.aborted for segment in self._files.from_offset(fetch_offset)), fetch_offset, upper_bound_offset)

    def has_ongoing_transaction(self, producer_id: int, epoch: int | None = None) -> bool:
        """Whether the producer has an open transaction; with `epoch`, whether this epoch wrote it."""
        return self._producers.has_ongoing(producer_id, epoch)

    def ongoing_transactions(self) -> list[OngoingTransaction]:
        """Oldest first."""
        return list(self._producers.ongoing())

    @property
    def producers(self) -> ProducerSequences:
        """Producer state, read-only."""
        return self._producers

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def files(self) -> LogFiles:
        """The log's files, for compaction."""
        return self._files


class Timestamps:
    """Timestamp look-ups over the records from `log_start_offset` on in `segments`, the last ones of a log.

    Batches are decompressed up to `decompressed_bytes_max`. All methods raise StorageError.
    """

    __slots__ = ("_decompressed_bytes_max", "_log_start_offset", "_segments")

    def __init__(self, segments: Sequence[Segment], log_start_offset: int, decompressed_bytes_max: int) -> None:
        self._segments = segments
        self._log_start_offset = log_start_offset
        self._decompressed_bytes_max = decompressed_bytes_max

    def latest(self) -> int:
        """The largest timestamp (ms); -1 if there is none."""
        segments = self._segments
        latest = max((segment.max_timestamp for segment in segments[1:]), default=NO_TIMESTAMP)
        if not segments or segments[0].max_timestamp <= latest:
            return latest
        if segments[0].base_offset >= self._log_start_offset:
            return segments[0].max_timestamp
        return max(latest, self._latest_from_start(segments[0]))

    def _latest_from_start(self, segment: Segment) -> int:
        """The largest timestamp of a segment whose first records were deleted."""
        latest = NO_TIMESTAMP
        for position, header in segment.headers(segment.position_of(self._log_start_offset)):
            if header.base_offset >= self._log_start_offset and header.count:
                latest = max(latest, header.max_timestamp)
            elif header.max_timestamp > latest:
                times = [found for offset, found in self._of_batch(segment, position, header) if offset >= self._log_start_offset]
                latest = max(times, default=latest)
        return latest

    def first_from(self, timestamp: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record whose timestamp (ms) is `timestamp` or later; None if there is none."""
        for segment in self._segments:
            if segment.max_timestamp >= timestamp:
                for position, header in segment.headers(segment.index.floor_timestamp(timestamp)[1]):
                    if header.max_timestamp >= timestamp and header.last_offset >= self._log_start_offset:
                        found = self._first_in_batch(segment, position, header, timestamp)
                        if found is not None:
                            return found
        return None

    def _first_in_batch(self, segment: Segment, position: int, header: BatchHeader, timestamp: int) -> tuple[int, int] | None:
        for offset, found in self._of_batch(segment, position, header):
            if found >= timestamp and offset >= self._log_start_offset:
                return offset, found
        return None

    def _of_batch(self, segment: Segment, position: int, header: BatchHeader) -> Iterator[tuple[int, int]]:
        """(offset, timestamp) of each record."""
        view = BatchView(memoryview(segment.log.read(position, header.size)), header)
        columns = decode(view, decompressed_bytes_max=self._decompressed_bytes_max)
        assert columns.offsets is not None, "decode gives every record its offset"
        return zip(columns.offsets.tolist(), columns.timestamps.tolist(), strict=True)


NO_EPOCH = -1


def epoch_at(segments: Sequence[Segment], offset: int) -> int:
    """The epoch of the batch that holds `offset`, or of the first after it; NO_EPOCH where there is none."""
    header = _first_from(segments, offset)
    return NO_EPOCH if header is None else header.leader_epoch


def end_of_epoch(segments: Sequence[Segment], epoch: int, log_start_offset: int, log_end_offset: int) -> tuple[int, int]:
    """(the largest epoch in the log up to `epoch`, the offset at which a later one begins).

    If all epochs are later: `epoch` itself and the offset of the log's first record, as in Apache Kafka. Records below the log's start do
    not count, even if their segment still exists.
    """
    first = _first_from(segments, log_start_offset)
    if first is None:
        return epoch, log_end_offset
    if epoch < first.leader_epoch:
        return epoch, max(first.base_offset, log_start_offset)
    written = [segment for segment in segments if segment.size]
    number = bisect_right(written, epoch, key=lambda segment: segment.header_at(0).leader_epoch)
    segment = written[number - 1]
    entry = bisect_right(range(len(segment.index)), epoch, key=lambda at: segment.header_at(segment.index.position(at)).leader_epoch)
    found = NO_EPOCH
    # A loaded index may lack the first batches of its segment, or all of a small one's.
    for _, header in segment.headers(segment.index.position(entry - 1) if entry else 0):
        if header.leader_epoch > epoch:
            return found, header.base_offset
        found = header.leader_epoch
    return found, written[number].base_offset if number < len(written) else log_end_offset


def _first_from(segments: Sequence[Segment], offset: int) -> BatchHeader | None:
    """Header of the batch that holds `offset`, or of the first after it."""
    number = max(0, bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1)
    for segment in segments[number:]:
        position = segment.position_of(offset)
        if position < segment.size:
            return segment.header_at(position)
    return None
