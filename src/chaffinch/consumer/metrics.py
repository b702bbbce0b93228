"""`Consumer.metrics()`: Kafka's metric names (consumer, fetch and coordinator metrics) where Kafka has the number; our own names are
similar.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chaffinch.client.metrics import Metric, count, metadata_age_s
from chaffinch.consumer.core.consumer_core import ConsumerCore


def _lag_max(core: ConsumerCore, steady_ms: int) -> float:
    states = core.subscriptions.assigned.values()
    lags = [state.end - position.offset for state in states if (position := state.consumed) and state.end >= 0]
    return max((lag for lag in lags if lag > 0), default=0)


def _paused(core: ConsumerCore, steady_ms: int) -> float:
    return sum(state.is_paused for state in core.subscriptions.assigned.values())


METRICS: Final[Mapping[str, Metric[ConsumerCore]]] = {
    "records-consumed-total": Metric("records returned by `poll` and `poll_table`", count("records_consumed")),
    "bytes-consumed-total": Metric("bytes of their batches, as received", count("bytes_consumed")),
    "fetch-total": Metric("fetch requests sent", count("fetches_sent")),
    "fetch-answer-total": Metric("fetch responses received", count("fetches_answered")),
    "records-lag-max": Metric("current largest lag of a partition, in records", _lag_max),
    "offset-reset-total": Metric("offsets out of range that were reset by `auto.offset.reset`", count("offset_resets")),
    "assigned-partitions": Metric("currently assigned partitions", lambda core, steady_ms: len(core.subscriptions.assigned)),
    "paused-partitions": Metric("currently paused partitions", _paused),
    "commit-total": Metric("commits sent, including retries", count("commits_sent")),
    "failed-commit-total": Metric("commits that failed", count("commits_failed")),
    "heartbeat-total": Metric("heartbeats sent", count("heartbeats_sent")),
    "join-total": Metric("times this member joined or rejoined its group", count("rebalances")),
    "lost-assignment-total": Metric("times the group removed this member", count("assignments_lost")),
    "metadata-age": Metric("seconds since the last metadata response; -1 before the first", metadata_age_s),
}
