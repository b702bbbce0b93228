"""The in-memory disk: what survives a loss of power, and that only the caller's random numbers decide."""

import errno
from collections.abc import Callable

import pytest

from chaffinch.storage.file_system import AlreadyLocked, Interrupted, MemoryFileSystem, StorageError
from chaffinch.storage.memory_files import MemoryFile


def nothing(path: str, unsynced: int) -> int:
    return 0


def everything(path: str, unsynced: int) -> int:
    return unsynced


def written(files: MemoryFileSystem, path: str, *, synced: bytes = b"", unsynced: bytes = b"") -> None:
    file = files.open(path)
    file.append((synced,))
    file.sync()
    files.sync_directory(path.rpartition("/")[0])
    file.append((unsynced,))


def content(files: MemoryFileSystem, path: str) -> bytes | None:
    return files.open(path).read(0, 1000) if files.exists(path) else None


def test_kill_keeps_all_written_bytes() -> None:
    files = MemoryFileSystem()
    files.open("a").append((b"abc",))
    incarnation = files.incarnation
    files.kill()
    assert content(files, "a") == b"abc"
    assert files.incarnation == incarnation


def test_kill_after_a_failed_sync_keeps_synced_bytes_only() -> None:
    files = MemoryFileSystem()
    for path in "ab":
        written(files, path, synced=b"synced", unsynced=b"xyz")
    incarnation = files.incarnation

    def hook(operation: str, path: str, size: int) -> None:
        if operation == "sync":
            raise StorageError(path, operation, "Input/output error")

    files.hook = hook
    with pytest.raises(StorageError):
        files.open("a").sync()
    files.hook = None
    files.kill()
    assert [content(files, path) for path in "ab"] == [b"synced", b"syncedxyz"]
    assert files.incarnation != incarnation
    incarnation = files.incarnation
    files.kill()
    assert files.incarnation == incarnation


SYNCS: dict[str, Callable[[MemoryFileSystem, MemoryFile], None]] = {
    "sync": lambda files, file: file.sync(),
    "sync directory": lambda files, file: files.sync_directory(""),
    "sync all": lambda files, file: files.sync_all(),
}


@pytest.mark.parametrize("operation", SYNCS)
def test_failed_sync_of_any_kind_fails_sync_all(operation: str) -> None:
    files = MemoryFileSystem()
    file = files.open("a")

    def hook(done: str, path: str, size: int) -> None:
        if done == operation:
            raise StorageError(path, done, "Input/output error")

    files.hook = hook
    with pytest.raises(StorageError, match="Input/output error"):
        SYNCS[operation](files, file)
    files.hook = None
    with pytest.raises(StorageError, match="an earlier sync failed"):
        files.sync_all()
    files.kill()
    files.sync_all()


@pytest.mark.parametrize("kept", range(4))
def test_crash_keeps_the_chosen_part_of_unsynced_bytes(kept: int) -> None:
    files = MemoryFileSystem()
    written(files, "a", synced=b"synced", unsynced=b"xyz")
    incarnation = files.incarnation
    files.crash(lambda path, unsynced: kept if (path, unsynced) == ("a", 3) else 0)
    assert content(files, "a") == b"synced" + b"xyz"[:kept]
    assert files.incarnation != incarnation


def test_kept_bytes_are_durable_after_the_crash() -> None:
    files = MemoryFileSystem()
    written(files, "a", unsynced=b"xyz")
    files.crash(everything)
    files.crash(nothing)
    assert content(files, "a") == b"xyz"


@pytest.mark.parametrize(("choose", "expected"), [(nothing, b"abcdef"), (everything, b"ab12"), (lambda path, unsynced: 2, b"ab1")])
def test_an_unsynced_truncation_may_be_forgotten(choose: Callable[[str, int], int], expected: bytes) -> None:
    files = MemoryFileSystem()
    written(files, "a", synced=b"abcdef")
    file = files.open("a")
    file.truncate(2)
    file.append((b"12",))
    files.crash(choose)
    assert content(files, "a") == expected


def test_failed_sync_fails_every_later_sync() -> None:
    """As on a disk, where the kernel reports lost pages once. Without this no simulation could find a caller that ignores it."""
    files = MemoryFileSystem()
    file = files.open("a")
    file.append((b"abc",))

    def hook(operation: str, path: str, size: int) -> None:
        if operation == "sync":
            raise StorageError(path, operation, "Input/output error")

    files.hook = hook
    with pytest.raises(StorageError, match="Input/output error"):
        file.sync()
    files.hook = None
    for call in (file.sync, lambda: file.append((b"d",))):
        with pytest.raises(StorageError, match="an earlier sync failed"):
            call()
    assert file.read(0, 9) == b"abc"
    files.crash(nothing)
    assert content(files, "a") is None


def test_name_is_lost_without_a_directory_sync() -> None:
    files = MemoryFileSystem()
    file = files.open("a")
    file.append((b"abc",))
    file.sync()
    files.crash(nothing)
    assert content(files, "a") is None


def test_flushed_content_is_what_survives_a_crash() -> None:
    files = MemoryFileSystem()
    files.make_directory("logs")
    written(files, "logs/old", synced=b"one")
    files.sync_directory("logs")
    files.sync_directory("")
    files.open("logs/new").close()
    flushed = [*files.flushed_names("logs")], files.flushed("logs/old"), [*files.flushed_names("")], files.flushed("logs/new")
    assert flushed == (["old"], b"one", ["logs"], b"")
    files.crash(nothing)
    assert files.list("logs") == ["old"]


@pytest.mark.parametrize(("choose", "old", "new"), [(nothing, b"one", b"two"), (everything, None, b"one")])
def test_an_unsynced_rename_happens_or_does_not(choose: Callable[[str, int], int], old: bytes | None, new: bytes) -> None:
    files = MemoryFileSystem()
    written(files, "old", synced=b"one")
    written(files, "new", synced=b"two")
    files.rename("old", "new")
    files.crash(choose)
    assert (content(files, "old"), content(files, "new")) == (old, new)


def test_crash_keeps_names_in_creation_order() -> None:
    files = MemoryFileSystem()
    for name in "abc":
        files.open(name).close()
    files.remove("a")
    choices_requested: list[tuple[str, int]] = []
    files.crash(lambda path, unsynced: choices_requested.append((path, unsynced)) or 2)  # type: ignore[func-returns-value]
    assert choices_requested == [("", 4)]
    assert files.list("") == ["a", "b"]


def test_an_unsynced_removal_may_be_forgotten() -> None:
    files = MemoryFileSystem()
    files.make_directory("d")
    files.sync_directory("")
    written(files, "d/a", synced=b"abc")
    files.remove_tree("d")
    assert files.list("") == []
    files.crash(nothing)
    assert content(files, "d/a") == b"abc"


@pytest.mark.parametrize("kept", [-1, 4])
def test_chosen_size_beyond_the_unsynced_bytes_is_refused(kept: int) -> None:
    files = MemoryFileSystem()
    written(files, "a", unsynced=b"xyz")
    with pytest.raises(ValueError, match=f"kept {kept} of 3"):
        files.crash(lambda path, unsynced: kept)


@pytest.mark.parametrize("end", [MemoryFileSystem.kill, lambda files: files.crash(nothing)])
def test_files_and_locks_of_an_ended_process_are_invalid(end: object) -> None:
    files = MemoryFileSystem()
    written(files, "a", synced=b"abc")
    file, lock = files.open("a"), files.lock("lock")
    end(files)  # type: ignore[operator]
    for call in (file.sync, lambda: file.append((b"x",)), lambda: file.read(0, 1), lambda: file.truncate(0)):
        with pytest.raises(StorageError, match="has ended"):
            call()
    files.lock("lock")
    lock.release()
    with pytest.raises(AlreadyLocked):
        files.lock("lock")


def test_sync_all_makes_everything_durable() -> None:
    files = MemoryFileSystem()
    files.make_directory("d/e")
    for path in ("a", "d/b", "d/e/c"):
        files.open(path).append((b"abc",))
    files.sync_all()
    files.open("a").append((b"def",))
    files.crash(nothing)
    assert [content(files, path) for path in ("a", "d/b", "d/e/c")] == [b"abc"] * 3


def test_crash_inside_a_write_keeps_part_of_it() -> None:
    files = MemoryFileSystem()
    file = files.open("a")

    def hook(operation: str, path: str, size: int) -> None:
        if (operation, path, size) == ("append", "a", 6):
            raise Interrupted(4)

    files.hook = hook
    with pytest.raises(Interrupted):
        file.append((b"abc", b"def"))
    files.hook = None
    files.kill()
    assert content(files, "a") == b"abcd"


def test_append_on_a_full_disk_fails_and_later_succeeds() -> None:
    files = MemoryFileSystem()
    file = files.open("a")
    files.bytes_free = 4
    file.append((b"abc",))
    with pytest.raises(StorageError) as caught:
        file.append((b"de",))
    assert caught.value.error_number == errno.ENOSPC
    assert file.size == 3
    files.bytes_free = None
    assert file.append((b"de",)) == 3


def test_every_operation_calls_the_hook() -> None:
    files = MemoryFileSystem()
    seen: list[str] = []
    files.hook = lambda operation, path, size: seen.append(operation)
    files.make_directory("d")
    file = files.open("d/a")
    file.append((b"x",))
    file.read(0, 1)
    file.sync()
    file.truncate(0)
    files.rename("d/a", "d/b")
    files.sync_directory("d")
    files.remove("d/b")
    files.lock("lock")
    assert seen == ["make directory", "open", "append", "read", "sync", "truncate", "rename", "sync directory", "remove", "lock"]
