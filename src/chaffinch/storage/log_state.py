"""What a log knows that stands in none of its batches: where it starts, how far it is compacted, and a swap of files under way.

File `log.state` beside the segments: a line with the CRC-32C of what follows, then JSON. It is written aside, synced, renamed and its
name synced, so it is one state or the next at every instant, through a loss of power too. Absent while everything is as it was at first.
Unlike a snapshot it is no copy of something: a damaged one is an error.
"""

import json
from dataclasses import asdict, dataclass

from chaffinch.records.checksum import crc32c
from chaffinch.storage.files import CorruptLog, FileSystem
from chaffinch.storage.segment import SegmentMark

NAME = "log.state"
NEW_NAME = NAME + ".new"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """log_start_offset: nothing below it may be read, whatever the segments hold.
    first_dirty_offset: where the next compaction begins to look for keys: everything below has been compacted.
    gaps_below: below this offset compaction may have left gaps; never less than `first_dirty_offset` once that was reached.
    swap: a compacted segment that takes the place of all segments in [base_offset, end_offset), decided and not quite carried out.
    """

    log_start_offset: int = 0
    first_dirty_offset: int = 0
    gaps_below: int = 0
    swap: SegmentMark | None = None


def write(file_system: FileSystem, directory: str, state: LogState) -> None:
    """Durable on return. On StorageError it is the old state or the new one; the caller goes on with the old one and tries again."""
    body = json.dumps(asdict(state), separators=(",", ":")).encode()
    new_path = f"{directory}/{NEW_NAME}"
    if file_system.exists(new_path):
        file_system.remove(new_path)
    file = file_system.open(new_path)
    try:
        file.append((f"{crc32c(body):08x}\n".encode(), body))
        file.sync()
    finally:
        file.close()
    file_system.rename(new_path, f"{directory}/{NAME}")
    file_system.sync_directory(directory)


def read(file_system: FileSystem, directory: str) -> LogState:
    """The state of a log that has one. Raises CorruptLog, StorageError."""
    file = file_system.open(f"{directory}/{NAME}", create=False)
    try:
        crc, _, body = file.read(0, file.size).partition(b"\n")
    finally:
        file.close()
    if crc != b"%08x" % crc32c(body):
        raise CorruptLog(file.path, 0, "the CRC is not that of its contents")
    fields = json.loads(body)
    swap = fields.pop("swap")
    return LogState(**fields, swap=None if swap is None else SegmentMark(**swap))
