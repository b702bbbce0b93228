"""The mark of a closed journal: with it a torn end is an error, without it nothing is lost."""

import errno

import pytest

from chaffinch.storage.file_system import CorruptLog, StorageError
from tests.storage.test_journal import PATH, opened, written


@pytest.mark.parametrize(("size_left", "match"), [(-1, "ends after"), (1, "the file ends here"), (0, "the file ends here")])
def test_truncated_closed_journal_is_refused(size_left: int, match: str) -> None:
    """Nothing is torn when a process ends in order: what is missing then was there."""
    files, ends = written()
    opened(files).close()
    size = [0, ends[1], ends[2] - 1][size_left]
    files.open(PATH).truncate(size)
    files.kill()
    for _ in range(2):
        position = ends[1] if size_left else 0
        with pytest.raises(CorruptLog, match=f"at byte {position}: .*{match}.* it held {ends[2]} bytes, all whole"):
            opened(files)


def test_close_mark_lasts_until_the_next_open() -> None:
    files, ends = written()
    opened(files).close()
    assert files.list("meta") == ["topics.journal", "topics.journal.closed"]
    files.kill()
    opened(files)
    assert files.list("meta") == ["topics.journal"]
    files.kill()
    files.open(PATH).truncate(ends[2] - 1)
    assert opened(files).cut is not None


@pytest.mark.parametrize("mark", [b"", b"9", b"99999 00000000\n", b"99999"])
def test_torn_close_mark_is_ignored(mark: bytes) -> None:
    files, _ = written()
    files.open(PATH + ".closed").append((mark,))
    assert opened(files).items() != {}


@pytest.mark.parametrize("operation", ["open", "append"])
def test_full_disk_writes_no_close_mark_and_loses_nothing(operation: str, caplog: pytest.LogCaptureFixture) -> None:
    files, ends = written()
    journal = opened(files)
    expected = journal.items()

    def full(done: str, path: str, size: int) -> None:
        if done == operation:
            raise StorageError(path, done, "No space left on device", error_number=errno.ENOSPC)

    files.hook = full
    journal.close()
    files.hook = None
    assert files.list("meta") == ["topics.journal"]
    (line,) = caplog.messages
    assert line == (
        f"journal {PATH} is closed without its mark; the next start treats it like one of a killed process: "
        f"cannot {operation} {PATH}.closed: No space left on device"
    )
    files.crash(lambda path, unsynced: 0)
    assert opened(files).items() == expected
    files.kill()
    files.open(PATH).truncate(ends[2] - 1)
    assert opened(files).cut is not None
