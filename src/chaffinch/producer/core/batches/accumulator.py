"""Record accumulator: collects records into batches by partition, holds ready-made batches of tables, and accounts for buffer memory.

A plain object: the caller's lock makes it thread-safe, and the caller waits when memory is short. Follows RecordAccumulator.java: a batch
is ready when it is full, when `linger.ms` has passed for its oldest record, on a flush, or when memory has run out. Batches of a partition
are sent in the order of their records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core.batches.batch import BatchFutures, NewRecord, ProducerBatch, all_shown_keys
from chaffinch.producer.records import Headers
from chaffinch.records.batch import encode, encode_filling, encode_measured
from chaffinch.records.columns import HEADER_OVERHEAD_BYTES, RECORD_OVERHEAD_BYTES, RecordColumns
from chaffinch.records.compression import Compression
from chaffinch.records.few_records import FEW_RECORDS, encode_few

BATCH_OVERHEAD_BYTES = 61


@lru_cache(maxsize=FEW_RECORDS)
def _few_rows(count: int) -> npt.NDArray[np.int64]:
    rows = np.arange(count, dtype=np.int64)
    rows.flags.writeable = False  # Shared by many batches.
    return rows


def all_rows(count: int) -> npt.NDArray[np.int64]:
    """The rows of a batch that holds all records of its outcome sink."""
    return _few_rows(count) if count <= FEW_RECORDS else np.arange(count, dtype=np.int64)


def record_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Upper bound of a record's bytes in a batch, uncompressed."""
    size = RECORD_OVERHEAD_BYTES + (len(key) if key else 0) + (len(value) if value else 0)
    for name, content in headers:
        size += HEADER_OVERHEAD_BYTES + len(name if name.isascii() else name.encode()) + (len(content) if content else 0)
    return size


class Appended(Enum):
    """The effect of a new record on the partition's batches: it joined one, began one, or filled one."""

    JOINED = "joined"
    BEGAN = "began"
    FILLED = "filled"


class Encoded(NamedTuple):
    """An encoded batch, without producer id, epoch and sequence."""

    timestamps: npt.NDArray[np.int64]
    data: bytearray


@dataclass(slots=True, eq=False)
class OpenBatch:
    """A batch that still accepts records: Python lists, which become columns when the batch is taken, because `send` must be fast.

    Five lists rather than one list of tuples: each tuple would be one more object for the garbage collector to visit.
    """

    created_ms: int
    position: int
    bytes_max: int
    """Size limit: a record that would exceed it closes the batch. 0 once the batch is closed, or must be."""
    size: int = BATCH_OVERHEAD_BYTES
    counted: int = 0
    """Bytes of it that the partitioner has counted."""
    futures: BatchFutures = field(default_factory=BatchFutures)
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    headers: dict[int, Headers] = field(default_factory=dict)
    given: list[int] = field(default_factory=list)
    """Indices of the records whose callers named the partition; the producer chose it for the others."""
    encoded: Encoded | None = None
    """The encoded batch, if `encode_ahead` has made it already."""

    def append(self, record: NewRecord) -> None:
        """Add a record. The last step appends its future: from then on the record is part of the batch."""
        try:
            if record.partition is not None:
                self.given.append(len(self.keys))
            if record.headers:
                self.headers[len(self.keys)] = record.headers
            self.keys.append(record.key)
            self.values.append(record.value)
            self.timestamps.append(record.timestamp_ms)
            self.futures.append(record.future)
        except BaseException:  # KeyboardInterrupt: an incomplete record stays at the end until `trim`, so no other may follow it.
            self.bytes_max = 0
            raise
        self.size += record.size

    def trim(self) -> None:
        """Remove an incomplete record, which has no future."""
        count = len(self.futures)
        for column in (self.keys, self.values, self.timestamps):
            del column[count:]

    @property
    def memory_bytes(self) -> int:
        return self.size - BATCH_OVERHEAD_BYTES

    def columns(self) -> RecordColumns:
        """The records, copied."""
        headers = [self.headers.get(index, ()) for index in range(len(self.keys))] if self.headers else None
        return RecordColumns.from_lists(self.keys, self.values, self.timestamps, headers)


def _chosen(open_batch: OpenBatch) -> bool | npt.NDArray[np.bool_]:
    """Whether the producer chose the partition of the records, as in `ProducerBatch.chosen`."""
    given, count = open_batch.given, len(open_batch.futures)
    if not given or len(given) == count:
        return not given
    chosen = np.ones(count, bool)
    chosen[[index for index in given if index < count]] = False
    return chosen


@dataclass(slots=True, eq=False)
class WaitingQueue:
    """Unsent batches of one partition: closed ones, then the one that still accepts records."""

    closed: deque[ProducerBatch | OpenBatch] = field(default_factory=deque)
    growing: OpenBatch | None = None
    closed_until: int = 0
    """The position after the last record of the closed batches."""

    @property
    def position_next(self) -> int:
        return self.closed_until if self.growing is None else self.growing.position + len(self.growing.futures)

    @property
    def head(self) -> ProducerBatch | OpenBatch | None:
        """The batch that is taken next."""
        return self.closed[0] if self.closed else self.growing

    def oldest_ms(self) -> int | None:
        head = self.closed[0] if self.closed else self.growing
        return None if head is None else head.created_ms

    # Called on callers' threads, too, where KeyboardInterrupt can come at any call: see `chaffinch.client.condition`. So assignments that
    # belong together contain no call (`+=`, not `append`).

    def close(self) -> None:
        growing, position_next = self.growing, self.position_next
        if growing is not None:
            self.closed += (growing,)
            growing.bytes_max, self.closed_until, self.growing = 0, position_next, None

    def add(self, batch: ProducerBatch) -> None:
        """Add a batch that is closed already."""
        self.close()
        count = batch.count
        batch.position = self.closed_until
        self.closed_until += count
        self.closed += (batch,)


class Claim:
    """A caller's place in the queue for memory. `missing_bytes`: how much of `size` is not reserved yet."""

    __slots__ = ("missing_bytes", "size")

    def __init__(self, size: int) -> None:
        self.size = self.missing_bytes = size


class Accumulator:
    """Records by partition, until they are taken. Appending a record lowers `memory_free`; `release` raises it again.

    Memory that becomes free is reserved for waiting callers in first-come order (BufferPool.java). Otherwise a caller that needs much
    memory would never get it while others need little.
    """

    def __init__(
        self,
        *,
        batch_bytes: int,
        linger_ms: int,
        memory_bytes: int,
        compression: Compression = Compression.NONE,
        level: int | None = None,
    ) -> None:
        self._batch_bytes = batch_bytes
        self._linger_ms = linger_ms
        self._compression = compression
        self._level = level
        self.memory_bytes = memory_bytes
        self.memory_free = memory_bytes
        """Bytes that are neither held by records nor reserved for a waiting caller."""
        self._claims: deque[Claim] = deque()
        self._queues: dict[TopicPartition, WaitingQueue] = {}
        self._busy: dict[TopicPartition, None] = {}
        """Partitions with unsent records, in the order in which they got their first one."""

    @property
    def is_empty(self) -> bool:
        return not self._busy

    @property
    def lingers(self) -> bool:
        """Whether a batch still waits for `linger.ms`, which a flush would send at once."""
        return any(self._queues[topic_partition].growing is not None for topic_partition in self._busy)

    def partitions(self) -> list[TopicPartition]:
        """Partitions with unsent records."""
        return list(self._busy)

    def append(self, topic_partition: TopicPartition, record: NewRecord, steady_ms: int) -> tuple[Appended, BatchFutures]:
        """Add one record; there must be memory for it. Its future is the last of those returned."""
        queue = self.queue_of(topic_partition)
        growing, appended = queue.growing, Appended.JOINED
        if growing is not None and growing.size + record.size > growing.bytes_max:
            queue.close()
            growing, appended = None, Appended.FILLED
        if growing is None:
            if appended is Appended.JOINED:
                appended = Appended.BEGAN
            growing = OpenBatch(steady_ms, queue.position_next, self._batch_bytes)
        growing.append(record)
        # Only once it has a record: KeyboardInterrupt may come earlier, and an empty batch cannot be sent. There is no call from here on.
        queue.growing = growing
        self._busy[topic_partition] = None
        self.memory_free -= record.size
        if growing.size >= self._batch_bytes:
            queue.close()
            appended = Appended.FILLED
        return appended, growing.futures

    def growing(self, topic_partition: TopicPartition) -> OpenBatch | None:
        """The partition's batch that still accepts records, if there is one."""
        queue = self._queues.get(topic_partition)
        return None if queue is None else queue.growing

    def begins_batch(self, topic_partition: TopicPartition, size: int) -> bool:
        """Whether a record of `size` bytes would begin a new batch. Closes the growing batch if the record does not fit."""
        queue = self._queues.get(topic_partition)
        if queue is None or queue.growing is None:
            return True
        if queue.growing.size + size <= queue.growing.bytes_max:
            return False
        queue.close()
        return True

    def waiting_count(self, topic_partition: TopicPartition) -> int:
        """Number of unsent batches of the partition, including the growing one."""
        queue = self._queues.get(topic_partition)
        return 0 if queue is None else len(queue.closed) + (queue.growing is not None)

    def append_batch(self, batch: ProducerBatch) -> bool:
        """Add a ready-made batch after the waiting ones; there must be memory for it. Returns whether it is the first closed batch."""
        queue = self.queue_of(batch.topic_partition)
        is_first = not queue.closed
        self.put_back(batch)
        self.memory_free -= batch.memory_bytes
        return is_first

    def put_back(self, batch: ProducerBatch) -> None:
        """Add a batch that was taken before, after the waiting ones; its memory is accounted for already."""
        self.queue_of(batch.topic_partition).add(batch)
        self._busy[batch.topic_partition] = None

    def full_heads(self) -> Iterator[tuple[TopicPartition, OpenBatch]]:
        """Each partition's next batch if it is full and not encoded. No record joins it, so `encode_ahead` needs no lock."""
        for topic_partition in self._busy:
            closed = self._queues[topic_partition].closed
            if closed and isinstance(head := closed[0], OpenBatch) and head.encoded is None:
                yield topic_partition, head

    def ready_made_head(self, topic_partition: TopicPartition) -> ProducerBatch | None:
        """The partition's next batch if it was added ready-made. It stays in the queue."""
        queue = self._queues.get(topic_partition)
        head = None if queue is None else queue.head
        return head if isinstance(head, ProducerBatch) else None

    def encode_ahead(self, full: OpenBatch) -> None:
        """Encode a batch before it is taken. A thread that takes it at the same time encodes it again, with the same bytes."""
        full.encoded = self._encoded(full)

    def encode_rows(self, columns: RecordColumns, size_max: int | None = None) -> bytearray:
        """Encode a ready-made batch, without sequence numbers. Needs no lock: it uses no state of this object.

        `size_max`: upper bound of the records' bytes, uncompressed, if it is known already.
        """
        if size_max is None:
            return encode(columns, compression=self._compression, level=self._level)
        return encode_measured(columns, size_max, compression=self._compression, level=self._level)

    def encode_first_rows(self, columns: RecordColumns, size_max: int) -> tuple[bytearray, int]:
        """Encode the first records, up to `size_max` bytes uncompressed. Returns the bytes and the number of records, which may be 0."""
        return encode_filling(columns, min(size_max, columns.size_max()), compression=self._compression, level=self._level)

    def has_memory_for(self, size: int) -> bool:
        return size <= self.memory_free

    def release(self, memory_bytes: int) -> None:
        """Free the memory of records whose outcome is known."""
        self.memory_free += memory_bytes
        self._grant_claims()

    @property
    def memory_unused(self) -> int:
        """Bytes that no record holds."""
        return self.memory_free + sum(claim.size - claim.missing_bytes for claim in self._claims)

    def claim(self, size: int) -> Claim:
        """Join the queue for memory. Every claim must be ended with `settle`."""
        claim = Claim(size)
        self._claims += (claim,)  # Not a call: KeyboardInterrupt during one could leave a claim that is never settled.
        return claim

    @property
    def claim_count(self) -> int:
        """Number of callers that wait for memory."""
        return len(self._claims)

    def is_granted(self, claim: Claim) -> bool:
        """Reserve free memory for the claims in order. Returns whether this claim is complete."""
        self._grant_claims()
        return not claim.missing_bytes

    def settle(self, claim: Claim) -> None:
        """End a claim: its reserved memory is free, for its own caller if it is enough, otherwise for the other claims.

        Can be called again after KeyboardInterrupt has interrupted it: then all of its memory goes to the other claims.
        """
        reserved, is_for_others = claim.size - claim.missing_bytes, claim.missing_bytes > 0
        claim.missing_bytes = claim.size
        self.memory_free += reserved
        if claim in self._claims:
            self._claims.remove(claim)
        if is_for_others:
            self._grant_claims()

    def _grant_claims(self) -> None:
        for claim in self._claims:
            reserved = min(claim.missing_bytes, self.memory_free)
            claim.missing_bytes -= reserved
            self.memory_free -= reserved
            if claim.missing_bytes:
                return

    def ready_at_ms(self, topic_partition: TopicPartition) -> int | None:
        """When the partition's first batch may be taken (a past time: now); None if the partition has no unsent batch."""
        queue = self._queues.get(topic_partition)
        if queue is None:
            return None
        if queue.closed:
            return queue.closed[0].created_ms
        return None if queue.growing is None else queue.growing.created_ms + self._linger_ms

    def take(self, topic_partition: TopicPartition, *, is_to_be_sent: bool = True) -> ProducerBatch | None:
        """Take the partition's first batch, full or not, and encode it; None if the partition has no unsent batch.

        A batch that is not to be sent is not encoded and has no data. If encoding raises (no memory), the batch stays here.
        """
        queue = self._queues.get(topic_partition)
        if queue is None:
            return None
        if not queue.closed:
            queue.close()
        if not queue.closed:
            return None
        first = queue.closed[0]
        batch = first if isinstance(first, ProducerBatch) else self._batch_of(topic_partition, first, is_to_be_sent=is_to_be_sent)
        queue.closed.popleft()
        if not queue.closed and queue.growing is None:
            del self._busy[topic_partition]
        return batch

    def take_expired(self, created_until_ms: int) -> Iterator[ProducerBatch]:
        """Take every batch whose first record was appended at or before a time."""
        for topic_partition in self.partitions():
            queue = self._queues[topic_partition]
            while (oldest_ms := queue.oldest_ms()) is not None and oldest_ms <= created_until_ms:
                batch = self.take(topic_partition)
                assert batch is not None, "a queue with an oldest batch has one to take"
                yield batch

    def first_position(self, topic_partition: TopicPartition) -> int | None:
        """The position of the partition's first unsent record; None if there is none."""
        queue = self._queues.get(topic_partition)
        head = None if queue is None else queue.head
        return None if head is None else head.position

    def first_size(self, topic_partition: TopicPartition) -> int:
        """Bytes of the partition's first unsent batch before compression; 0 if there is none."""
        queue = self._queues.get(topic_partition)
        head = None if queue is None else queue.head
        return 0 if head is None else head.size

    def position_next(self, topic_partition: TopicPartition) -> int:
        """The position of the partition's next record."""
        queue = self._queues.get(topic_partition)
        return 0 if queue is None else queue.position_next

    def oldest_ms(self) -> int | None:
        """When the oldest unsent record was appended; None if there is none."""
        times = [self._queues[topic_partition].oldest_ms() for topic_partition in self._busy]
        return min([time for time in times if time is not None], default=None)

    def queue_of(self, topic_partition: TopicPartition) -> WaitingQueue:
        """The queue of a partition's unsent batches; it is created on first use."""
        queue = self._queues.get(topic_partition)
        if queue is None:
            queue = self._queues[topic_partition] = WaitingQueue()
        return queue

    def _batch_of(self, topic_partition: TopicPartition, open_batch: OpenBatch, *, is_to_be_sent: bool) -> ProducerBatch:
        keys = None
        if is_to_be_sent:
            timestamps, data = open_batch.encoded or self._encoded(open_batch)
        else:
            open_batch.trim()
            timestamps, data = np.array(open_batch.timestamps, np.int64), bytearray()
            keys = all_shown_keys(open_batch.keys)
        return ProducerBatch(
            topic_partition=topic_partition,
            outcome_sink=open_batch.futures,
            rows=all_rows(len(open_batch.futures)),
            timestamps=timestamps,
            data=data,
            created_ms=open_batch.created_ms,
            position=open_batch.position,
            memory_bytes=open_batch.memory_bytes,
            shown_keys=keys,
            chosen=_chosen(open_batch),
        )

    def _encoded(self, open_batch: OpenBatch) -> Encoded:
        open_batch.trim()
        is_small = len(open_batch.futures) <= FEW_RECORDS
        if is_small and self._compression is Compression.NONE and not open_batch.headers:
            timestamps = np.array(open_batch.timestamps, np.int64)
            return Encoded(timestamps, encode_few(open_batch.keys, open_batch.values, open_batch.timestamps))
        columns = open_batch.columns()
        return Encoded(columns.timestamps, self.encode_rows(columns))
