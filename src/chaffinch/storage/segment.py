"""Log segment: a file of record batches, its offset index, and its aborted transactions.

The log file is authoritative. The other two are derived from it: they grow in memory, are written by `save`, and are rebuilt from the log
if their bytes are not those that were saved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

from chaffinch.identifiers import NO_TIMESTAMP
from chaffinch.records.batch_header import HEADER_BYTES, LENGTH_END, MAGIC, BatchHeader, unpack_header
from chaffinch.records.checksum import crc32c
from chaffinch.records.file_slice import FileSlice
from chaffinch.storage import aborted_transactions, offset_index
from chaffinch.storage.aborted_transactions import AbortedTransactions
from chaffinch.storage.files import BytesLike, CorruptLog, File, FileSystem, HeldFile, ReadableFile, StorageError, write_atomically
from chaffinch.storage.log_config import LogConfig
from chaffinch.storage.offset_index import OffsetIndex

LOG_SUFFIX, INDEX_SUFFIX, ABORTED_SUFFIX = ".log", ".index", ".txnindex"
SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, ABORTED_SUFFIX)
CLEANED_SUFFIX = ".cleaned"
"""Suffix after the usual one, while a compacted segment is written next to those it will replace."""
NAME_DIGITS = 20
RESERVED_BYTES_MIN = 4 << 20
"""Preallocation begins at this size, with this many bytes: a small partition uses no more disk than it has data."""
RESERVED_SHARE, RESERVED_BYTES_MAX = 4, 32 << 20
"""Larger segments preallocate a quarter of their size, up to this; each time costs as much as writing half a megabyte."""
WALK_BYTES = 8192
"""Bytes per read while iterating over headers: the distance between two index entries fits."""


@dataclass(frozen=True, kw_only=True)
class SegmentMark:
    """State of a segment when a snapshot was taken. Sizes in bytes; the CRCs are those of the derived files' entries.

    It has no slots, so that `text` can be cached.
    """

    base_offset: int
    end_offset: int
    size: int
    max_timestamp: int
    index_entries: int
    index_crc: int
    aborted_entries: int
    aborted_crc: int

    @cached_property
    def text(self) -> str:
        """The mark as JSON, for snapshots. Cached: each later snapshot repeats that of a sealed segment."""
        return MARK_TEXT % MARK_VALUES(self)


# Ten times faster than `json.dumps`: the first snapshot after a start may contain thousands.
MARK_NAMES = [field.name for field in fields(SegmentMark)]
MARK_VALUES = attrgetter(*MARK_NAMES)
MARK_TEXT = "{" + ",".join(f'"{name}":%d' for name in MARK_NAMES) + "}"


class Found(NamedTuple):
    """Whole batches in a file. `end_offset` is above all their offsets, and at most the first offset readable after them."""

    records: FileSlice
    end_offset: int


class Segment:
    """Offsets from `base_offset` up to, not including, `end_offset`. `created_ms`: wall time at which this process created or opened it."""

    __slots__ = (
        "_file_system",
        "_first_timestamp",
        "_saved_aborted",
        "_saved_index",
        "_suffix",
        "_synced_aborted",
        "_written_back",
        "aborted",
        "base_offset",
        "created_ms",
        "end_offset",
        "index",
        "known_size",
        "log",
        "max_timestamp",
        "reserved_end",
        "stem",
    )

    def __init__(
        self,
        file_system: FileSystem,
        directory: str,
        base_offset: int,
        config: LogConfig,
        *,
        create: bool = True,
        created_ms: int = 0,
        suffix: str = "",
    ) -> None:
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.created_ms = created_ms
        self.max_timestamp = NO_TIMESTAMP
        self.stem = stem_of(directory, base_offset)
        self.known_size = 0  # Bytes of the log file that the fields cover; equal to its size except during recovery.
        self.log: File = file_system.open(self.stem + LOG_SUFFIX + suffix, create=create)
        self._suffix = suffix
        self._first_timestamp: int | None = None
        self.index = OffsetIndex(base_offset, config.index_interval_bytes)
        self.aborted = AbortedTransactions()
        self._file_system = file_system
        self._saved_index = (0, 0)  # Entries in the file, and the CRC of their bytes.
        self._saved_aborted = (0, 0)
        self._synced_aborted = 0  # Synced entries, as far as this process knows.
        self._written_back = 0  # Bytes of the log whose write-back was requested.
        self.reserved_end = RESERVED_BYTES_MIN  # Size at which more is preallocated.

    @property
    def size(self) -> int:
        return self.log.size

    @property
    def first_timestamp(self) -> int:
        """The largest timestamp (ms) of the first batch; -1 if it has none, or if there is no batch. Raises StorageError."""
        if self._first_timestamp is None:
            if not self.size:
                return NO_TIMESTAMP
            self._first_timestamp = self.header_at(0).max_timestamp
        return self._first_timestamp

    @property
    def newest_ms(self) -> int:
        """The largest timestamp, or if no record has one, when this process first opened the segment."""
        return self.max_timestamp if self.max_timestamp >= 0 else self.created_ms

    def append(self, batch: BytesLike, header: BatchHeader, base_offset: int) -> None:
        """Write a batch with `base_offset`; after StorageError nothing has changed."""
        self.extend(header, base_offset, self.log.append((batch,)))

    def reserve_ahead(self, size_max: int) -> None:
        """Preallocate space for later appends, up to `size_max`: finding space makes a large append a third slower."""
        size = self.size
        reserved = min(max(RESERVED_BYTES_MIN, size // RESERVED_SHARE), RESERVED_BYTES_MAX, size_max - size)
        self.reserved_end = size + reserved
        self.log.reserve(reserved)

    def write_back(self) -> None:
        """Ask the system to start writing the bytes not requested yet."""
        self.log.write_back(self._written_back)
        self._written_back = self.size

    def seal(self) -> None:
        """Release the preallocated space: nothing more will be appended."""
        self.log.reserve(0)

    def extend(self, header: BatchHeader, base_offset: int, position: int) -> None:
        """Register a batch of the log file."""
        max_timestamp = header.max_timestamp
        if position == 0:
            self._first_timestamp = max_timestamp
        self.index.add(base_offset, position, self.max_timestamp)
        self.known_size = position + header.length + LENGTH_END
        self.end_offset = base_offset + header.last_offset_delta + 1
        if max_timestamp > self.max_timestamp and header.count:  # Compaction leaves some batches without records.
            self.max_timestamp = max_timestamp

    def find(self, offset: int, bytes_max: int, end_offset: int, *, at_least_one: bool) -> Found | None:
        """Whole batches from the one that holds `offset` on, none of which begins at `end_offset` or later; see `ReadableLog.find`."""
        end_offset = min(end_offset, self.end_offset)
        end = self.size if end_offset == self.end_offset else self.position_of(end_offset)
        start = self.position_of(offset)
        if start >= end:
            return None
        if bytes_max < end - start:
            end, header = self._last_boundary(start, start + bytes_max)
            end_offset = header.base_offset
            if end == start:
                if not at_least_one:
                    return None
                end, end_offset = end + header.size, header.last_offset + 1
        return Found(FileSlice(RecordsFile(self.log), start, end - start), end_offset)

    def headers(self, position: int, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of the batches from `position` up to `end`, by default that of the file."""
        chunk, start, end = b"", position, self.size if end is None else end
        while position < end:
            if position - start + HEADER_BYTES > len(chunk):
                start, chunk = position, self.log.read(position, min(WALK_BYTES, end - position))
            header = self._checked(chunk, position - start, position)
            yield position, header
            position += header.size

    def position_of(self, offset: int) -> int:
        """Position of the batch that holds `offset`, or of the first after it; the end of the file if there is none."""
        indexed, position = self.index.floor(offset)
        if indexed == offset:
            return position
        for at, header in self.headers(position):
            if header.last_offset >= offset:
                return at
        return self.size

    def _last_boundary(self, start: int, limit: int) -> tuple[int, BatchHeader]:
        """Position and header of the first batch from `start` on that ends beyond `limit`; there must be one."""
        for position, header in self.headers(max(start, self.index.floor_entry(limit)[1])):
            if position + header.size > limit:
                return position, header
        raise CorruptLog(self.log.path, self.size, f"the file ends here, before byte {limit}")

    def header_at(self, position: int) -> BatchHeader:
        """The header of the batch that begins at `position`."""
        return self._checked(self.log.read(position, HEADER_BYTES), 0, position)

    def _checked(self, data: bytes, at: int, position: int) -> BatchHeader:
        if len(data) - at >= HEADER_BYTES:
            header = unpack_header(data, at)
            if header.magic == MAGIC and header.size >= HEADER_BYTES and header.last_offset_delta >= 0:
                return header
        raise CorruptLog(self.log.path, position, "no record batch begins here, though one was written")

    def save(self) -> SegmentMark:
        """Write the derived files; returns the mark that a snapshot needs to find them."""
        self._saved_index = self._save(INDEX_SUFFIX, self.index, offset_index.ENTRY.itemsize, self._saved_index)
        self._saved_aborted = self._save(ABORTED_SUFFIX, self.aborted, aborted_transactions.ENTRY.size, self._saved_aborted)
        return self.mark()

    def _save(self, suffix: str, entries: OffsetIndex | AbortedTransactions, entry_bytes: int, saved: tuple[int, int]) -> tuple[int, int]:
        count, crc = saved
        if len(entries) == count or (suffix == INDEX_SUFFIX and len(entries) == 1):
            return saved  # An index of the first batch only is useless: small logs have no index file.
        path, data = self.stem + suffix + self._suffix, entries.encode(count)
        try:
            self._append(path, count * entry_bytes, data)
        except StorageError:  # The file may refuse appends after a failed sync.
            # Synced, because a durable snapshot may refer to the file that it replaces.
            write_atomically(self._file_system, path, (entries.encode(0),), syncs=True)
        return len(entries), crc32c(data, crc)

    def _append(self, path: str, size: int, data: bytes) -> None:
        file = self._file_system.open(path)
        try:
            if file.size != size:
                file.truncate(size)  # Entries saved before a crash that no snapshot refers to.
            file.append((data,))
        finally:
            file.close()

    def mark(self) -> SegmentMark:
        """The last saved state, and the current log."""
        return SegmentMark(
            base_offset=self.base_offset,
            end_offset=self.end_offset,
            size=self.size,
            max_timestamp=self.max_timestamp,
            index_entries=self._saved_index[0],
            index_crc=self._saved_index[1],
            aborted_entries=self._saved_aborted[0],
            aborted_crc=self._saved_aborted[1],
        )

    def restore(self, mark: SegmentMark) -> bool:
        """Restore the state of a snapshot. False if its list of aborted transactions is missing, which cannot be derived from this
        segment alone.

        A missing index is rebuilt.
        """
        aborted = self._load(ABORTED_SUFFIX, mark.aborted_entries * aborted_transactions.ENTRY.size, mark.aborted_crc)
        if aborted is None:
            return False
        self.aborted.load(aborted)
        self._saved_aborted = (mark.aborted_entries, mark.aborted_crc)
        index = self._load(INDEX_SUFFIX, mark.index_entries * offset_index.ENTRY.itemsize, mark.index_crc)
        if index is None:
            self._rebuild_index(mark)
        else:
            self.index.load(index)
            self._saved_index = (mark.index_entries, mark.index_crc)
        self.known_size = mark.size
        self.end_offset = mark.end_offset
        self.max_timestamp = mark.max_timestamp
        return True

    def _load(self, suffix: str, size: int, crc: int) -> bytes | None:
        if size == 0:
            return b""
        if not self._file_system.exists(self.stem + suffix):
            return None
        file = self._file_system.open(self.stem + suffix, create=False)
        try:
            data = file.read(0, size)
        finally:
            file.close()
        return data if len(data) == size and crc32c(data) == crc else None

    def _rebuild_index(self, mark: SegmentMark) -> None:
        for position, header in self.headers(0, mark.size):
            self.extend(header, header.base_offset, position)

    def sync_all(self) -> None:
        """Sync the log and what `save` wrote."""
        self.log.sync()
        if self._saved_index[0]:
            self._sync(INDEX_SUFFIX, self._saved_index[0] * offset_index.ENTRY.itemsize, self._saved_index[1])
        if self.has_unsynced_aborted:
            self.sync_aborted()

    @property
    def has_unsynced_aborted(self) -> bool:
        """Whether the saved list of aborted transactions may be lost with the power: no snapshot is usable without it, see `restore`."""
        return self._saved_aborted[0] != self._synced_aborted

    def sync_aborted(self) -> None:
        """Sync the saved list of aborted transactions; rewrite it if it is lost. Raises StorageError."""
        count, crc = self._saved_aborted
        size = count * aborted_transactions.ENTRY.size
        try:
            self._sync(ABORTED_SUFFIX, size, crc)
        except StorageError:
            path = self.stem + ABORTED_SUFFIX + self._suffix
            write_atomically(self._file_system, path, (memoryview(self.aborted.encode(0))[:size],), syncs=True)
        self.note_aborted_synced()

    def note_aborted_synced(self) -> None:
        """The caller has synced the whole file system since the last `save`."""
        self._synced_aborted = self._saved_aborted[0]

    def _sync(self, suffix: str, size: int, crc: int) -> None:
        file = self._file_system.open(self.stem + suffix + self._suffix, create=False)
        try:
            file.sync()
            if crc32c(file.read(0, size)) != crc:  # See `File.sync`: it was not open since `save`.
                raise StorageError(file.path, "sync", "it does not contain what was saved: the disk has lost it")
        finally:
            file.close()

    def adopt_final_names(self) -> None:
        """Rename a compacted segment's files to those of the segment it replaces. Can be retried after a failure."""
        if self._suffix:
            rename_cleaned(self._file_system, self.stem)
            before, self.log = self.log, self._file_system.open(self.stem + LOG_SUFFIX, create=False)
            before.close()  # Not earlier: readers use it until the new one is open.
            self._suffix = ""

    def close(self) -> None:
        self.log.close()

    def remove(self) -> None:
        """Delete all its files."""
        self.log.close()
        remove_files(self._file_system, self.stem, self._suffix)


def stem_of(directory: str, base_offset: int) -> str:
    """Common prefix of the paths of a segment's files."""
    return f"{directory}/{base_offset:0{NAME_DIGITS}d}"


def rename_cleaned(file_system: FileSystem, stem: str) -> None:
    """Rename a compacted segment's files that still have their temporary names; the log file last, which marks completion."""
    for suffix in reversed(SUFFIXES):
        if file_system.exists(stem + suffix + CLEANED_SUFFIX):
            file_system.rename(stem + suffix + CLEANED_SUFFIX, stem + suffix)


def remove_files(file_system: FileSystem, stem: str, suffix: str = "") -> None:
    """Delete a segment's existing files; the log file last, so that a later start finds the others."""
    for kind in reversed(SUFFIXES):
        if file_system.exists(stem + kind + suffix):
            file_system.remove(stem + kind + suffix)


class RecordsFile:
    """A `Source` of file slices."""

    __slots__ = ("_file",)

    def __init__(self, file: ReadableFile) -> None:
        self._file = file

    def read(self, position: int, length: int) -> bytes:
        """Raises StorageError, or CorruptLog if the file ends too early."""
        data = self._file.read(position, length)
        if len(data) != length:
            raise CorruptLog(self._file.path, position + len(data), "the file ends here, before a batch that was written")
        return data

    def descriptor(self) -> int | None:
        return self._file.descriptor()

    def held(self) -> HeldRecordsFile | None:
        held = self._file.held()
        return None if held is None else HeldRecordsFile(held)


class HeldRecordsFile(RecordsFile):
    """A source that stays readable until `close`, even if the segment is deleted."""

    __slots__ = ("close",)

    def __init__(self, file: HeldFile) -> None:
        super().__init__(file)
        self.close = file.close
