"""Index of the aborted transactions of one segment, which readers of committed records skip.

An entry is written when an abort marker ends a transaction with records in this segment. The layout is that of Kafka's `AbortedTxn`, 34
bytes: version i16 (0) | producer id i64 | first offset i64 | last offset i64 | last stable offset i64. The file is written at checkpoints
only. Recovery derives later entries from the markers in the log.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from operator import attrgetter
from struct import Struct
from typing import NamedTuple

ENTRY = Struct(">hqqqq")
VERSION = 0


class AbortedTransaction(NamedTuple):
    """`last_offset` is the offset of the marker; `last_stable_offset` is that of the log right after the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class AbortedTransactions:
    """Entries in the order of their last offsets."""

    def __init__(self) -> None:
        self._entries: list[AbortedTransaction] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return iter(self._entries)

    def add(self, entry: AbortedTransaction) -> None:
        self._entries.append(entry)

    def ending_from(self, offset: int) -> Iterator[AbortedTransaction]:
        """Entries whose last offset is `offset` or later."""
        for index in range(bisect_left(self._entries, offset, key=attrgetter("last_offset")), len(self._entries)):
            yield self._entries[index]

    def encode(self, start: int) -> bytes:
        """The entries from number `start` on."""
        return b"".join(ENTRY.pack(VERSION, *entry) for entry in self._entries[start:])

    def load(self, data: bytes) -> None:
        """Replace the entries with those in `data`, which must be the output of `encode`."""
        self._entries = [AbortedTransaction(*row[1:]) for row in ENTRY.iter_unpack(data)]


def overlapping(of_segments: Iterable[AbortedTransactions], fetch_offset: int, upper_bound_offset: int) -> list[tuple[int, int]]:
    """(producer id, first offset) of the transactions with offsets in `[fetch_offset, upper_bound_offset)`.

    `of_segments` begins with the segment that holds `fetch_offset`. The search ends at the first marker after which every transaction below
    the upper bound was decided.
    """
    found: list[tuple[int, int]] = []
    for aborted in of_segments:
        for entry in aborted.ending_from(fetch_offset):
            if entry.first_offset < upper_bound_offset:
                found.append((entry.producer_id, entry.first_offset))
            if entry.last_stable_offset >= upper_bound_offset:
                return found
    return found
