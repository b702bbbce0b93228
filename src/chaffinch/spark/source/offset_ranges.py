"""Which offsets a micro-batch and its tasks read: a limit shared by partitions, ranges divided among tasks, what has come or gone. Pure.

Follows KafkaMicroBatchStream.scala in how a limit is shared; how ranges are divided is our own.
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
    """Ends for at most `limit` offsets: each partition's part is as large as its share of what there is, but never nothing.

    `start` has every partition of `latest`. One that has lost what it had ends where it ends.
    """
    sizes = {tp: max(0, end - start[tp]) for tp, end in latest.items()}
    total = sum(sizes.values())
    if total <= limit:
        return dict(latest)
    return {tp: start[tp] + max(1, limit * size // total) if (size := sizes[tp]) else end for tp, end in latest.items()}


def backlog(start: Offsets, latest: Offsets) -> int:
    """How many offsets there are to read. A partition that `start` does not know counts from 0."""
    return sum(max(0, end - start.get(tp, 0)) for tp, end in latest.items())


def divided(ranges: Iterable[OffsetRange], parts_min: int, offsets_max: int | None) -> list[OffsetRange]:
    """Ranges with something in them, none larger than `offsets_max`, and at least `parts_min` of them as far as there are offsets.

    The largest parts are divided first, each range into parts of equal size.
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
    """The places that an option says, moved to where each partition has something; and what that leaves out, one line each."""
    texts = []
    for tp, position in positions.items():
        if position > latest[tp]:
            texts.append(f"{option}: {tp} ends at offset {latest[tp]}, offset {position} was asked for")
        elif position < first.get(tp, position):
            texts.append(f"{option}: {tp} begins at offset {first[tp]}, offset {position} was asked for")
    return {tp: min(max(position, first.get(tp, position)), latest[tp]) for tp, position in positions.items()}, texts


def losses(start: Offsets, end: Offsets, first_of_new: Offsets, expected: Collection[TopicPartition] = ()) -> list[str]:
    """What was to be read between `start` and `end` and cannot be, one line each.

    `first_of_new`: where the partitions begin that `start` does not know. `expected`: partitions that had an end once.
    """
    gone = sorted({*start, *expected} - end.keys())
    texts = [
        f"{tp} is gone, deleted or not subscribed to any more: "
        + (f"offset {start[tp]} came next" if tp in start else "nothing of it was read")
        for tp in gone
    ]
    texts += [f"{tp} is new and begins at offset {first}, not 0" for tp, first in sorted(first_of_new.items()) if first]
    for tp in sorted(start.keys() & end.keys()):
        if end[tp] < start[tp]:
            texts.append(f"{tp} ends at offset {end[tp]}, offset {start[tp]} came next: it was cut off, or deleted and made again")
    return texts


def ranges(start: Offsets, end: Offsets, first_of_new: Offsets) -> list[OffsetRange]:
    """What there is to read of each partition, in the order of their names; of what `losses` names, what is left."""
    known = {**first_of_new, **start}
    return [OffsetRange(tp, known[tp], end[tp]) for tp in sorted(end)]
