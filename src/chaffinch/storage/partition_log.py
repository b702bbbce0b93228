"""Log of one partition: appends, durability, deletion, producer state and transactions. Readers use its base class `ReadableLog`.

The broker's core calls it from one thread. Records are not checked here: the caller validates first (decision 7), then calls
`find_duplicate` and `check_producer`, then appends. An append syncs nothing. Under `flush.policy=always` the caller calls `sync` before it
responds, once for many appends (decision 35).

A batch is written by one system call, with its offset patched into the network's receive buffer. Everything else is in memory and is
written at checkpoints. A failed append leaves the log unchanged.
"""

import logging
import sys
from collections.abc import Callable
from typing import NamedTuple

from chaffinch.identifiers import NO_TIMESTAMP, ProducerIdentity, TopicPartition
from chaffinch.records.batch import BatchHeader, BatchView, patch_offset, read_header
from chaffinch.records.batch_header import ATTRIBUTE_CONTROL, ATTRIBUTE_LOG_APPEND_TIME
from chaffinch.records.control_batch import encode_control_batch
from chaffinch.records.validation_policy import Origin
from chaffinch.storage import retention
from chaffinch.storage.contents import Extent
from chaffinch.storage.files import BytesLike, CorruptLog, FileSystem, StorageError, sync_directories
from chaffinch.storage.log_config import LogConfig
from chaffinch.storage.log_state import NOTHING_EXPECTED, Expected
from chaffinch.storage.lost_records import recover_with_loss
from chaffinch.storage.offset_index import SPAN_MAX
from chaffinch.storage.producer_sequences import ProducerRefusal
from chaffinch.storage.readable_log import LogPosition, OffsetOutOfRange, ReadableLog
from chaffinch.storage.recovery import RecoveredLog, note_completed, recover
from chaffinch.storage.segment import Segment
from chaffinch.storage.snapshot import Snapshot
from chaffinch.storage.wall_time import WallTime

__all__ = ["AppendResult", "LogConfig", "LogPosition", "OffsetOutOfRange", "PartitionLog", "ProducerRefusal"]

LOGGER = logging.getLogger(__name__)
_new_tuple = tuple.__new__  # What a named tuple's constructor calls, in a third of its time.
NO_LEADER_EPOCH = -1


class AppendResult(NamedTuple):
    """Position of an appended batch. `log_append_time_ms` is -1 if the producer set the timestamps."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int


class PartitionLog(ReadableLog):
    """See the module docstring, and `ReadableLog`.

    - `cuts`: the torn ends that `open` cut off.
    - `recovery_bytes_read`: bytes of the log that `open` read.
    - `on_maintenance_due`: called with the log's name when a segment begins or records are deleted; `delete_old_segments` or compaction may
      then have work.
    - `on_start_moved`: called with the log's name when its start moves.

    Methods take steady time; `wall` converts it to wall time.
    """

    __slots__ = (
        "_bytes_since_checkpoint",
        "_failure_reported",
        "_file_system",
        "_has_unsynced_bytes",
        "_has_unsynced_names",
        "cuts",
        "on_maintenance_due",
        "on_start_moved",
        "recovery_bytes_read",
        "wall",
    )

    def __init__(
        self, file_system: FileSystem, directory: str, topic_partition: TopicPartition, config: LogConfig, recovered: RecoveredLog
    ) -> None:
        super().__init__(file_system, directory, topic_partition, config, recovered)
        self.cuts = recovered.cuts
        self.recovery_bytes_read = recovered.bytes_read
        self._file_system = file_system
        self.wall = WallTime()
        self.on_maintenance_due: Callable[[TopicPartition], None] | None = None
        self.on_start_moved: Callable[[TopicPartition], None] | None = None
        self._bytes_since_checkpoint = 0
        self._failure_reported = False  # A checkpoint failed, since the last success.
        # A last segment without records may have begun after the snapshot, so its name may not be synced.
        has_known_files = not recovered.segments or recovered.segments[-1].size > 0
        has_all = recovered.durable_snapshot_offset == recovered.log_end_offset and recovered.is_durable_usable
        is_durable = has_all and not recovered.cuts and has_known_files
        # The start offset may not be synced either, if the process ended right after moving it.
        self._has_unsynced_names = not is_durable or recovered.state.log_start_offset > 0
        self._has_unsynced_bytes = bool(recovered.segments) and not is_durable
        if self._has_unsynced_bytes:
            recovered.segments[-1].log.note_unsynced()

    @classmethod
    def open(
        cls,
        file_system: FileSystem,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig | None = None,
        steady_ms: int = 0,
        *,
        expected: Expected = NOTHING_EXPECTED,
        accepts_loss: bool = False,
    ) -> "PartitionLog":
        """Open or create the log in `directory` and recover it. `steady_ms` is when its producers count as last seen.

        Raises CorruptLog where acknowledged records are damaged, or missing unless `accepts_loss`; StorageError where the disk fails. What
        was cut off is in `cuts`.
        """
        config = config or LogConfig()
        if not file_system.exists(directory):
            file_system.make_directory(directory)
        has_loss = False
        try:
            recovered = recover(file_system, directory, config, steady_ms, expected)
        except CorruptLog as error:
            if not accepts_loss:
                raise
            has_loss = True
            recovered = recover_with_loss(file_system, directory, config, steady_ms, expected, error)
        log = cls(file_system, directory, topic_partition, config, recovered)
        if has_loss or recovered.lacks_snapshot:
            log.persist_producers(log.log_end_offset)
        return log

    @property
    def extent(self) -> Extent:
        """Extent of the log, for `Contents`. Only the last segment may be unsynced."""
        synced = self.log_end_offset if self.is_synced else self._segments[-1].base_offset if self._segments else self.log_start_offset
        return Extent(self.log_start_offset, synced, self.log_end_offset)

    # Appending.

    def find_duplicate(self, header: BatchHeader) -> AppendResult | None:
        """Result of the earlier append of the same batch, if it is one of its producer's last five here."""
        stored = self._producers.find_duplicate(header)
        if stored is None:
            return None
        return AppendResult(stored.base_offset, stored.last_offset, stored.log_append_time_ms, self.log_start_offset)

    def expect(self, header: BatchHeader) -> None:
        """Record that a batch will begin a transaction here; see `ProducerSequences.expect`."""
        self._producers.expect(header)

    def check_producer(self, header: BatchHeader, *, unknown_begins_at_zero: bool = False) -> ProducerRefusal | None:
        """Check whether epoch, sequence and transaction of a batch allow its append; (code, message) if not."""
        if header.producer_id < 0:
            return None
        return self._producers.check(header, unknown_begins_at_zero=unknown_begins_at_zero)

    def check_marker(
        self, identity: ProducerIdentity, coordinator_epoch: int, *, needs_higher_epoch: bool = False
    ) -> ProducerRefusal | None:
        """Check whether `append_marker` may be called; (code, message) if not."""
        return self._producers.check_marker(identity, coordinator_epoch, needs_higher_epoch=needs_higher_epoch)

    def append(
        self, batch: BatchView | BytesLike, *, steady_ms: int, leader_epoch: int = NO_LEADER_EPOCH, origin: Origin = Origin.CLIENT
    ) -> AppendResult:
        """Append one validated data batch. Its base offset and leader epoch are overwritten in its buffer; a read-only buffer is copied
        first.

        Raises StorageError, after which the log is unchanged.
        """
        if isinstance(batch, BatchView):
            data, header = batch.data, batch.header
        else:
            data, header = memoryview(batch), read_header(batch)
        attributes = header.attributes
        if attributes & ATTRIBUTE_CONTROL:
            raise ValueError(f"a control batch from {origin.value} for {self.topic_partition}: markers go through append_marker")
        base_offset = self.log_end_offset
        self._store(data, header, base_offset, leader_epoch, steady_ms)
        if header.producer_id >= 0:
            self._producers.append(header, base_offset, steady_ms)
        self._checkpoint_if_due(len(data))
        log_append_time_ms = header.max_timestamp if attributes & ATTRIBUTE_LOG_APPEND_TIME else NO_TIMESTAMP
        return _new_tuple(AppendResult, (base_offset, self.log_end_offset - 1, log_append_time_ms, self.log_start_offset))

    def append_marker(
        self, is_commit: bool, identity: ProducerIdentity, coordinator_epoch: int, steady_ms: int, *, leader_epoch: int = NO_LEADER_EPOCH
    ) -> AppendResult:
        """Append the marker that ends the transaction of `identity`; see `check_marker`. It uses one offset. Raises StorageError."""
        offset = self.log_end_offset
        timestamp = self.wall.at(steady_ms)
        data = encode_control_batch(is_commit, identity, coordinator_epoch, timestamp)
        self._store(memoryview(data), read_header(data), offset, leader_epoch, steady_ms)
        completed = self._producers.complete(
            identity, is_commit=is_commit, coordinator_epoch=coordinator_epoch, offset=offset, timestamp=timestamp, steady_ms=steady_ms
        )
        note_completed(self._segments[-1], completed, self._producers)
        if completed is not None and self._high_watermark is not None:
            self._undecided.append(completed)
        self._checkpoint_if_due(len(data))
        return AppendResult(offset, offset, NO_TIMESTAMP, self.log_start_offset)

    def _store(self, data: memoryview, header: BatchHeader, base_offset: int, leader_epoch: int, steady_ms: int) -> None:
        if data.readonly:
            data = memoryview(bytearray(data))
        patch_offset(data, 0, base_offset, leader_epoch, header.length)
        segments = self._segments
        segment = segments[-1] if segments else self._new_segment(steady_ms)
        size, config = segment.known_size, self.config
        if size and (
            size + len(data) > config.segment_bytes
            or base_offset + header.last_offset_delta - segment.base_offset > SPAN_MAX
            or retention.is_time_to_roll(segment, config, header.max_timestamp, self.wall, steady_ms)
        ):
            segment = self._roll(steady_ms)
        elif size > segment.reserved_end:
            segment.reserve_ahead(config.segment_bytes)
        segment.append(data, header, base_offset)
        self._has_unsynced_bytes = True
        self.log_end_offset = segment.end_offset

    def _new_segment(self, steady_ms: int) -> Segment:
        """Seal the last segment and begin a new one. The new file is created first: if that fails, nothing else has happened."""
        segment = self._files.create_segment(self.log_end_offset, self.config, self.wall.at(steady_ms))
        if self._segments:
            self._segments[-1].seal()
            self._checkpoint()  # Without the new segment, whose name is not synced: otherwise it is not durable.
        self._files.add_segment(segment)
        self._has_unsynced_names = True
        self._notify_maintenance_due()
        return segment

    def _notify_maintenance_due(self) -> None:
        if self.on_maintenance_due is not None:
            self.on_maintenance_due(self.topic_partition)

    def _roll(self, steady_ms: int) -> Segment:
        """Sync and seal the last segment, so that only the last segment can have a torn end."""
        self.sync()
        return self._new_segment(steady_ms)

    # Deletion.

    def forget_idle_producers(self, steady_ms: int, idle_ms_max: int) -> int:
        """Drop idle producers (`producer.id.expiration.ms`); returns how many."""
        return self._producers.forget_idle(steady_ms, idle_ms_max)

    def roll(self, steady_ms: int) -> None:
        """Seal the last segment if it has records. Raises StorageError."""
        if self._segments and self._segments[-1].size:
            self._roll(steady_ms)

    def delete_records_before(self, offset: int, steady_ms: int) -> int:
        """Move the log's start to `offset`; returns the start, which may be later. Durable on return.

        Raises OffsetOutOfRange above the high watermark, StorageError. The next `delete_old_segments` frees the bytes.
        """
        if offset > self.high_watermark:
            raise OffsetOutOfRange(self.topic_partition, offset, self.log_start_offset, self.high_watermark)
        self._advance_start(offset)
        self._sync_names()  # If it started there already, a killed process may have left the name unsynced.
        self._notify_maintenance_due()
        return self.log_start_offset

    def delete_old_segments(self, steady_ms: int, count_max: int = sys.maxsize) -> int:
        """Delete segments that are too old, exceed the size limit, or lie below the log's start, at most `count_max`; returns how many.

        If all records are too old, the last segment is deleted too, and the next append begins one. A segment stays while no snapshot
        contains its producer state, for example on a full disk, because that state is stored nowhere else. Files that cannot be removed are
        retried by a later call. Raises StorageError for segments that stay for one of these reasons, after all others were deleted.
        """
        wanted = retention.expired_count(self._segments, self.config, self.log_start_offset, self.high_watermark, self.wall.at(steady_ms))
        failure = self.persist_producers(self._segments[wanted - 1].end_offset) if wanted else None
        if failure is not None:
            wanted = sum(segment.end_offset <= self._files.snapshots.durable_offset for segment in self._segments[:wanted])
        if wanted:
            self._advance_start(self._segments[wanted - 1].end_offset)
        count = min(wanted, count_max)
        if count:
            LOGGER.info("%s: segments deleted up to offset %d: %d", self.topic_partition, self._segments[count - 1].end_offset, count)
        is_last = count == wanted
        failure = self._files.remove(count, retries_failed=is_last) or failure
        self._has_unsynced_bytes &= bool(self._segments)
        if failure is not None and is_last:
            raise failure
        return count

    def persist_producers(self, end_offset: int) -> StorageError | None:
        """Store the state of producers below `end_offset` in a durable snapshot; returns the error if that failed. Raises StorageError."""
        if end_offset <= self._files.snapshots.durable_offset:
            return None
        try:
            self.sync()
            self._save_snapshot()
        except StorageError as error:
            return error
        self._file_system.sync_directory(self.directory)
        return None

    def _advance_start(self, offset: int) -> None:
        if offset > self.log_start_offset:
            if offset > self._segments[-1].base_offset:
                self.sync()  # The start would lie beyond the synced end: a loss of power would lose the producer state of those records.
            self._sync_names()
            # Segments below it are deleted, here or when the log is next opened. Afterwards only the snapshot holds their producer state.
            self._files.sync_snapshot()  # Synced together with the start file's name.
            self._files.create_start_file(offset)
            self._file_system.sync_directory(self.directory)
            self.note_start(offset)

    def note_start(self, offset: int) -> None:
        """Record that the start file of `offset`, which is later than before, is durable."""
        self._files.note_start(offset)
        self.log_start_offset = offset
        if self.on_start_moved is not None:
            self.on_start_moved(self.topic_partition)

    # Durability.

    @property
    def is_synced(self) -> bool:
        """Whether `sync` has nothing to do."""
        return not (self._has_unsynced_bytes or self._has_unsynced_names)

    def sync(self) -> None:
        """Return once everything appended so far survives a loss of power. Raises StorageError: then it may not."""
        if self._has_unsynced_bytes:
            self._segments[-1].log.sync()
            self._has_unsynced_bytes = False
        self._sync_names()

    def _sync_names(self) -> None:
        if self._has_unsynced_names:
            sync_directories(self._file_system, self.directory)
            self._has_unsynced_names = False

    def note_synced(self) -> None:
        """The caller has synced the whole file system since the last append."""
        if self._segments:
            self._segments[-1].log.note_synced()
        self._has_unsynced_bytes = self._has_unsynced_names = False

    def _checkpoint_if_due(self, size: int) -> None:
        self._bytes_since_checkpoint += size
        if self._bytes_since_checkpoint >= self.config.checkpoint_bytes:
            last = self._segments[-1]
            # Starting earlier would keep the disk busy with data that many logs soon delete, and slowed appends by a seventh. A segment
            # sealed early leaves half of a full one to its sync: 0.3 s for 500 MB of new data.
            if 2 * last.size >= self.config.segment_bytes:
                last.write_back()
            self._checkpoint()

    def _checkpoint(self) -> None:
        """Write a snapshot, which spares the next start some reading. A failure does not affect appends: it is logged once and retried
        later.
        """
        self._bytes_since_checkpoint = 0
        try:
            self._save_snapshot()
        except StorageError as error:
            if not self._failure_reported:
                LOGGER.warning("no checkpoint of %s at offset %d: %s", self.topic_partition, self.log_end_offset, error)
            self._failure_reported = True

    def _save_snapshot(self) -> None:
        taken = Snapshot(
            incarnation=self._file_system.incarnation,
            is_durable=self.is_synced,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            segments=self._files.save(),
            producers=self._producers.to_rows(self.wall),
        )
        self._files.add_snapshot(taken)
        self._failure_reported = False

    def close(self) -> None:
        """Sync, write a snapshot so that the next start reads nothing, and close the files."""
        if self._segments:
            self.sync()
            snapshots = self._files.snapshots
            if snapshots.durable_offset != self.log_end_offset or not snapshots.is_usable:
                self._checkpoint()
        for segment in self._segments:
            segment.close()

    def delete(self) -> None:
        """Close without saving and remove the directory."""
        for segment in self._segments:
            segment.close()
        self._file_system.remove_tree(self.directory)
