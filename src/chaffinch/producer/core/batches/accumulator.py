"""Where records wait and become batches: columns per partition that grow with each record, and ready-made batches of whole tables.

A plain object: its owner's lock makes it safe for many threads, and its owner waits when memory is short. Follows
RecordAccumulator.java: a batch is ready when it is full, when its oldest record has lingered, when somebody flushes, or when memory has
run out. Batches of one partition leave in the order in which their records came.
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
    rows.flags.writeable = False  # Of many batches.
    return rows


def all_rows(count: int) -> npt.NDArray[np.int64]:
    """The rows of a batch that has all of its receipt."""
    return _few_rows(count) if count <= FEW_RECORDS else np.arange(count, dtype=np.int64)


def record_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Bytes that a record takes in a batch at most, uncompressed."""
    size = RECORD_OVERHEAD_BYTES + (len(key) if key else 0) + (len(value) if value else 0)
    for name, content in headers:
        size += HEADER_OVERHEAD_BYTES + len(name if name.isascii() else name.encode()) + (len(content) if content else 0)
    return size


class Appended(Enum):
    """What a record did to its batch."""

    JOINED = "joined"
    BEGAN = "began"
    FILLED = "filled"


class Encoded(NamedTuple):
    """A batch as it is sent, but for its numbers."""

    timestamps: npt.NDArray[np.int64]
    data: bytearray


@dataclass(slots=True, eq=False)
class OpenBatch:
    """A batch that grows at its end: lists that grow with each record, columns only when it is taken, because `send` has no time to lose.

    Five lists rather than one of tuples: each tuple would be one more object for Python's collector to go round.
    """

    created_ms: int
    position: int
    bytes_max: int
    """Only below this it takes a record without closing; 0 once it is closed, or is to be."""
    size: int = BATCH_OVERHEAD_BYTES
    counted: int = 0
    """How much of its size the partitioner knows of."""
    futures: BatchFutures = field(default_factory=BatchFutures)
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    headers: dict[int, Headers] = field(default_factory=dict)
    given: list[int] = field(default_factory=list)
    """Indices of the records whose callers named the partition; the producer chose that of the others."""
    encoded: Encoded | None = None
    """What it is taken as, once somebody has had the time."""

    def append(self, record: NewRecord) -> None:
        """Add a record. It is there as soon as its receipt is, which is the last step."""
        try:
            if record.partition is not None:
                self.given.append(len(self.keys))
            if record.headers:
                self.headers[len(self.keys)] = record.headers
            self.keys.append(record.key)
            self.values.append(record.value)
            self.timestamps.append(record.timestamp_ms)
            self.futures.append(record.future)
        except BaseException:  # Ctrl-C: what there is of the record stays at the end, for `trim`, and none comes behind it.
            self.bytes_max = 0
            raise
        self.size += record.size

    def trim(self) -> None:
        """Forget what there is of a record without a receipt."""
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
    """Whether the producer chose the partition of its records, as in ProducerBatch."""
    given, count = open_batch.given, len(open_batch.futures)
    if not given or len(given) == count:
        return not given
    chosen = np.ones(count, bool)
    chosen[[index for index in given if index < count]] = False
    return chosen


@dataclass(slots=True, eq=False)
class WaitingQueue:
    """What waits for one partition: closed batches, then the one that is growing."""

    closed: deque[ProducerBatch | OpenBatch] = field(default_factory=deque)
    growing: OpenBatch | None = None
    closed_until: int = 0
    """The position behind the last record that is in no growing batch."""

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

    # Callers do these, too, in whose threads Ctrl-C may come at any call: see `chaffinch.client.condition`. So what belongs together is
    # done without one (`+=`, not `append`).

    def close(self) -> None:
        growing, position_next = self.growing, self.position_next
        if growing is not None:
            self.closed += (growing,)
            growing.bytes_max, self.closed_until, self.growing = 0, position_next, None

    def add(self, batch: ProducerBatch) -> None:
        """A batch that is closed already."""
        self.close()
        count = batch.count
        batch.position = self.closed_until
        self.closed_until += count
        self.closed += (batch,)


class Claim:
    """A caller in line for memory. `missing_bytes`: how much of `size` is not kept for him yet."""

    __slots__ = ("missing_bytes", "size")

    def __init__(self, size: int) -> None:
        self.size = self.missing_bytes = size


class Accumulator:
    """Records by partition, until they are taken. `memory_free` counts down with what is appended; `release` counts it up again.

    What becomes free is kept for who waits for memory, in the order in which they came (BufferPool.java): who needs much would never find
    it free at once beside others who need little.
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
        """Neither held by records nor kept for a caller who waits."""
        self._claims: deque[Claim] = deque()
        self._queues: dict[TopicPartition, WaitingQueue] = {}
        self._busy: dict[TopicPartition, None] = {}
        """Partitions with anything in them, in the order in which they became busy."""

    @property
    def is_empty(self) -> bool:
        return not self._busy

    @property
    def lingers(self) -> bool:
        """Whether a batch is growing, which would go at once if somebody hurried."""
        return any(self._queues[topic_partition].growing is not None for topic_partition in self._busy)

    def partitions(self) -> list[TopicPartition]:
        """Partitions in which something waits."""
        return list(self._busy)

    def append(self, topic_partition: TopicPartition, record: NewRecord, steady_ms: int) -> tuple[Appended, BatchFutures]:
        """Add one record; there must be memory for it. Its receipt is the last of those returned."""
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
        # Not before it has a record: Ctrl-C may come before that, and an empty batch cannot be sent. From here on nothing is called.
        queue.growing = growing
        self._busy[topic_partition] = None
        self.memory_free -= record.size
        if growing.size >= self._batch_bytes:
            queue.close()
            appended = Appended.FILLED
        return appended, growing.futures

    def growing(self, topic_partition: TopicPartition) -> OpenBatch | None:
        """The partition's batch that grows, if there is one."""
        queue = self._queues.get(topic_partition)
        return None if queue is None else queue.growing

    def begins_batch(self, topic_partition: TopicPartition, size: int) -> bool:
        """Whether a record of `size` bytes would begin a batch: none is growing, or it does not fit; then that one is closed."""
        queue = self._queues.get(topic_partition)
        if queue is None or queue.growing is None:
            return True
        if queue.growing.size + size <= queue.growing.bytes_max:
            return False
        queue.close()
        return True

    def waiting_count(self, topic_partition: TopicPartition) -> int:
        """How many batches wait for the partition, the growing one included."""
        queue = self._queues.get(topic_partition)
        return 0 if queue is None else len(queue.closed) + (queue.growing is not None)

    def append_batch(self, batch: ProducerBatch) -> bool:
        """Add a ready-made batch behind what waits already; there must be memory for it. Whether it is the first that may be taken."""
        queue = self.queue_of(batch.topic_partition)
        is_first = not queue.closed
        self.put_back(batch)
        self.memory_free -= batch.memory_bytes
        return is_first

    def put_back(self, batch: ProducerBatch) -> None:
        """Add a batch that was taken, behind what waits for its partition; its memory is held already."""
        self.queue_of(batch.topic_partition).add(batch)
        self._busy[batch.topic_partition] = None

    def full_heads(self) -> Iterator[tuple[TopicPartition, OpenBatch]]:
        """Each partition's next batch if it is full and not encoded: nothing joins it, so `encode_ahead` takes it without the lock."""
        for topic_partition in self._busy:
            closed = self._queues[topic_partition].closed
            if closed and isinstance(head := closed[0], OpenBatch) and head.encoded is None:
                yield topic_partition, head

    def ready_made_head(self, topic_partition: TopicPartition) -> ProducerBatch | None:
        """The partition's next batch if it came ready-made; it stays until it is taken."""
        queue = self._queues.get(topic_partition)
        head = None if queue is None else queue.head
        return head if isinstance(head, ProducerBatch) else None

    def encode_ahead(self, full: OpenBatch) -> None:
        """Encode a batch before it is taken. Who takes it meanwhile does the same work, and gets the same bytes."""
        full.encoded = self._encoded(full)

    def encode_rows(self, columns: RecordColumns, size_max: int | None = None) -> bytearray:
        """The bytes of a ready-made batch, not numbered. Needs no lock: it touches nothing of this object.

        `size_max`: what the records take at most, uncompressed, if they are measured already.
        """
        if size_max is None:
            return encode(columns, compression=self._compression, level=self._level)
        return encode_measured(columns, size_max, compression=self._compression, level=self._level)

    def encode_first_rows(self, columns: RecordColumns, size_max: int) -> tuple[bytearray, int]:
        """As `encode_rows`, of as many of the first records as take at most `size_max` bytes, uncompressed; and how many: perhaps none."""
        return encode_filling(columns, min(size_max, columns.size_max()), compression=self._compression, level=self._level)

    def has_memory_for(self, size: int) -> bool:
        return size <= self.memory_free

    def release(self, memory_bytes: int) -> None:
        """The outcome of records is known: their memory is free again."""
        self.memory_free += memory_bytes
        self._grant_claims()

    @property
    def memory_unused(self) -> int:
        """What no record holds."""
        return self.memory_free + sum(claim.size - claim.missing_bytes for claim in self._claims)

    def claim(self, size: int) -> Claim:
        """Get in line for memory; whatever comes of it, `settle` it."""
        claim = Claim(size)
        self._claims += (claim,)  # By no call: Ctrl-C, which may come with any, must not leave a claim that nobody knows.
        return claim

    @property
    def claim_count(self) -> int:
        """How many are in line for memory."""
        return len(self._claims)

    def is_granted(self, claim: Claim) -> bool:
        """Whether there is enough for a claim."""
        self._grant_claims()
        return not claim.missing_bytes

    def settle(self, claim: Claim) -> None:
        """Who claimed waits no longer: what was kept for him is free, for himself at once if it is enough.

        Called again, after Ctrl-C in the midst of it, it goes on, and nothing is kept for him any more."""
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
        """When the partition's first batch may be taken (a time that has passed: now); None when nothing waits there."""
        queue = self._queues.get(topic_partition)
        if queue is None:
            return None
        if queue.closed:
            return queue.closed[0].created_ms
        return None if queue.growing is None else queue.growing.created_ms + self._linger_ms

    def take(self, topic_partition: TopicPartition, *, is_to_be_sent: bool = True) -> ProducerBatch | None:
        """Take the partition's first batch, full or not, and encode it if it is not; None when nothing waits there.

        One that is not to be sent stays unencoded, without data. What raises while it is encoded (no memory) leaves it here.
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

    def take_expired(self, created_before_ms: int) -> Iterator[ProducerBatch]:
        """Take every batch whose first record came before, or at, a time."""
        for topic_partition in self.partitions():
            queue = self._queues[topic_partition]
            while (oldest_ms := queue.oldest_ms()) is not None and oldest_ms <= created_before_ms:
                batch = self.take(topic_partition)
                assert batch is not None, "a queue with an oldest batch has one to take"
                yield batch

    def first_position(self, topic_partition: TopicPartition) -> int | None:
        """The position of the first record that waits for the partition; None when none does."""
        queue = self._queues.get(topic_partition)
        head = None if queue is None else queue.head
        return None if head is None else head.position

    def first_size(self, topic_partition: TopicPartition) -> int:
        """Bytes of the first batch that waits for the partition, before compression; 0 when none does."""
        queue = self._queues.get(topic_partition)
        head = None if queue is None else queue.head
        return 0 if head is None else head.size

    def position_next(self, topic_partition: TopicPartition) -> int:
        """The position that the next record of the partition will have."""
        queue = self._queues.get(topic_partition)
        return 0 if queue is None else queue.position_next

    def oldest_ms(self) -> int | None:
        """When the first record of all that wait came; None when none does."""
        times = [self._queues[topic_partition].oldest_ms() for topic_partition in self._busy]
        return min([time for time in times if time is not None], default=None)

    def queue_of(self, topic_partition: TopicPartition) -> WaitingQueue:
        """What waits for a partition."""
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
