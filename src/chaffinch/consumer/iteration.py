"""`for record in consumer`: many records are polled at once and given one by one, and positions follow each one.

What was polled and not given when the loop ends, or when the caller polls, seeks or pauses meanwhile, is given back: read again from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from chaffinch.consumer.core.consumer_core import ConsumerCore
from chaffinch.consumer.records import ConsumerRecord
from chaffinch.identifiers import TopicPartition


@dataclass(frozen=True, slots=True)
class Marked:
    """Records of one poll, noted as not given yet. `ends`: of each partition the last of them, and the position behind it."""

    records: list[ConsumerRecord]
    ends: dict[TopicPartition, tuple[int, int]]


def mark(core: ConsumerCore, records: list[ConsumerRecord]) -> Marked:
    """Note that none of these is given yet."""
    assigned = core.subscriptions.assigned
    ends: dict[TopicPartition, tuple[int, int]] = {}
    for record in reversed(records):
        place = record.topic_partition
        state = assigned[place]
        if state.has_renewed:
            continue  # The topic was deleted meanwhile: `one_by_one` gives nothing more of it.
        state.given = record.offset
        if place not in ends and state.position is not None:
            ends[place] = record.offset, state.position.offset
    return Marked(records, ends)


def one_by_one(core: ConsumerCore, marked: Marked, give_back: Callable[[], object]) -> Iterator[ConsumerRecord]:
    """Give each; `give_back` is called at the end, for those that were not."""
    left: set[TopicPartition] = set()
    try:
        for record in marked.records:
            place = record.topic_partition
            found = core.subscriptions.assigned.get(place)
            if place in left or found is None or found.is_paused or not 0 <= found.given <= record.offset:
                left.add(place)  # For good: what comes behind it in another portion is not next, resumed or not.
                continue
            last, end = marked.ends.get(place, (-1, -1))
            # After the last one nothing is left to give back, though marks of transactions may lie between it and the position. Nothing
            # is called before it is given: Ctrl-C comes with calls, and a record that is noted as given must be.
            found.given = end if record.offset == last else record.offset + 1
            yield record
    finally:
        give_back()
