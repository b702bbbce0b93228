"""`was_closed` of a journal after different ends."""

from __future__ import annotations

from chaffinch.storage.file_system import MemoryFileSystem
from chaffinch.storage.journal import Journal


def opened(files: MemoryFileSystem) -> Journal:
    return Journal.open(files, "meta", "topics")


def test_was_closed_is_true_only_after_the_last_close() -> None:
    files = MemoryFileSystem()
    opened(files).put({b"key": b"kept"})
    files.kill()
    assert not opened(files).was_closed
    opened(files).close()
    files.kill()
    assert opened(files).was_closed
    opened(files).close()
    files.sync_all()  # As the system does in time.
    files.kill()
    opened(files).put({b"key": b"lost"})
    files.crash(lambda path, unsynced: 0)
    journal = opened(files)
    assert (journal.get(b"key"), journal.was_closed) == (b"kept", False)
