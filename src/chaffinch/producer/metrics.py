"""Metrics of `Producer.metrics()`: Kafka's names where Kafka has the metric (producer-metrics), and names in the same style otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chaffinch.client.metrics import Metric, count, metadata_age_s
from chaffinch.producer.core.producer_core import ProducerCore

METRICS: Final[Mapping[str, Metric[ProducerCore]]] = {
    "record-send-total": Metric("records in requests sent, including retries", count("records_sent")),
    "record-retry-total": Metric("records of batches that had to be retried", count("records_resent")),
    "record-error-total": Metric("records that failed", count("records_failed")),
    "record-written-total": Metric("records written", count("records_written")),
    "record-dropped-total": Metric("records that an exception handler dropped", count("records_dropped")),
    "record-screened-total": Metric("records that failed unsent: a broker had just refused such records", count("records_screened")),
    "records-outstanding": Metric("current records without an outcome", lambda core, steady_ms: core.outstanding_count),
    "batch-send-total": Metric("batches sent, including retries", count("batches_sent")),
    "batch-written-total": Metric("batches written", count("batches_written")),
    "batch-retry-total": Metric("batches that had to be retried", count("batches_resent")),
    "batch-split-total": Metric("batches halved because a broker found them too large", count("batches_split")),
    "batch-separated-total": Metric("batches that were sent again without their culprits", count("batches_separated")),
    "request-total": Metric("Produce requests sent", count("requests_sent")),
    "outgoing-byte-total": Metric("bytes of batches sent", count("bytes_sent")),
    "requests-in-flight": Metric("Produce requests now in flight", lambda core, steady_ms: core.batch_sender.requests_in_flight),
    "epoch-bump-total": Metric("epochs begun because a sequence was used up", count("epoch_bumps")),
    "buffer-total-bytes": Metric("`buffer.memory`", lambda core, steady_ms: core.accumulator.memory_bytes),
    "buffer-available-bytes": Metric("currently free bytes of `buffer.memory`", lambda core, steady_ms: core.accumulator.memory_unused),
    "waiting-threads": Metric("callers of `send` that currently wait for memory", lambda core, steady_ms: core.callers.memory_waiters),
    "metadata-age": Metric("seconds since the last metadata response; -1 before the first", metadata_age_s),
}
