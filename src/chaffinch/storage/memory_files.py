"""In-memory file system that simulates process death and loss of power: it tracks which bytes and names were synced.

There are three ways to end the process. After each of them every open file and lock is invalid, and the file system can be used again.

- `kill()`: the process dies, the page cache survives. All written bytes stay, except those of which a sync failed.
- `crash(choose)`: power is lost. Synced bytes and names stay; `choose` decides how much of the rest, so that randomness stays outside.
- `Interrupted` raised by `hook`: the process dies inside an operation. An append keeps its first `bytes_written` bytes. Call `kill` or
  `crash` next.

Synced data never changes. For each file, a prefix of the unsynced bytes survives, torn at any byte. For each directory, unsynced names
survive in the order of their creation (as in journalling file systems). Files and directories are independent.
"""

import errno
from collections.abc import Callable, Collection, Sequence

from chaffinch.storage.files import CLOSED_TEXT, AlreadyLocked, BytesLike, Names, StorageError

Choose = Callable[[str, int], int]
Hook = Callable[[str, str, int], None]


class Interrupted(BaseException):
    """Raised by a hook: the process ends here. `bytes_written`: bytes of the current append that were written, 0 for others."""

    def __init__(self, bytes_written: int = 0) -> None:
        super().__init__(bytes_written)
        self.bytes_written = bytes_written


class _Contents:
    """One file's bytes. `synced` leading bytes survive; `undone` are synced bytes removed by an unsynced truncation. `failed_in`: the
    life in which their sync failed.
    """

    __slots__ = ("data", "failed_in", "synced", "undone")

    def __init__(self) -> None:
        self.data = bytearray()
        self.failed_in = -1
        self.synced = 0
        self.undone = b""

    def truncate(self, size: int) -> None:
        if size < self.synced:
            self.undone = bytes(self.data[size : self.synced]) + self.undone
            self.synced = size
        del self.data[size:]

    def sync(self) -> None:
        self.synced = len(self.data)
        self.undone = b""

    def crash(self, path: str, choose: Choose) -> None:
        """Keep a prefix of the unsynced steps. An unsynced truncation is one step before later bytes."""
        unsynced = len(self.data) - self.synced + (1 if self.undone else 0)
        retained = choose(path, unsynced) if unsynced else 0
        if not 0 <= retained <= unsynced:
            raise ValueError(f"kept {retained} of {unsynced} unsynced steps of {path}")
        if self.undone:
            self.data[self.synced :] = self.undone if retained == 0 else self.data[self.synced : self.synced + retained - 1]
        else:
            del self.data[self.synced + retained :]
        self.sync()


class _Directory:
    """Current names, and the steps (name, node or None for a removal) since the last sync."""

    __slots__ = ("names", "steps", "synced")

    def __init__(self) -> None:
        self.names: dict[str, _Contents | _Directory] = {}
        self.synced: dict[str, _Contents | _Directory] = {}
        self.steps: list[tuple[tuple[str, _Contents | _Directory | None], ...]] = []

    def change(self, *step: tuple[str, "_Contents | _Directory | None"]) -> None:
        _apply(self.names, step)
        self.steps.append(step)

    def sync(self) -> None:
        self.synced = dict(self.names)
        self.steps.clear()

    def sync_all(self) -> None:
        self.sync()
        for node in self.names.values():
            if isinstance(node, _Directory):
                node.sync_all()
            else:
                node.sync()

    def crash(self, path: str, choose: Choose) -> None:
        retained = choose(path, len(self.steps)) if self.steps else 0
        if not 0 <= retained <= len(self.steps):
            raise ValueError(f"kept {retained} of {len(self.steps)} unsynced names of {path}")
        for step in self.steps[:retained]:
            _apply(self.synced, step)
        self.names = dict(self.synced)
        self.steps.clear()
        for name, node in sorted(self.names.items()):
            node.crash(f"{path}/{name}" if path else name, choose)


def _apply(names: dict[str, _Contents | _Directory], step: tuple[tuple[str, _Contents | _Directory | None], ...]) -> None:
    for name, node in step:
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class MemoryFile:
    """See `File`."""

    def __init__(self, owner: "MemoryFileSystem", path: str, contents: _Contents) -> None:
        self.path = path
        self._owner = owner
        self._contents = contents
        self._life = owner.life
        self._is_closed = False

    @property
    def size(self) -> int:
        return len(self._contents.data)

    def append(self, buffers: Sequence[BytesLike]) -> int:
        contents = self._contents
        data = buffers[0] if len(buffers) == 1 else b"".join(buffers)
        position = len(contents.data)
        try:
            self._enter("append", len(memoryview(data)))
        except Interrupted as end:
            contents.data += memoryview(data)[: end.bytes_written]
            raise
        contents.data += memoryview(data)
        return position

    def read(self, position: int, length: int) -> bytes:
        self._enter("read", 0)
        return bytes(memoryview(self._contents.data)[position : position + length])

    def descriptor(self) -> None:
        return None

    def held(self) -> None:
        return None

    def truncate(self, size: int) -> None:
        self._enter("truncate", 0)
        self._contents.truncate(size)

    def sync(self) -> None:
        try:
            self._enter("sync", 0)
        except StorageError:
            self._owner.has_failed_sync = True
            self._owner.failed.append(self._contents)
            self._contents.failed_in = self._life
            raise
        self._contents.sync()

    def note_synced(self) -> None:
        """No-op: `sync_all` has synced it."""

    def note_unsynced(self) -> None:
        """No-op: synced bytes are tracked exactly."""

    def write_back(self, position: int) -> None:
        """No-op: write-back guarantees nothing, so nothing counts as synced."""

    def reserve(self, length: int) -> None:
        """No-op: appends allocate on demand."""

    def close(self) -> None:
        self._is_closed = True

    def _enter(self, operation: str, size: int) -> None:
        if self._is_closed:
            raise StorageError(self.path, operation, CLOSED_TEXT)
        if self._life != self._owner.life:
            raise StorageError(self.path, operation, "the file was opened by a process that has ended")
        if self._contents.failed_in == self._life and operation in ("append", "sync"):
            raise StorageError(self.path, operation, "an earlier sync failed: bytes written before it may be lost")
        self._owner.enter(operation, self.path, size)


class MemoryLock:
    def __init__(self, owner: "MemoryFileSystem", path: str) -> None:
        self._owner = owner
        self._path = path
        self._life = owner.life
        self.cluster_id = owner.noted_clusters.get(path, "")

    def note_cluster(self, cluster_id: str) -> None:
        self.cluster_id = self._owner.noted_clusters[self._path] = cluster_id

    def release(self) -> None:
        if self._life == self._owner.life:
            self._owner.locks.discard(self._path)


class MemoryFileSystem:
    """See `FileSystem`.

    `hook(operation, path, size)` is called before every operation ("append", "read", "truncate", "sync", "open", "make directory",
    "remove", "rename", "sync directory", "sync all", "lock"; size = bytes of an append); it may raise StorageError or Interrupted.
    `bytes_free`: appends beyond it fail as on a full disk; None = no limit.
    """

    def __init__(self) -> None:
        self.hook: Hook | None = None
        self.bytes_free: int | None = None
        self.life = 0
        self.locks: set[str] = set()
        self.noted_clusters: dict[str, str] = {}  # By path of the lock file.
        self.has_failed_sync = False
        self.failed: list[_Contents] = []  # Files whose sync failed.
        self._outages = 0
        self._root = _Directory()

    @property
    def incarnation(self) -> str:
        return f"memory-{self._outages}"

    def kill(self) -> None:
        """End the process. Written bytes stay, except those whose sync failed: the next process reads what is on disk."""
        self.life += 1
        self.locks.clear()
        if self.has_failed_sync:
            self._outages += 1
            for contents in self.failed:
                contents.crash("", lambda _path, _unsynced: 0)
            self.failed.clear()
            self.has_failed_sync = False

    def crash(self, choose: Choose) -> None:
        """Lose power. `choose(path, unsynced)` returns how many bytes of a file, or names of a directory, survive: 0 to `unsynced`."""
        self.kill()
        self._outages += 1
        self._root.crash("", choose)

    def flushed(self, path: str) -> bytes:
        """The bytes of a file that certainly survive a loss of power; empty if its name may be lost."""
        node = self._flushed_node(path)
        return bytes(node.data[: node.synced]) if isinstance(node, _Contents) else b""

    def flushed_names(self, path: str) -> Collection[str]:
        """The names in a directory that certainly survive a loss of power."""
        node = self._flushed_node(path)
        return node.synced.keys() if isinstance(node, _Directory) else ()

    def _flushed_node(self, path: str) -> "_Contents | _Directory | None":
        node: _Contents | _Directory | None = self._root
        for part in _parts(path):
            node = node.synced.get(part) if isinstance(node, _Directory) else None
        return node

    def describe(self, path: str) -> str:
        return path or "/"

    def enter(self, operation: str, path: str, size: int) -> None:
        """Called first by every operation."""
        if self.hook is not None:
            self.hook(operation, path, size)
        if size and self.bytes_free is not None:
            if size > self.bytes_free:
                raise StorageError(path, operation, "No space left on device", error_number=errno.ENOSPC)
            self.bytes_free -= size

    def open(self, path: str, *, create: bool = True) -> MemoryFile:
        parent, name = self._parent(path, "open")
        node = parent.names.get(name)
        if node is None:
            if not create:
                raise StorageError(path, "open", "No such file or directory", error_number=errno.ENOENT)
            self.enter("open", path, 0)
            node = _Contents()
            parent.change((name, node))
        if isinstance(node, _Directory):
            raise StorageError(path, "open", "Is a directory", error_number=errno.EISDIR)
        return MemoryFile(self, path, node)

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def list(self, directory: str) -> Names:
        return sorted(self._directory(directory, "list").names)

    def make_directory(self, directory: str) -> None:
        node = self._root
        done: list[str] = []
        for part in _parts(directory):
            done.append(part)
            child = node.names.get(part)
            if child is None:
                self.enter("make directory", "/".join(done), 0)
                child = _Directory()
                node.change((part, child))
            if isinstance(child, _Contents):
                raise StorageError("/".join(done), "make directory", "Not a directory", error_number=errno.ENOTDIR)
            node = child

    def remove(self, path: str) -> None:
        parent, name = self._parent(path, "remove")
        if not isinstance(parent.names.get(name), _Contents):
            raise StorageError(path, "remove", "No such file", error_number=errno.ENOENT)
        self.enter("remove", path, 0)
        parent.change((name, None))

    def remove_tree(self, directory: str) -> None:
        node = self._find(directory)
        if node is None:
            return
        if isinstance(node, _Directory):
            for name in sorted(node.names):
                self.remove_tree(f"{directory}/{name}")
        parent, name = self._parent(directory, "remove")
        self.enter("remove", directory, 0)
        parent.change((name, None))

    def rename(self, old: str, new: str) -> None:
        parent, name = self._parent(old, "rename")
        node = parent.names.get(name)
        if node is None:
            raise StorageError(old, "rename", "No such file or directory", error_number=errno.ENOENT)
        new_parent, new_name = self._parent(new, "rename")
        if new_parent is not parent:
            raise StorageError(old, "rename", "only within one directory")
        self.enter("rename", old, 0)
        parent.change((name, None), (new_name, node))

    def sync_directory(self, directory: str) -> None:
        node = self._directory(directory, "sync")
        self._enter_sync("sync directory", directory)
        node.sync()

    def sync_all(self) -> None:
        if self.has_failed_sync:
            raise StorageError("/", "sync", "an earlier sync failed: bytes written before it may be lost")
        self._enter_sync("sync all", "")
        self._root.sync_all()

    def _enter_sync(self, operation: str, path: str) -> None:
        try:
            self.enter(operation, path, 0)
        except StorageError:
            self.has_failed_sync = True
            raise

    def lock(self, path: str) -> MemoryLock:
        self.enter("lock", path, 0)
        if path in self.locks:
            raise AlreadyLocked(path, None)
        self.locks.add(path)
        return MemoryLock(self, path)

    def _find(self, path: str) -> _Contents | _Directory | None:
        node: _Contents | _Directory | None = self._root
        for part in _parts(path):
            if not isinstance(node, _Directory):
                return None
            node = node.names.get(part)
        return node

    def _directory(self, path: str, operation: str) -> _Directory:
        node = self._find(path)
        if not isinstance(node, _Directory):
            raise StorageError(path, operation, "No such directory", error_number=errno.ENOENT)
        return node

    def _parent(self, path: str, operation: str) -> tuple[_Directory, str]:
        head, _, name = path.rpartition("/")
        return self._directory(head, operation), name


def _parts(path: str) -> Names:
    return path.split("/") if path else []
