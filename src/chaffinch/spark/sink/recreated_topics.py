"""Says in the log that a topic which a query writes to was deleted and created again, when the first batch is written to the new one."""

from __future__ import annotations

from typing import Final

from chaffinch import plain_text
from chaffinch.identifiers import pluralize
from chaffinch.spark.commit.marker import CheckpointState
from chaffinch.spark.commit.plan import CommitPlan
from chaffinch.spark.topic_ids import created_again, shown

_log = plain_text.logger(__name__)
QUERIES_MAX: Final = 1_000
"""Whose topics a process remembers."""
_written: Final[dict[str, CheckpointState]] = {}
"""By query: the topics that this process has written to, where no checkpoint is known that keeps them."""


def warn_recreated_topics(query: str, batch_id: int, before: CheckpointState, now: CheckpointState) -> None:
    """`before` and `now`: what is remembered of the topics, without this batch and with it. A topic without a count has the marker
    alone, and no rows."""
    counts = before.partition_counts
    for topic, (old, new) in created_again(before.topic_ids, now.topic_ids).items():
        if topic in now.partition_counts:
            facts = f"id {shown(new)}, was {shown(old)}; {pluralize(now.partition_counts[topic], 'partition')}"
            facts += f", {'was' if counts[topic] == 1 else 'were'} {counts[topic]}" if topic in counts else ""
            text = f"topic {topic!r} was deleted and created again ({facts}): rows written before are not in it; order per key starts again"
            _log.warning("query %s, batch %d: %s", query, batch_id, text)


def warn_recreated_topics_of_process(plan: CommitPlan) -> None:
    """For a batch that is written by a query whose checkpoint is not known: another process of this query knows nothing of it."""
    before = _written.pop(plan.query, CheckpointState())
    now = before.with_topics(plan.topics_used(), plan.topic_ids, plan.partition_counts)
    warn_recreated_topics(plan.query, plan.batch_id, before, now)
    _written[plan.query] = now
    while len(_written) > QUERIES_MAX:
        del _written[next(iter(_written))]
