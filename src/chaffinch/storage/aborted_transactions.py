"""The aborted transactions of one segment: what a reader of committed records must leave out.

An entry is written when an abort marker ends a transaction that has data here. Layout as in Kafka's `AbortedTxn`, 34 bytes:
version i16 (0) | producer id i64 | first offset i64 | last offset i64 | last stable offset i64.
The file follows the log at checkpoints only; recovery derives the rest from the markers in the log.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from operator import attrgetter
from struct import Struct
from typing import NamedTuple

ENTRY = Struct(">hqqqq")
VERSION = 0


class AbortedTransaction(NamedTuple):
    """`last_offset` is the marker's; `last_stable_offset` is what it was right after the marker."""

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
        """Those whose last offset is `offset` or later."""
        for index in range(bisect_left(self._entries, offset, key=attrgetter("last_offset")), len(self._entries)):
            yield self._entries[index]

    def encode(self, start: int) -> bytes:
        """The entries from number `start` on."""
        return b"".join(ENTRY.pack(VERSION, *entry) for entry in self._entries[start:])

    def load(self, data: bytes) -> None:
        """Replace the entries by those of `data`, which is known to be what `encode` gave."""
        self._entries = [AbortedTransaction(*row[1:]) for row in ENTRY.iter_unpack(data)]


def overlapping(of_segments: Iterable[AbortedTransactions], fetch_offset: int, upper_bound_offset: int) -> list[tuple[int, int]]:
    """(producer id, first offset) of those with offsets in `[fetch_offset, upper_bound_offset)`; `of_segments`: from the one that
    `fetch_offset` belongs to on. Looks no further than to the first marker with which all below the upper bound was decided."""
    found: list[tuple[int, int]] = []
    for aborted in of_segments:
        for entry in aborted.ending_from(fetch_offset):
            if entry.first_offset < upper_bound_offset:
                found.append((entry.producer_id, entry.first_offset))
            if entry.last_stable_offset >= upper_bound_offset:
                return found
    return found
