"""Simulated disk of a broker: an in-memory file system on which any mutating operation can be interrupted.

It can be full for a while (`fill`, `empty`): only appends are refused then. A process can end in two ways. A killed process leaves all
written bytes, because they are in the page cache; an append in progress is torn. A power loss keeps synced bytes, and of the rest a random
part. `flush.policy=os` promises to survive only the first, so only worlds with `always` get the second.
"""

from __future__ import annotations

from enum import Enum

from chaffinch.storage import journal, log_state, snapshot
from chaffinch.storage.file_system import Interrupted, MemoryFileSystem
from chaffinch.storage.files import NEW_SUFFIX
from chaffinch.storage.segment import CLEANED_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX, NAME_DIGITS
from simulation.world import World

MUTATING = frozenset({"append", "truncate", "sync", "open", "make directory", "remove", "rename", "sync directory", "sync all"})
"""Operations in which a process may die; reads and locks leave nothing half done."""

FIRST_SEGMENT = f"/{0:0{NAME_DIGITS}d}{LOG_SUFFIX}"


class Death(Enum):
    """How a broker process ends."""

    KILLED = "killed"
    POWER_LOST = "power lost"
    STOPPED = "stopped"


class Disk:
    """The disk. `arm` plans a death in a later operation, which then raises Interrupted."""

    def __init__(self, world: World) -> None:
        self.file_system = MemoryFileSystem()
        self.armed_death = Death.KILLED
        """How the process ends when an armed operation raises."""
        self._world = world
        self._operations_left: int | None = None

    def arm(self, operations: int, death: Death = Death.KILLED) -> None:
        """Let the process die in the mutating operation that follows `operations` further ones."""
        self._operations_left = operations
        self.armed_death = death
        self.file_system.hook = self._hook

    @property
    def is_full(self) -> bool:
        return self.file_system.bytes_free is not None

    def fill(self, bytes_left: int) -> None:
        """Allow only this many more bytes to be appended."""
        self._world.log("disk", f"is full except for {bytes_left} bytes")
        self._world.count("full disks")
        self.file_system.bytes_free = bytes_left

    def empty(self) -> None:
        """Free the disk."""
        self._world.log("disk", "has space again")
        self.file_system.bytes_free = None

    def disarm(self) -> None:
        self._operations_left = None
        self.file_system.hook = None

    def _hook(self, operation: str, path: str, size: int) -> None:
        if self._operations_left is None or operation not in MUTATING:
            return
        self._operations_left -= 1
        if self._operations_left < 0:
            self._operations_left = None
            surviving = self._world.rng.randint(0, size)
            self._world.log("disk", f"the process dies in {operation} {path}, {surviving} of {size} bytes are written")
            self._world.count("deaths inside a disk operation")
            if (work := self._interrupted_work(operation, path)) is not None:
                self._world.count(f"deaths inside a {work}")
            raise Interrupted(surviving)

    def _interrupted_work(self, operation: str, path: str) -> str | None:
        """The multi-step work this operation is part of, recognised by its path; None if it is part of none."""
        if operation == "remove":
            return None
        if path.endswith(journal.NEW_SUFFIX):
            return "journal rewrite"
        if path.endswith((CLEANED_SUFFIX, log_state.NAME + NEW_SUFFIX)):
            return "compaction"
        if operation == "open" and path.endswith(LOG_SUFFIX):  # The hook is called only for files that are created.
            return None if path.endswith(FIRST_SEGMENT) else "segment roll"
        is_checkpoint = path.endswith((snapshot.SUFFIX + NEW_SUFFIX, INDEX_SUFFIX))
        is_new = not self.file_system.exists(path.removesuffix(NEW_SUFFIX))  # Compaction replaces files that exist.
        return "segment roll" if is_checkpoint and is_new and self._has_new_segment(path.rpartition("/")[0]) else None

    def _has_new_segment(self, directory: str) -> bool:
        """Whether a new segment follows others and is still empty."""
        logs = sorted(name for name in self.file_system.list(directory) if name.endswith(LOG_SUFFIX))
        return len(logs) > 1 and self.file_system.open(f"{directory}/{logs[-1]}").size == 0

    def end(self, death: Death) -> None:
        """The process is gone; the file system can be opened again."""
        self.disarm()
        if death is Death.POWER_LOST:
            self.file_system.crash(self._surviving_bytes)
        else:
            self.file_system.kill()

    def _surviving_bytes(self, path: str, unsynced: int) -> int:
        """All, nothing, or a random part: the extremes find most defects."""
        rng = self._world.rng
        surviving = rng.choice((0, unsynced, rng.randint(0, unsynced)))
        self._world.log("disk", f"{path or '/'} keeps {surviving} of {unsynced} unsynced")
        self._world.count("unsynced steps lost", unsynced - surviving)
        return surviving
