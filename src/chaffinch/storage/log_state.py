"""State of a log that its batches do not contain: start offset, compaction progress, and a pending swap of segments.

The start offset is the name of an empty file, `<offset>.start`: old records must be deletable on a full disk, and a name needs no space.
The rest is in `log.state`: a line with the CRC-32C of what follows, then JSON. It is written to a temporary file, synced and renamed, and
the name is synced. So it is one state or the next at every moment, also across a loss of power. Both files are absent while the defaults
apply. Unlike a snapshot the state cannot be derived again: a damaged one is an error. The format has a `version`; version 1 omits it.
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
"""Format of a state with lost ranges; without them it is version 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """State of a log, as in the module's description.

    log_start_offset: nothing below it may be read, even if segments hold it.
    first_dirty_offset: everything below has been compacted; the next compaction reads keys from here.
    gaps_below: below this offset compaction may have left gaps; never less than a `first_dirty_offset` that was reached.
    swap: a compacted segment that replaces all segments in [base_offset, end_offset), decided but not finished.
    lost: ranges [first, end) of lost records whose loss the user accepted; a segment ends and the next begins there.
    """

    log_start_offset: int = 0
    first_dirty_offset: int = 0
    gaps_below: int = 0
    swap: SegmentMark | None = None
    lost: tuple[tuple[int, int], ...] = ()


class Expected(NamedTuple):
    """Last recorded extent of a log: it must start at `start` or later, and end at `end` or later."""

    start: int = 0
    end: int = 0


NOTHING_EXPECTED = Expected()


def write(file_system: FileSystem, directory: str, state: LogState) -> None:
    """Durable on return. After StorageError the old or the new state is on disk; the caller continues with the old one and retries."""
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
    """Create the start file. Not durable until the directory is synced. After StorageError it may exist or not."""
    file_system.open(_start_path(directory, log_start_offset)).close()


def remove_start_file(file_system: FileSystem, directory: str, log_start_offset: int) -> None:
    """Remove the start file of an earlier start, once a later one exists."""
    path = _start_path(directory, log_start_offset)
    if file_system.exists(path):
        file_system.remove(path)


def _start_path(directory: str, log_start_offset: int) -> str:
    return f"{directory}/{log_start_offset:0{NAME_DIGITS}d}{START_SUFFIX}"


def start_of(names: Iterable[str]) -> int:
    """Start offset from the file `names` of the log's directory; 0 without a start file."""
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
        raise CorruptLog(file.path, 0, "the CRC does not match its contents", is_loss=True)
    fields = json.loads(body)
    version = fields.pop("version", 1)
    if version > FORMAT_VERSION:
        raise NewerFormat(file.path, version, FORMAT_VERSION)
    swap = fields.pop("swap")
    lost = tuple((first, end) for first, end in fields.pop("lost", ()))
    return LogState(**fields, log_start_offset=log_start_offset, swap=None if swap is None else SegmentMark(**swap), lost=lost)
