"""What a log knows that stands in none of its batches: where it starts, how far it is compacted, and a swap of files under way.

Where it starts stands in the name of an empty file, `<offset>.start`: old records must go when the disk is full, and a name needs no
space. The rest is in `log.state`: a line with the CRC-32C of what follows, then JSON; written aside, synced, renamed and its name synced,
so it is one state or the next at every instant, through a loss of power too. Both are absent while everything is as it was at first.
Unlike a snapshot the state is no copy of something: a damaged one is an error. A format names its `version`; version 1 does not.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import NamedTuple

from chaffinch.records.checksum import crc32c
from chaffinch.storage.files import CorruptLog, FileSystem, NewerFormat, write_atomically
from chaffinch.storage.segment import NAME_DIGITS, SegmentMark

NAME = "log.state"
START_SUFFIX = ".start"
FORMAT_VERSION = 2
"""Of a state with lost ranges; without them it is that of version 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """log_start_offset: nothing below it may be read, whatever the segments hold.
    first_dirty_offset: where the next compaction begins to look for keys: everything below has been compacted.
    gaps_below: below this offset compaction may have left gaps; never less than `first_dirty_offset` once that was reached.
    swap: a compacted segment that takes the place of all segments in [base_offset, end_offset), decided and not quite carried out.
    lost: ranges [first, end) whose records are lost, once the user has accepted that; a segment ends and the next begins there.
    """

    log_start_offset: int = 0
    first_dirty_offset: int = 0
    gaps_below: int = 0
    swap: SegmentMark | None = None
    lost: tuple[tuple[int, int], ...] = ()


class Expected(NamedTuple):
    """What a log contained when that was last noted elsewhere: it must start at `start` or later, and end at `end` or later."""

    start: int = 0
    end: int = 0


NOTHING_EXPECTED = Expected()


def write(file_system: FileSystem, directory: str, state: LogState) -> None:
    """Durable on return. On StorageError it is the old state or the new one; the caller goes on with the old one and tries again."""
    fields = asdict(state)
    del fields["log_start_offset"]
    if state.lost:
        fields["version"] = FORMAT_VERSION
    else:
        del fields["lost"]
    body = json.dumps(fields, separators=(",", ":")).encode()
    write_atomically(file_system, f"{directory}/{NAME}", (f"{crc32c(body):08x}\n".encode(), body), syncs=True)
    file_system.sync_directory(directory)


def create_start_file(file_system: FileSystem, directory: str, log_start_offset: int) -> None:
    """Not durable until the directory is synced. After StorageError it may be there or not."""
    file_system.open(_start_path(directory, log_start_offset)).close()


def remove_start_file(file_system: FileSystem, directory: str, log_start_offset: int) -> None:
    """Of an earlier start, once a later one is written."""
    path = _start_path(directory, log_start_offset)
    if file_system.exists(path):
        file_system.remove(path)


def _start_path(directory: str, log_start_offset: int) -> str:
    return f"{directory}/{log_start_offset:0{NAME_DIGITS}d}{START_SUFFIX}"


def start_of(names: Iterable[str]) -> int:
    """Where the log starts whose directory holds `names`, as far as they say; 0 where they do not."""
    starts = [int(name[:NAME_DIGITS]) for name in names if name.endswith(START_SUFFIX) and name[:NAME_DIGITS].isdigit()]
    return max(starts, default=0)


def read(file_system: FileSystem, directory: str, names: Iterable[str]) -> LogState:
    """The state of the log whose directory holds `names`. Raises CorruptLog, NewerFormat, StorageError."""
    log_start_offset = start_of(names)
    if NAME not in names:
        return LogState(log_start_offset=log_start_offset)
    file = file_system.open(f"{directory}/{NAME}", create=False)
    try:
        crc, _, body = file.read(0, file.size).partition(b"\n")
    finally:
        file.close()
    if crc != b"%08x" % crc32c(body):
        raise CorruptLog(file.path, 0, "the CRC is not that of its contents", is_loss=True)
    fields = json.loads(body)
    version = fields.pop("version", 1)
    if version > FORMAT_VERSION:
        raise NewerFormat(file.path, version, FORMAT_VERSION)
    swap = fields.pop("swap")
    lost = tuple((first, end) for first, end in fields.pop("lost", ()))
    return LogState(**fields, log_start_offset=log_start_offset, swap=None if swap is None else SegmentMark(**swap), lost=lost)
