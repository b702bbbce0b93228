"""Offset ranges of micro-batches and tasks: limits shared by partitions, division among tasks, new and lost partitions. Pure.

A limit is shared as in KafkaMicroBatchStream.scala; ranges are divided differently.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from chaffinch.identifiers import TopicPartition

Offsets = Mapping[TopicPartition, int]


class OffsetRange(NamedTuple):
    """Offsets `start` to `end`-1 of one partition."""

    tp: TopicPartition
    start: int
    end: int


def limited(start: Offsets, latest: Offsets, limit: int) -> dict[TopicPartition, int]:
    """Ends for at most `limit` offsets, shared in proportion to the backlog of each partition, at least one offset each.

    `start` has every partition of `latest`. A partition that has lost records keeps its end.
    """
    sizes = {tp: max(0, end - start[tp]) for tp, end in latest.items()}
    total = sum(sizes.values())
    if total <= limit:
        return dict(latest)
    return {tp: start[tp] + max(1, limit * size // total) if (size := sizes[tp]) else end for tp, end in latest.items()}


def backlog(start: Offsets, latest: Offsets) -> int:
    """The number of offsets to read. A partition that is missing in `start` counts from 0."""
    return sum(max(0, end - start.get(tp, 0)) for tp, end in latest.items())


def divided(ranges: Iterable[OffsetRange], parts_min: int, offsets_max: int | None) -> list[OffsetRange]:
    """Divide into non-empty ranges of at most `offsets_max` offsets, at least `parts_min` of them if there are enough offsets.

    The range with the largest parts is divided further first, always into parts of equal size.
    """
    found = [given for given in ranges if given.start < given.end]
    counts = [1 if offsets_max is None else -(-(given.end - given.start) // offsets_max) for given in found]
    largest = [(-(given.end - given.start) / count, index) for index, (given, count) in enumerate(zip(found, counts, strict=True))]
    heapq.heapify(largest)
    missing = min(parts_min, sum(given.end - given.start for given in found)) - sum(counts)
    for _ in range(missing):
        _, index = largest[0]
        counts[index] += 1
        heapq.heapreplace(largest, (-(found[index].end - found[index].start) / counts[index], index))
    return [part for given, count in zip(found, counts, strict=True) for part in _parts(given, count)]


def _parts(given: OffsetRange, count: int) -> Iterable[OffsetRange]:
    size = given.end - given.start
    for number in range(count):
        yield OffsetRange(given.tp, given.start + size * number // count, given.start + size * (number + 1) // count)


def clamp_to_available(option: str, positions: Offsets, first: Offsets, latest: Offsets) -> tuple[dict[TopicPartition, int], list[str]]:
    """The positions of an option, moved into the available range of each partition, and one line for each that was moved."""
    texts = []
    for tp, position in positions.items():
        if position > latest[tp]:
            texts.append(f"{option}: {tp} ends at offset {latest[tp]}, offset {position} was requested")
        elif position < first.get(tp, position):
            texts.append(f"{option}: {tp} begins at offset {first[tp]}, offset {position} was requested")
    return {tp: min(max(position, first.get(tp, position)), latest[tp]) for tp, position in positions.items()}, texts


def losses(start: Offsets, end: Offsets, first_of_new: Offsets, expected: Collection[TopicPartition] = ()) -> list[str]:
    """Records between `start` and `end` that can no longer be read, one line each.

    `first_of_new`: first offsets of partitions that are missing in `start`. `expected`: partitions that previously had an end.
    """
    gone = sorted({*start, *expected} - end.keys())
    texts = [
        f"{tp} is missing, deleted or no longer subscribed to: " + (f"offset {start[tp]} came next" if tp in start else "it was not read")
        for tp in gone
    ]
    texts += [f"{tp} is new and begins at offset {first}, not 0" for tp, first in sorted(first_of_new.items()) if first]
    for tp in sorted(start.keys() & end.keys()):
        if end[tp] < start[tp]:
            texts.append(f"{tp} ends at offset {end[tp]}, offset {start[tp]} came next: it was truncated, or deleted and created again")
    return texts


def ranges(start: Offsets, end: Offsets, first_of_new: Offsets) -> list[OffsetRange]:
    """The range to read of each partition, sorted; for partitions in `losses` the remaining range."""
    known = {**first_of_new, **start}
    return [OffsetRange(tp, known[tp], end[tp]) for tp in sorted(end)]
