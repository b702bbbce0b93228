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


def test_a_killed_process_leaves_all_it_wrote() -> None:
    files = MemoryFileSystem()
    files.open("a").append((b"abc",))
    incarnation = files.incarnation
    files.kill()
    assert content(files, "a") == b"abc"
    assert files.incarnation == incarnation


def test_after_a_failed_sync_the_next_process_sees_what_the_disk_has() -> None:
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
def test_after_a_failed_sync_of_any_kind_not_all_can_be_said_to_be_synced(operation: str) -> None:
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
def test_a_crash_tears_unsynced_bytes_where_the_dice_say(kept: int) -> None:
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


def test_a_failed_sync_is_not_forgotten() -> None:
    """As on a disk, where the kernel reports lost pages once. Without this no simulation could tell whether its caller forgets."""
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


def test_a_name_is_not_there_before_its_directory_is_synced() -> None:
    files = MemoryFileSystem()
    file = files.open("a")
    file.append((b"abc",))
    file.sync()
    files.crash(nothing)
    assert content(files, "a") is None


def test_what_a_loss_of_power_leaves_for_certain_is_told_before_it() -> None:
    files = MemoryFileSystem()
    files.make_directory("logs")
    written(files, "logs/old", synced=b"one")
    files.sync_directory("logs")
    files.sync_directory("")
    files.open("logs/new").close()
    told = [*files.flushed_names("logs")], files.flushed("logs/old"), [*files.flushed_names("")], files.flushed("logs/new")
    assert told == (["old"], b"one", ["logs"], b"")
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


def test_names_are_kept_in_the_order_in_which_they_were_made() -> None:
    files = MemoryFileSystem()
    for name in "abc":
        files.open(name).close()
    files.remove("a")
    asked: list[tuple[str, int]] = []
    files.crash(lambda path, unsynced: asked.append((path, unsynced)) or 2)  # type: ignore[func-returns-value]
    assert asked == [("", 4)]
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
def test_dice_beyond_the_limits_are_refused(kept: int) -> None:
    files = MemoryFileSystem()
    written(files, "a", unsynced=b"xyz")
    with pytest.raises(ValueError, match=f"kept {kept} of 3"):
        files.crash(lambda path, unsynced: kept)


@pytest.mark.parametrize("end", [MemoryFileSystem.kill, lambda files: files.crash(nothing)])
def test_files_and_locks_of_the_dead_are_void(end: object) -> None:
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


def test_everything_can_be_synced_at_once() -> None:
    files = MemoryFileSystem()
    files.make_directory("d/e")
    for path in ("a", "d/b", "d/e/c"):
        files.open(path).append((b"abc",))
    files.sync_all()
    files.open("a").append((b"def",))
    files.crash(nothing)
    assert [content(files, path) for path in ("a", "d/b", "d/e/c")] == [b"abc"] * 3


def test_a_process_can_die_inside_a_write() -> None:
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


def test_a_full_disk_takes_nothing_and_recovers() -> None:
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


def test_every_operation_passes_the_hook() -> None:
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
