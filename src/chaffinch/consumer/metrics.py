"""`Consumer.metrics()`: Kafka's names where Kafka has the number (consumer, fetch and coordinator metrics of its documentation), ours in
the same manner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from chaffinch.consumer.core.consumer_core import ConsumerCore


class Metric(NamedTuple):
    """One number: what it says, and where it comes from."""

    text: str
    read: Callable[[ConsumerCore, int], float]


def _count(name: str) -> Callable[[ConsumerCore, int], float]:
    return lambda core, now_ms: core.wiring.counts[name]


def _lag_max(core: ConsumerCore, now_ms: int) -> float:
    states = core.subscriptions.assigned.values()
    lags = [state.high_watermark - position.offset for state in states if (position := state.consumed) and state.high_watermark >= 0]
    return max((lag for lag in lags if lag > 0), default=0)


def _paused(core: ConsumerCore, now_ms: int) -> float:
    return sum(state.is_paused for state in core.subscriptions.assigned.values())


def _metadata_age_s(core: ConsumerCore, now_ms: int) -> float:
    updated_ms = core.wiring.cluster.updated_ms
    return -1.0 if updated_ms is None else (now_ms - updated_ms) / 1000


METRICS: Final = {
    "records-consumed-total": Metric("records that `poll` and `poll_table` gave", _count("records_consumed")),
    "bytes-consumed-total": Metric("bytes of their batches, as they came", _count("bytes_consumed")),
    "fetch-total": Metric("fetch requests sent", _count("fetches_sent")),
    "fetch-answer-total": Metric("fetch requests answered", _count("fetches_answered")),
    "records-lag-max": Metric("records up to the end of the partition that is furthest behind, now", _lag_max),
    "offset-reset-total": Metric("offsets that were not there, so that `auto.offset.reset` decided", _count("offset_resets")),
    "assigned-partitions": Metric("partitions that are read, now", lambda core, now_ms: len(core.subscriptions.assigned)),
    "paused-partitions": Metric("those of them that are paused, now", _paused),
    "commit-total": Metric("commits sent, repetitions included", _count("commits_sent")),
    "failed-commit-total": Metric("commits that failed", _count("commits_failed")),
    "heartbeat-total": Metric("heartbeats sent", _count("heartbeats_sent")),
    "join-total": Metric("times that this member joined its group, or joined again", _count("rebalances")),
    "lost-assignment-total": Metric("times that the group went on without this member", _count("assignments_lost")),
    "metadata-age": Metric("seconds since the last answer about the cluster; -1 before the first", _metadata_age_s),
}


def read_all(core: ConsumerCore, now_ms: int) -> dict[str, float]:
    """Every metric by its name. With the lock held."""
    return {name: metric.read(core, now_ms) for name, metric in METRICS.items()}


def table_markdown() -> str:
    """The metrics as a table for the documentation."""
    rows = [f"| `{name}` | {metric.text} |" for name, metric in METRICS.items()]
    return "\n".join(["| metric | |", "|---|---|", *rows]) + "\n"
