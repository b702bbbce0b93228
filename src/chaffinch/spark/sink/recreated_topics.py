"""Warning about recreated topics: logged when a query writes its first batch to a topic that was deleted and created again."""

from __future__ import annotations

from typing import Final

from chaffinch import plain_text
from chaffinch.identifiers import pluralize
from chaffinch.spark.commit.marker import CheckpointState
from chaffinch.spark.commit.plan import CommitPlan
from chaffinch.spark.topic_ids import created_again, shown

_log = plain_text.logger(__name__)
QUERIES_MAX: Final = 1_000
"""Queries whose topics a process remembers."""
_written: Final[dict[str, CheckpointState]] = {}
"""By query: the topics that this process has written to, if no checkpoint is known that records them."""


def warn_recreated_topics(query: str, batch_id: int, before: CheckpointState, now: CheckpointState) -> None:
    """`before` and `now`: the recorded topics without and with this batch. A topic without a count has only the marker, and no rows."""
    counts = before.partition_counts
    for topic, (old, new) in created_again(before.topic_ids, now.topic_ids).items():
        if topic in now.partition_counts:
            facts = f"id {shown(new)}, was {shown(old)}; {pluralize(now.partition_counts[topic], 'partition')}"
            facts += f", {'was' if counts[topic] == 1 else 'were'} {counts[topic]}" if topic in counts else ""
            text = f"topic {topic!r} was deleted and created again ({facts}): rows written before are lost; the order per key starts again"
            _log.warning("query %s, batch %d: %s", query, batch_id, text)


def warn_recreated_topics_of_process(plan: CommitPlan) -> None:
    """For a batch of a query whose checkpoint is unknown: other processes of the query do not know these topics."""
    before = _written.pop(plan.query, CheckpointState())
    now = before.with_topics(plan.topics_used(), plan.topic_ids, plan.partition_counts)
    warn_recreated_topics(plan.query, plan.batch_id, before, now)
    _written[plan.query] = now
    while len(_written) > QUERIES_MAX:
        del _written[next(iter(_written))]
