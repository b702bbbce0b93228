"""Which batches of a fetch answer a reader of committed records may see (KIP-98). Pure.

Follows Kafka's consumer (CompletedFetch): the answer lists aborted transactions by producer and first offset. Before each
batch, those that begin at or before its last offset become active; an abort marker of that producer ends it; transactional
batches of a producer with an active one are skipped, and control batches always.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from chaffinch.records.batch import BatchView
from chaffinch.records.control_batch import read_control


def committed(views: Iterable[BatchView], aborted: Iterable[tuple[int, int]]) -> Iterator[tuple[BatchView, bool]]:
    """Each batch, in order, and whether its records are to be handed out. `aborted`: (producer id, first offset), any order."""
    coming = [(first_offset, producer_id) for producer_id, first_offset in aborted]
    heapq.heapify(coming)
    active: set[int] = set()
    for view in views:
        header = view.header
        while coming and coming[0][0] <= header.last_offset:
            active.add(heapq.heappop(coming)[1])
        if header.is_control:
            is_commit, _ = read_control(view)
            if is_commit is False:
                active.discard(header.producer_id)
            yield view, False
        else:
            yield view, not (header.is_transactional and header.producer_id in active)
