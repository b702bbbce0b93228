"""`for record in consumer`: many records are polled at once and given one by one, and positions follow each one.

What was polled and not given when the loop ends, or when the caller polls, seeks or pauses meanwhile, is given back: read again from there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from chaffinch.consumer.core.consumer_core import ConsumerCore
from chaffinch.consumer.records import ConsumerRecord


def one_by_one(core: ConsumerCore, lock: threading.Condition, poll: Callable[[], list[ConsumerRecord]]) -> Iterator[ConsumerRecord]:
    """The records of one `poll`."""
    records = poll()
    assigned = core.subscriptions.assigned
    with lock:
        for record in reversed(records):
            assigned[record.topic_partition].given = record.offset
    try:
        for record in records:
            with lock:
                state = core.subscriptions.assigned.get(record.topic_partition)
                if state is None or state.is_paused or not 0 <= state.given <= record.offset:
                    continue
                state.given = record.offset + 1
            yield record
    finally:
        with lock:
            core.give_back()
