"""`for record in consumer`: many records are polled at once and given one by one, and positions follow each one.

What was polled and not given when the loop ends, or when the caller polls, seeks or pauses meanwhile, is given back: read again from there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from chaffinch.consumer.core.consumer_core import ConsumerCore
from chaffinch.consumer.records import ConsumerRecord
from chaffinch.identifiers import TopicPartition


def one_by_one(core: ConsumerCore, lock: threading.Condition, poll: Callable[[], list[ConsumerRecord]]) -> Iterator[ConsumerRecord]:
    """The records of one `poll`."""
    records = poll()
    assigned = core.subscriptions.assigned
    ends: dict[TopicPartition, tuple[int, int]] = {}
    with lock:
        for record in reversed(records):
            place = record.topic_partition
            state = assigned[place]
            state.given = record.offset
            if place not in ends and state.position is not None:
                ends[place] = record.offset, state.position.offset
    try:
        for record in records:
            with lock:
                place = record.topic_partition
                found = core.subscriptions.assigned.get(place)
                if found is None or found.is_paused or not 0 <= found.given <= record.offset:
                    continue
                last, end = ends.get(place, (-1, -1))
                # After the last one nothing is left to give back, though marks of transactions may lie between it and the position.
                found.given = end if record.offset == last else record.offset + 1
            yield record
    finally:
        with lock:
            core.give_back()
