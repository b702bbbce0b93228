"""`Consumer.metrics()`: Kafka's names where Kafka has the number (consumer, fetch and coordinator metrics of its documentation), ours in
the same manner.
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
    "records-consumed-total": Metric("records that `poll` and `poll_table` gave", count("records_consumed")),
    "bytes-consumed-total": Metric("bytes of their batches, as they came", count("bytes_consumed")),
    "fetch-total": Metric("fetch requests sent", count("fetches_sent")),
    "fetch-answer-total": Metric("fetch requests answered", count("fetches_answered")),
    "records-lag-max": Metric("records up to the end of the partition that is furthest behind, now", _lag_max),
    "offset-reset-total": Metric("offsets that were not there, so that `auto.offset.reset` decided", count("offset_resets")),
    "assigned-partitions": Metric("partitions that are read, now", lambda core, steady_ms: len(core.subscriptions.assigned)),
    "paused-partitions": Metric("those of them that are paused, now", _paused),
    "commit-total": Metric("commits sent, repetitions included", count("commits_sent")),
    "failed-commit-total": Metric("commits that failed", count("commits_failed")),
    "heartbeat-total": Metric("heartbeats sent", count("heartbeats_sent")),
    "join-total": Metric("times that this member joined its group, or joined again", count("rebalances")),
    "lost-assignment-total": Metric("times that the group went on without this member", count("assignments_lost")),
    "metadata-age": Metric("seconds since the last answer about the cluster; -1 before the first", metadata_age_s),
}
