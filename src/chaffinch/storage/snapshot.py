"""Snapshots of a partition log, which spare recovery from reading the whole log.

A snapshot records the intact extent of the log and its producer state at one moment. It is derived data: without one, recovery reads
everything. It is trusted if the log was synced up to it (`is_durable`), or if power has not been lost since then (same `incarnation` of the
file system). File `<log end offset>.snapshot`: a line with the CRC-32C of what follows, then JSON. Written atomically by renaming.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from chaffinch.identifiers import NO_OFFSET
from chaffinch.records.checksum import crc32c
from chaffinch.storage.files import NEW_SUFFIX, File, FileSystem, NewerFormat, StorageError, write_atomically
from chaffinch.storage.log_state import LogState
from chaffinch.storage.segment import NAME_DIGITS, SegmentMark

SUFFIX = ".snapshot"
FORMAT = 1
SNAPSHOTS_RETAINED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot. `segments` ascending; `producers` as `ProducerSequences.to_rows` returns them, or as `from_rows` takes them."""

    incarnation: str
    is_durable: bool
    log_start_offset: int
    log_end_offset: int
    segments: list[SegmentMark]
    producers: list[Any]

    @property
    def is_needed(self) -> bool:
        """Whether it is the only durable record of some producers: it is durable, and segments were deleted."""
        return self.is_durable and self.log_start_offset > 0

    def is_trusted(self, incarnation: str) -> bool:
        return self.is_durable or (self.incarnation != "" and self.incarnation == incarnation)


def name_of(log_end_offset: int) -> str:
    return f"{log_end_offset:0{NAME_DIGITS}d}{SUFFIX}"


def corrected(snapshot: Snapshot, state: LogState) -> Snapshot | None:
    """The snapshot after segments were deleted, and after a compacted one replaced others.

    None if it ends inside the compacted segment: it has no position to continue from.
    """
    swap = state.swap
    if swap is None and state.log_start_offset == 0:
        return snapshot
    marks = [mark for mark in snapshot.segments if mark.end_offset > state.log_start_offset]
    if swap is not None and snapshot.log_end_offset > swap.base_offset and swap.end_offset > state.log_start_offset:
        if snapshot.log_end_offset < swap.end_offset:
            return None
        before = [mark for mark in marks if mark.end_offset <= swap.base_offset]
        marks = [*before, swap, *(mark for mark in marks if mark.base_offset >= swap.end_offset)]
    return replace(snapshot, segments=marks, log_start_offset=max(snapshot.log_start_offset, state.log_start_offset))


def write(file_system: FileSystem, directory: str, snapshot: Snapshot, *, syncs: bool = False) -> str:
    """Write it and return its name. Not synced by default: a snapshot lost with the power is one that was not taken."""
    name = name_of(snapshot.log_end_offset)
    body = _encoded(snapshot)
    write_atomically(file_system, f"{directory}/{name}", (f"{crc32c(body):08x}\n".encode(), body), syncs=syncs)
    return name


def _encoded(snapshot: Snapshot) -> bytes:
    """Encode as JSON. Marks and producers keep their cached text: there may be thousands, and most are unchanged."""
    head = _json(
        {
            "format": FORMAT,
            "incarnation": snapshot.incarnation,
            "is_durable": snapshot.is_durable,
            "log_start_offset": snapshot.log_start_offset,
            "log_end_offset": snapshot.log_end_offset,
        }
    )
    segments = ",".join([mark.text for mark in snapshot.segments])
    producers = ",".join([row if isinstance(row, str) else _json(row) for row in snapshot.producers])
    return f'{head[:-1]},"segments":[{segments}],"producers":[{producers}]}}'.encode()


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def read(file_system: FileSystem, path: str) -> Snapshot | None:
    """Read a snapshot; None if it is damaged or of an earlier format. Raises NewerFormat: it may be needed."""
    file = file_system.open(path, create=False)
    try:
        body = _body(file)
    finally:
        file.close()
    if body is None:
        return None
    fields = json.loads(body)
    version = fields.pop("format")
    if version > FORMAT:
        raise NewerFormat(file.path, version, FORMAT)
    if version < FORMAT:
        return None
    return Snapshot(**{**fields, "segments": [SegmentMark(**mark) for mark in fields["segments"]]})


def _body(file: File) -> bytes | None:
    """The JSON text; None if it is damaged."""
    crc, _, body = file.read(0, file.size).partition(b"\n")
    return body if crc == f"{crc32c(body):08x}".encode() else None


class SnapshotFiles:
    """The snapshot files of one log: the newest two, and the newest durable one, which alone is valid after a loss of power."""

    def __init__(self, file_system: FileSystem, directory: str, names: Sequence[str], durable_offset: int, *, is_usable: bool) -> None:
        self.durable_offset = durable_offset
        """End offset of the newest durable snapshot; -1 if there is none."""
        self.is_usable = is_usable
        """Whether the next start can skip the part that the newest durable snapshot covers."""
        self._names = list(names)  # Oldest first.
        self._file_system = file_system
        self._directory = directory

    def add(self, taken: Snapshot) -> None:
        """Write a snapshot, synced if it is needed, and remove those no longer needed. Raises StorageError."""
        name = write(self._file_system, self._directory, taken, syncs=taken.is_needed)
        if taken.is_durable:
            self.durable_offset, self.is_usable = taken.log_end_offset, True
        if name not in self._names:
            self._names.append(name)
        durable_name = name_of(self.durable_offset)
        for old in [old for old in self._names[:-SNAPSHOTS_RETAINED] if old != durable_name]:
            self._remove(old)

    def sync_durable(self) -> None:
        """Sync the newest durable snapshot, but not its name. Raises StorageError.

        After an error it may be lost, so it is removed, which the next start relies on. While it cannot be removed, later calls raise too.
        """
        if self.durable_offset < 0:
            return
        name = name_of(self.durable_offset)
        path = f"{self._directory}/{name}"
        try:
            file = self._file_system.open(path, create=False)
            try:
                file.sync()
                if _body(file) is None:  # See `File.sync`: it was not open since it was written.
                    raise StorageError(file.path, "sync", "it does not contain what was written: the disk has lost it")
            finally:
                file.close()
        except StorageError as error:
            if error.operation != "open" or not self._file_system.exists(path):  # Without a free descriptor the disk was not read.
                with suppress(StorageError):
                    self._remove(name)
            raise

    def names(self) -> list[str]:
        """Names of the existing snapshots, oldest first."""
        return list(self._names)

    def correct(self, name: str, state: LogState) -> None:
        """Update this snapshot, if it still exists, to the state after a swap; durable except for its name. Raises StorageError."""
        if name not in self._names:
            return
        found = read(self._file_system, f"{self._directory}/{name}")
        right = None if found is None else corrected(found, state)
        if right is None:
            self._remove(name)
        elif right != found:
            write(self._file_system, self._directory, right, syncs=True)

    def _remove(self, name: str) -> None:
        unfinished = f"{self._directory}/{name}{NEW_SUFFIX}"
        if self._file_system.exists(unfinished):  # Left by an error while correcting the snapshot.
            self._file_system.remove(unfinished)
        path = f"{self._directory}/{name}"
        if self._file_system.exists(path):  # Otherwise it was removed already.
            self._file_system.remove(path)
        self._names.remove(name)
        if name == name_of(self.durable_offset):
            self.durable_offset = NO_OFFSET
