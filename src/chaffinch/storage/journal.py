"""Journal: a durable key-value store replayed at start, for topics, configurations, offsets and transactions (decision 34).

A journal is one file of record batches of format 2. Each `put` is one batch, so that after a crash it is present completely or not at all.
A null value removes its key. All entries are kept in memory. When most of the file consists of overwritten values, it is rewritten: the new
file is written next to the old one, synced, renamed over it, and the directory synced. At every moment one complete file has the journal's
name. A large file is written in slices, one with each `put`; later puts go to both files.

A torn last batch is cut off at start. Any other damage is an error that names the file and the byte. `close` leaves a mark next to the file
with its length. Until the journal is reopened, no part of it may be missing, so damage at the very end is then an error too, and
`was_closed` is True. If a full disk has no room for the mark, the next start treats the journal like that of a killed process.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from chaffinch.identifiers import NO_TIMESTAMP
from chaffinch.records.batch import BatchView, encode
from chaffinch.records.checksum import crc32c
from chaffinch.records.columns import RecordColumns
from chaffinch.records.errors import RecordsError
from chaffinch.records.few_records import FEW_RECORDS, encode_few, plain_records
from chaffinch.storage.batch_scan import BatchScan
from chaffinch.storage.batch_search import whole_batch_from
from chaffinch.storage.files import CorruptLog, File, FileSystem, MissingLog, StorageError, sync_directories
from chaffinch.storage.recovery import UNFINISHED, UNREADABLE, Cut

LOGGER = logging.getLogger(__name__)
SUFFIX = ".journal"
NEW_SUFFIX = ".journal.new"
CLOSED_SUFFIX = ".journal.closed"
REWRITE_BYTES_MIN = 1 << 20
"""A smaller file is never rewritten: replaying it is cheap."""
GARBAGE_RATIO = 4
"""The file is rewritten when it is this many times larger than its live entries."""
REWRITE_BATCH_BYTES = 1 << 20
"""Bytes of a new file written with one `put`: a few milliseconds."""
ENTRY_BYTES = 16
"""Approximate bytes of an entry in a batch, without its key and value."""

Entries = Mapping[bytes, bytes | None]


class Journal:
    """A durable mapping of bytes to bytes. One owner, one thread. A `put` that fails changes nothing.

    `was_closed`: every `put` is present, regardless of how the system ended. `before_rewrite` is called with the number of entries of a new
    file that is about to replace the old one; it may raise StorageError.
    """

    def __init__(self, file_system: FileSystem, directory: str, name: str, rewrite_bytes_min: int) -> None:
        self.name = name
        self.cut: Cut | None = None
        self.was_closed = False
        self.before_rewrite: Callable[[int], None] = lambda count: None
        self._file_system = file_system
        self._directory = directory
        stem = f"{directory}/{name}" if directory else name
        self._path, self._new_path, self._closed_path = stem + SUFFIX, stem + NEW_SUFFIX, stem + CLOSED_SUFFIX
        self._rewrite_bytes_min = rewrite_bytes_min
        self._rewrite_bytes_next = rewrite_bytes_min
        self._items: dict[bytes, bytes] = {}
        self._live_bytes = 0
        self._next_offset = 0
        self._has_unsynced_name = True
        self._has_unsynced_bytes = True
        self._failure: StorageError | None = None
        self._rewrite: _Rewrite | None = None
        self._file: File

    @classmethod
    def open(
        cls,
        file_system: FileSystem,
        directory: str,
        name: str,
        *,
        must_exist: bool = False,
        expected_count: int = 0,
        accepts_loss: bool = False,
        middle_is_loss: bool = False,
        ends_at_damage: Callable[[Mapping[bytes, bytes]], bool] = lambda items: False,
        rewrite_bytes_min: int = REWRITE_BYTES_MIN,
    ) -> "Journal":
        """Open or create `<directory>/<name>.journal` and replay it.

        - `must_exist`: a missing file is an error, not a new journal.
        - `expected_count`: fewer entries are an error.
        - `accepts_loss`: log these two losses instead of raising.
        - `middle_is_loss`: damage followed by whole batches is a loss too, which may be accepted.
        - `ends_at_damage`: given the items before the damage, whether the rest may be cut off.

        Raises CorruptLog on damage, MissingLog, StorageError.
        """
        journal = cls(file_system, directory, name, rewrite_bytes_min)
        file_system.make_directory(directory)
        if file_system.exists(journal._new_path):  # A rewrite that was not renamed: the old file is complete.
            file_system.remove(journal._new_path)
        if must_exist and not file_system.exists(journal._path):
            missing = MissingLog(file_system.describe(journal._path), "open", "the journal is missing, though the directory was in use")
            if not accepts_loss:
                raise missing
            journal._file = file_system.open(journal._path)
            LOGGER.warning("%s; an empty journal is created: the loss is accepted", missing)
        else:
            journal._file = file_system.open(journal._path)
        closed_size = journal._closed_size()
        if journal._file.size != closed_size:
            journal._file.note_unsynced()
        journal._replay(closed_size, expected_count, ends_at_damage, accepts_loss=accepts_loss, middle_is_loss=middle_is_loss)
        journal.was_closed = 0 < closed_size == journal._file.size
        journal._remove_mark()
        return journal

    @property
    def path(self) -> str:
        """The file, for error messages."""
        return self._file.path

    @property
    def count(self) -> int:
        """Number of entries in the file, including overwritten ones."""
        return self._next_offset

    def items(self) -> dict[bytes, bytes]:
        """A copy of the entries."""
        return dict(self._items)

    def get(self, key: bytes) -> bytes | None:
        return self._items.get(key)

    def __len__(self) -> int:
        return len(self._items)

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return self._file.size

    @property
    def is_synced(self) -> bool:
        """Whether `sync` has nothing to do."""
        return not (self._has_unsynced_bytes or self._has_unsynced_name)

    def put(self, entries: Entries, *, steady_ms: int = NO_TIMESTAMP) -> None:
        """Store all of `entries` or none; None removes a key. Not synced: see `sync`."""
        if self._failure is not None:
            raise self._failure
        if not entries:
            return
        batch = _encode(entries, self._next_offset, steady_ms)
        self._has_unsynced_bytes = True
        self._file.append((batch,))
        self._next_offset += len(entries)
        for key, value in entries.items():
            self._set(key, value)
        if self._rewrite is not None or self._file.size >= max(self._rewrite_bytes_next, GARBAGE_RATIO * self._live_bytes):
            self._rewrite_if_possible(entries, steady_ms)

    def sync(self) -> None:
        """Return once every `put` so far survives a loss of power."""
        if self._failure is not None:
            raise self._failure
        if self._has_unsynced_bytes:
            self._file.sync()
            self._has_unsynced_bytes = False
        if self._has_unsynced_name:
            sync_directories(self._file_system, self._directory)
            self._has_unsynced_name = False

    def close(self, *, writes_closed_mark: bool = True) -> None:
        """Sync and close. If the disk has room, leave the mark with the file's length. Raises StorageError if the sync fails."""
        self.sync()
        self._give_up_rewrite()
        self._file.close()
        if not writes_closed_mark:
            return
        try:
            self._write_closed_mark()
        except StorageError as error:
            LOGGER.warning(
                "journal %s is closed without its mark; the next start treats it like one of a killed process: %s", self._path, error
            )
            with suppress(StorageError):
                self._file_system.remove(self._closed_path)

    def _write_closed_mark(self) -> None:
        size = b"%d" % self._file.size
        mark = self._file_system.open(self._closed_path)
        try:
            mark.truncate(0)
            mark.append((b"%s %08x\n" % (size, crc32c(size)),))
        finally:
            mark.close()

    def _closed_size(self) -> int:
        """Length of the file when it was closed; 0 if it was not closed, or if the mark itself was torn."""
        if not self._file_system.exists(self._closed_path):
            return 0
        mark = self._file_system.open(self._closed_path, create=False)
        try:
            size, _, crc = mark.read(0, mark.size).partition(b" ")
        finally:
            mark.close()
        return int(size) if crc == b"%08x\n" % crc32c(size) else 0

    def _remove_mark(self) -> None:
        """Remove the mark durably before the first put: if a loss of power restored it, it would hide the loss of later puts."""
        if self._file_system.exists(self._closed_path):
            self._file_system.remove(self._closed_path)
            self._file_system.sync_directory(self._directory)

    def _replay(
        self,
        closed_size: int,
        expected_count: int,
        ends_at_damage: Callable[[Mapping[bytes, bytes]], bool],
        *,
        accepts_loss: bool,
        middle_is_loss: bool,
    ) -> None:
        """Read everything; the first `closed_size` bytes and `expected_count` entries must be intact."""
        scan = BatchScan(self._file, 0, 0)
        for position, view in scan:
            self._replay_batch(position, view)
        self._next_offset = scan.offset
        found = None if scan.damage is None else whole_batch_from(self._file, scan.position + 1, scan.offset + 1)
        if found is not None and not ends_at_damage(self._items):
            reason = f"{scan.damage}, and a whole batch follows at byte {found}"
            raise CorruptLog(self._file.path, scan.position, reason, is_loss=middle_is_loss)
        lost = self._lost(scan, closed_size, expected_count)
        if lost is not None and not accepts_loss:
            raise lost
        if scan.damage is not None:
            what = UNFINISHED if lost is None and found is None else UNREADABLE
            bytes_cut = self._file.size - scan.position
            self.cut = Cut(path=self._file.path, position=scan.position, bytes_cut=bytes_cut, reason=scan.damage, what=what)
            self._file.truncate(scan.position)
            LOGGER.warning("%s", self.cut)
        if lost is not None:
            LOGGER.warning("%s; at least %d entries are lost: the loss is accepted", lost, max(expected_count - scan.offset, 1))

    def _lost(self, scan: BatchScan, closed_size: int, expected_count: int) -> CorruptLog | None:
        """The error for entries missing at the end, which the caller may accept; None if all are present."""
        if scan.position >= closed_size and scan.offset >= expected_count:
            return None
        held = f"{expected_count} entries" if scan.offset < expected_count else f"{closed_size} bytes, all whole"
        reason = f"{scan.damage or 'the file ends here'}, after {scan.offset} entries; it held {held}"
        return CorruptLog(self._file.path, scan.position, reason, is_loss=True)

    def _replay_batch(self, position: int, view: BatchView) -> None:
        try:
            records = plain_records(view)
        except RecordsError as error:
            raise CorruptLog(self._file.path, position, f"the CRC is right, but {error}") from error
        for index, (_, key, value) in enumerate(records):
            if key is None:
                raise CorruptLog(self._file.path, position, f"record {index} has no key: this is not a journal")
            self._set(key, value)

    def _set(self, key: bytes, value: bytes | None) -> None:
        old = self._items.pop(key, None)
        if old is not None:
            self._live_bytes -= len(key) + len(old) + ENTRY_BYTES
        if value is not None:
            self._items[key] = value
            self._live_bytes += len(key) + len(value) + ENTRY_BYTES

    def _rewrite_if_possible(self, entries: Entries, steady_ms: int) -> None:
        """Start a rewrite, or continue it after `entries` were put. After a failure the old file, which is complete, stays, and the
        rewrite is retried when the file has doubled.
        """
        try:
            if self._rewrite is not None and self._rewrite.known_offset != self._next_offset - len(entries):
                self._give_up_rewrite()  # A signal interrupted a put before this point.
            if self._rewrite is None:
                self._rewrite = _Rewrite(self._file_system.open(self._new_path), self._items)
            else:
                self._rewrite.append(entries, steady_ms)
            self._rewrite.known_offset = self._next_offset
            if self._rewrite.is_done_after_slice(steady_ms):
                self._publish_rewrite(self._rewrite)
        except StorageError as error:
            LOGGER.warning("journal %s is not rewritten and stays at %d bytes: %s", self._path, self._file.size, error)
            self._give_up_rewrite()
            self._rewrite_bytes_next = 2 * self._file.size

    def _give_up_rewrite(self) -> None:
        if self._rewrite is not None:
            with suppress(StorageError):
                self._rewrite.file.close()
            with suppress(StorageError):
                self._file_system.remove(self._new_path)
            self._rewrite = None

    def _publish_rewrite(self, rewrite: "_Rewrite") -> None:
        rewrite.file.sync()
        rewrite.file.close()
        self.before_rewrite(rewrite.next_offset)
        self._file_system.rename(self._new_path, self._path)
        # From here on the new file is the journal, even if the directory cannot be synced now: `sync` retries that.
        self._has_unsynced_name = True
        self._next_offset = rewrite.next_offset
        self._rewrite = None
        self._rewrite_bytes_next = self._rewrite_bytes_min
        self._switch()
        self.sync()

    def _switch(self) -> None:
        """Open the file that now has the journal's name. The old one has no name: writes to it would be lost."""
        old = self._file
        try:
            self._file = self._file_system.open(self._path, create=False)
        except StorageError as error:
            self._failure = error
            raise
        finally:
            old.close()


class _Rewrite:
    """A new file being written.

    Each key that existed at the start is written with its value at the time of writing; each later `put` is appended. So the last value of
    a key counts. `known_offset`: end of the old file at the last append here.
    """

    def __init__(self, file: File, items: Mapping[bytes, bytes]) -> None:
        self.file = file
        self.next_offset = 0
        self.known_offset = 0
        self._items = items
        self._keys = iter(list(items))  # Keys not written yet.
        if file.size:  # A rewrite failed and its file was not removed: start empty.
            file.truncate(0)

    def append(self, entries: Entries, steady_ms: int) -> None:
        if entries:
            position = self.file.append((_encode(entries, self.next_offset, steady_ms),))
            self.next_offset += len(entries)
            self.file.write_back(position)  # Otherwise the final sync takes long.

    def is_done_after_slice(self, steady_ms: int) -> bool:
        """Write one slice; True once the file is complete."""
        entries: dict[bytes, bytes | None] = {}
        size = 0
        for key in self._keys:
            value = self._items.get(key)
            if value is not None:  # Otherwise it has since been removed.
                entries[key] = value
                size += len(key) + len(value) + ENTRY_BYTES
            if size >= REWRITE_BATCH_BYTES:
                break
        self.append(entries, steady_ms)
        return size < REWRITE_BATCH_BYTES


def _encode(entries: Entries, base_offset: int, steady_ms: int) -> bytearray:
    keys, values, timestamps = list(entries), list(entries.values()), [steady_ms] * len(entries)
    if len(entries) <= FEW_RECORDS:
        return encode_few(keys, values, timestamps, base_offset=base_offset)
    return encode(RecordColumns.from_lists(keys, values, timestamps), base_offset=base_offset)
