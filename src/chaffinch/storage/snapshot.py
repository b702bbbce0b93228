"""Snapshots of a partition: what spares recovery from reading the whole log.

A snapshot says how far the log was intact, and what its producers were, at one moment. It is derived: without one, recovery reads all.
It may be trusted when the log was synced up to it (`is_durable`), or when power was not lost since (same `incarnation` of the file system).
File `<log end offset>.snapshot`: a line with the CRC-32C of what follows, then JSON. Written aside and renamed, so never seen in part.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

from chaffinch.records.checksum import crc32c
from chaffinch.storage.files import FileSystem
from chaffinch.storage.segment import NAME_DIGITS, SegmentMark

SUFFIX = ".snapshot"
NEW_SUFFIX = ".new"
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """`segments` ascending; `producers` as `ProducerSequences.to_rows` gives them."""

    incarnation: str
    is_durable: bool
    log_start_offset: int
    log_end_offset: int
    segments: list[SegmentMark]
    producers: list[list[Any]]

    def is_trusted(self, incarnation: str) -> bool:
        return self.is_durable or (self.incarnation != "" and self.incarnation == incarnation)


def name_of(log_end_offset: int) -> str:
    return f"{log_end_offset:0{NAME_DIGITS}d}{SUFFIX}"


def write(file_system: FileSystem, directory: str, snapshot: Snapshot) -> str:
    """Write it and return its name. Not synced: a snapshot lost with the power is one that was not taken."""
    name = name_of(snapshot.log_end_offset)
    body = json.dumps({"format": FORMAT, **asdict(snapshot)}, separators=(",", ":")).encode()
    path = f"{directory}/{name}"
    if file_system.exists(path + NEW_SUFFIX):
        file_system.remove(path + NEW_SUFFIX)
    file = file_system.open(path + NEW_SUFFIX)
    try:
        file.append((f"{crc32c(body):08x}\n".encode(), body))
    finally:
        file.close()
    file_system.rename(path + NEW_SUFFIX, path)
    return name


def read(file_system: FileSystem, path: str) -> Snapshot | None:
    """None when it is damaged or of another format: then it is as if it were not there."""
    file = file_system.open(path, create=False)
    try:
        crc, _, body = file.read(0, file.size).partition(b"\n")
    finally:
        file.close()
    if crc != f"{crc32c(body):08x}".encode():
        return None
    fields = json.loads(body)
    if fields.pop("format") != FORMAT:
        return None
    return Snapshot(**{**fields, "segments": [SegmentMark(**mark) for mark in fields["segments"]]})
