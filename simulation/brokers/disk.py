"""A broker's disk: a file system in memory that can be cut off in the middle of any operation (decision 35).

It can be full for a while (`fill`, `empty`): appends are refused then, and nothing else is. Two ends: a process that is killed leaves what
it wrote (the page cache has it), torn inside the append in hand; a loss of power keeps what was synced and, of the rest, as much as the
dice say. `flush.policy=os` promises only the first, so only `always` gets the second.
"""

from __future__ import annotations

from enum import Enum

from chaffinch.storage import journal, log_state, snapshot
from chaffinch.storage.file_system import Interrupted, MemoryFileSystem
from chaffinch.storage.files import NEW_SUFFIX
from chaffinch.storage.segment import CLEANED_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX, NAME_DIGITS
from simulation.world import World

MUTATING = frozenset({"append", "truncate", "sync", "open", "make directory", "remove", "rename", "sync directory", "sync all"})
"""Operations at which a process may die; reading and locking leave nothing half done."""

FIRST_SEGMENT = f"/{0:0{NAME_DIGITS}d}{LOG_SUFFIX}"


class Death(Enum):
    """How a broker's process ends."""

    KILLED = "killed"
    POWER_LOST = "power lost"
    STOPPED = "stopped"


class Disk:
    """See the module. `arm` plans a death at an operation to come; the operation then raises Interrupted."""

    def __init__(self, world: World) -> None:
        self.file_system = MemoryFileSystem()
        self.armed_death = Death.KILLED
        """How the process ends when an armed operation raises."""
        self._world = world
        self._operations_left: int | None = None

    def arm(self, operations: int, death: Death = Death.KILLED) -> None:
        """The process dies in the changing operation after `operations` more of them."""
        self._operations_left = operations
        self.armed_death = death
        self.file_system.hook = self._hook

    @property
    def is_full(self) -> bool:
        return self.file_system.bytes_free is not None

    def fill(self, bytes_left: int) -> None:
        """From now on only so many bytes can be appended."""
        self._world.log("disk", f"is full but for {bytes_left} bytes")
        self._world.count("full disks")
        self.file_system.bytes_free = bytes_left

    def empty(self) -> None:
        """There is space again."""
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
        """Which of the works that take several operations this one is part of, told by its path; None if of none that can be told so."""
        if operation == "remove":
            return None
        if path.endswith(journal.NEW_SUFFIX):
            return "journal rewrite"
        if path.endswith((CLEANED_SUFFIX, log_state.NAME + NEW_SUFFIX)):
            return "compaction"
        if operation == "open" and path.endswith(LOG_SUFFIX):  # Only what is made comes by here.
            return None if path.endswith(FIRST_SEGMENT) else "segment roll"
        is_checkpoint = path.endswith((snapshot.SUFFIX + NEW_SUFFIX, INDEX_SUFFIX))
        is_new = not self.file_system.exists(path.removesuffix(NEW_SUFFIX))  # Compaction corrects those that are there.
        return "segment roll" if is_checkpoint and is_new and self._has_new_segment(path.rpartition("/")[0]) else None

    def _has_new_segment(self, directory: str) -> bool:
        """Whether a segment has begun behind others, and has no records yet."""
        logs = sorted(name for name in self.file_system.list(directory) if name.endswith(LOG_SUFFIX))
        return len(logs) > 1 and self.file_system.open(f"{directory}/{logs[-1]}").size == 0

    def end(self, death: Death) -> None:
        """The process is gone; the file system may be opened anew."""
        self.disarm()
        if death is Death.POWER_LOST:
            self.file_system.crash(self._surviving_bytes)
        else:
            self.file_system.kill()

    def _surviving_bytes(self, path: str, unsynced: int) -> int:
        """All, nothing, or anything between: the ends are what goes wrong most often."""
        rng = self._world.rng
        surviving = rng.choice((0, unsynced, rng.randint(0, unsynced)))
        self._world.log("disk", f"{path or '/'} keeps {surviving} of {unsynced} unsynced")
        self._world.count("unsynced steps lost", unsynced - surviving)
        return surviving
