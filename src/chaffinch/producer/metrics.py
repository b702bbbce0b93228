"""`Producer.metrics()`: Kafka's names where Kafka has the number (producer-metrics of its documentation), ours in the same manner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from chaffinch.producer.core.producer_core import ProducerCore


class Metric(NamedTuple):
    """One number: what it says, and where it comes from."""

    text: str
    read: Callable[[ProducerCore, int], float]


def _count(name: str) -> Callable[[ProducerCore, int], float]:
    return lambda core, now_ms: core.wiring.counts[name]


def _metadata_age_s(core: ProducerCore, now_ms: int) -> float:
    updated_ms = core.wiring.cluster.updated_ms
    return -1.0 if updated_ms is None else (now_ms - updated_ms) / 1000


METRICS: Final = {
    "record-send-total": Metric("records in requests sent, repetitions included", _count("records_sent")),
    "record-retry-total": Metric("records of batches that had to go again", _count("records_resent")),
    "record-error-total": Metric("records that failed", _count("records_failed")),
    "record-written-total": Metric("records written", _count("records_written")),
    "record-dropped-total": Metric("records that an exception handler dropped", _count("records_dropped")),
    "records-outstanding": Metric("records without an outcome, now", lambda core, now_ms: core.outstanding_count),
    "batch-send-total": Metric("batches sent, repetitions included", _count("batches_sent")),
    "batch-written-total": Metric("batches written", _count("batches_written")),
    "batch-retry-total": Metric("batches that had to go again", _count("batches_resent")),
    "batch-split-total": Metric("batches halved because a broker found them too large", _count("batches_split")),
    "batch-separated-total": Metric("batches that lost culprits and went on without them", _count("batches_separated")),
    "request-total": Metric("Produce requests sent", _count("requests_sent")),
    "outgoing-byte-total": Metric("bytes of batches sent", _count("bytes_sent")),
    "requests-in-flight": Metric("Produce requests without an answer, now", lambda core, now_ms: core.sending.requests_in_flight),
    "epoch-bump-total": Metric("epochs begun because a sequence was used up", _count("epoch_bumps")),
    "buffer-total-bytes": Metric("`buffer.memory`", lambda core, now_ms: core.accumulator.memory_bytes),
    "buffer-available-bytes": Metric("how much of it is free, now", lambda core, now_ms: core.accumulator.memory_free),
    "waiting-threads": Metric("callers of `send` that wait for memory, now", lambda core, now_ms: core.callers.for_memory),
    "metadata-age": Metric("seconds since the last answer about the cluster; -1 before the first", _metadata_age_s),
}


def read_all(core: ProducerCore, now_ms: int) -> dict[str, float]:
    """Every metric by its name. With the lock held."""
    return {name: metric.read(core, now_ms) for name, metric in METRICS.items()}


def table_markdown() -> str:
    """The metrics as a table for the documentation."""
    rows = [f"| `{name}` | {metric.text} |" for name, metric in METRICS.items()]
    return "\n".join(["| metric | |", "|---|---|", *rows]) + "\n"
