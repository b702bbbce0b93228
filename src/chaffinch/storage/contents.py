"""Contents journal: what a data directory must contain, as offsets of each log and entry counts of each journal.

Logs and journals themselves cannot show that a file is missing or was cut at the end of a batch. `contents.journal` can. It holds one entry
for each path, written after the bytes of that path, and the incarnation of the file system in which the entries were written.

`synced` counts what a sync has covered: it must be present at every start. `written` counts what was written: it must be present unless
power was lost or a sync failed after that. A note is one write without a sync. A note lost with the power lowers the expectation, and never
raises it.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from chaffinch.storage.files import CorruptLog, FileSystem
from chaffinch.storage.journal import CLOSED_SUFFIX, REWRITE_BYTES_MIN, SUFFIX, Journal
from chaffinch.storage.log_state import NOTHING_EXPECTED, Expected

LOGGER = logging.getLogger(__name__)
JOURNAL_NAME = "contents"
_INCARNATION = b"incarnation"


class Extent(NamedTuple):
    """Extent of a log or a journal. `start`: first offset of a log. `synced` and `written`: end offsets, or numbers of entries."""

    start: int
    synced: int
    written: int


class Contents:
    """The contents journal; see the module docstring.

    `opens` creates a missing `journal` with the first note. `incarnation` is that of the file system now. Notes before `begin` are ignored.
    """

    def __init__(self, journal: Journal | None, opens: Callable[[], Journal], incarnation: str) -> None:
        self._journal = journal
        self._opens = opens
        self._incarnation = incarnation
        items = {} if journal is None else journal.items()
        noted_in = items.pop(_INCARNATION, b"").decode()
        self.is_begun = False
        self._trusts_written = noted_in == incarnation != ""
        self._noted = {path.decode(): Extent(*map(int, value.split())) for path, value in items.items()}

    def __contains__(self, path: str) -> bool:
        """Whether the journal has an entry for `path`."""
        return path in self._noted

    def expected(self, path: str) -> Expected:
        """What the log or journal at `path` must contain; `NOTHING_EXPECTED` without an entry."""
        found = self._noted.get(path)
        if found is None:
            return NOTHING_EXPECTED
        return Expected(found.start, found.written if self._trusts_written else found.synced)

    def begin(self, extents: Mapping[str, Extent]) -> None:
        """Start recording once all logs and journals are open; `extents` lists all of them. Durable on return. Raises StorageError."""
        if self._journal is None:
            self._journal = self._opens()
        entries: dict[bytes, bytes | None] = {path.encode(): None for path in self._noted if path not in extents}
        if self._incarnation.encode() != self._journal.get(_INCARNATION):
            entries[_INCARNATION] = self._incarnation.encode()
        self._trusts_written = self._incarnation != ""
        self._put(self._changed(extents), entries)
        self.sync()
        self._noted = {path: extent for path, extent in self._noted.items() if path in extents}
        self.is_begun = True

    def note(self, extents: Mapping[str, Extent]) -> None:
        """Record that these logs and journals have grown. Raises StorageError."""
        if self.is_begun:
            self._put(self._changed(extents))

    def note_rewrite(self, path: str, count: int) -> None:
        """Record that a journal is about to be replaced by one of `count` entries. Durable on return. Raises StorageError."""
        if path in self._noted and self._noted[path].written > count:
            self._put({path: Extent(0, min(self._noted[path].synced, count), count)})
            self.sync()

    def forget(self, paths: Iterable[str]) -> None:
        """Remove the entries of deleted logs. Raises StorageError."""
        paths = list(paths)
        self._put({}, {path.encode(): None for path in paths if path in self._noted})
        for path in paths:
            self._noted.pop(path, None)

    def sync(self) -> None:
        """Make all notes durable. Raises StorageError."""
        if self._journal is not None:
            self._journal.sync()

    def close(self) -> None:
        """Raises StorageError."""
        if self._journal is not None:
            self._journal.close()

    def _changed(self, extents: Mapping[str, Extent]) -> dict[str, Extent]:
        changed = {}
        for path, extent in extents.items():
            before = self._noted.get(path)
            if before is not None and before.synced > extent.synced:  # A later process does not know what an earlier one synced.
                extent = extent._replace(synced=min(before.synced, extent.written))
            if extent != before:
                changed[path] = extent
        return changed

    def _put(self, extents: Mapping[str, Extent], others: Mapping[bytes, bytes | None] | None = None) -> None:
        entries: dict[bytes, bytes | None] = {path.encode(): b"%d %d %d" % extent for path, extent in extents.items()}
        if self._journal is not None:
            self._journal.put({**entries, **(others or {})})
        self._noted.update(extents)


def open_contents(
    file_system: FileSystem, directory: str, *, must_exist: bool, accepts_loss: bool = False, rewrite_bytes_min: int = REWRITE_BYTES_MIN
) -> Contents:
    """Open the contents journal in `directory`. `must_exist`: a missing or empty one is an error; otherwise the first note creates it.

    A loss of power may damage unsynced notes and keep later ones. Then every note from the damage on is dropped, which lowers the
    expectation. Raises CorruptLog, MissingLog, StorageError.
    """
    if not must_exist:
        return Contents(None, partial(_new_journal, file_system, directory, rewrite_bytes_min), file_system.incarnation)
    journal = Journal.open(
        file_system,
        directory,
        JOURNAL_NAME,
        must_exist=True,
        accepts_loss=accepts_loss,
        middle_is_loss=True,
        ends_at_damage=lambda items: accepts_loss or items.get(_INCARNATION, b"").decode() != file_system.incarnation,
        rewrite_bytes_min=rewrite_bytes_min,
    )
    if not journal.count:
        lost = CorruptLog(journal.path, 0, "the journal is empty, though the directory was in use", is_loss=True)
        if not accepts_loss:
            raise lost
        LOGGER.warning("%s; other files may be missing as well: the loss is accepted", lost)
    return Contents(journal, lambda: journal, file_system.incarnation)


def _new_journal(file_system: FileSystem, directory: str, rewrite_bytes_min: int) -> Journal:
    """Create the journal. Existing files are from a start that was interrupted."""
    stem = f"{directory}/{JOURNAL_NAME}"
    for path in (stem + SUFFIX, stem + CLOSED_SUFFIX):
        if file_system.exists(path):
            file_system.remove(path)
    return Journal.open(file_system, directory, JOURNAL_NAME, rewrite_bytes_min=rewrite_bytes_min)
