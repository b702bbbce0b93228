"""Snapshots of target topics at planning time: partition counts and record limits (decision 40).

Pure: built from the Metadata and DescribeConfigs responses that `target.py` requests. Tasks validate and partition by a snapshot, and
the committer compares the snapshots of all tasks. The broker detects changes after the snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Defaults of Kafka (TopicConfig, LogConfig), if the broker does not report a value or the principal may not read it.
BATCH_BYTES_MAX_DEFAULT = 1_048_588
TIMESTAMP_BEFORE_MAX_MS_DEFAULT = 2**63 - 1
TIMESTAMP_AFTER_MAX_MS_DEFAULT = 3_600_000
TRANSACTION_TIMEOUT_MAX_MS_DEFAULT = 900_000
OFFSETS_RETENTION_MS_DEFAULT = 7 * 24 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSnapshot:
    """State of one topic at the time of the snapshot. Two snapshots are equal unless something relevant has changed."""

    topic: str
    topic_id: bytes
    """16 bytes; zeros from brokers before 2.8."""
    partition_count: int
    is_compacted: bool = False
    batch_bytes_max: int = BATCH_BYTES_MAX_DEFAULT
    timestamp_type: str = "CreateTime"
    timestamp_before_max_ms: int = TIMESTAMP_BEFORE_MAX_MS_DEFAULT
    timestamp_after_max_ms: int = TIMESTAMP_AFTER_MAX_MS_DEFAULT
    replica_count: int = field(default=1, compare=False)
    """The smallest replica count among its partitions."""
    in_sync_min: int = field(default=1, compare=False)
    """min.insync.replicas: above `replica_count`, acks=all can never succeed (KIP-579)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSnapshot:
    """Topics known at planning time and the broker's limits; sent to the tasks in the pickled writer."""

    topics: tuple[TopicSnapshot, ...]
    reported_timeout_max_ms: int | None = None
    """transaction.max.timeout.ms; None if the broker does not report it."""
    offsets_retention_ms: int = OFFSETS_RETENTION_MS_DEFAULT
    replication_policy: str | None = None
    """`min.insync.replicas.policy`: how the broker treats topics with fewer replicas than min.insync.replicas; None if not reported."""

    @property
    def transaction_timeout_max_ms(self) -> int:
        """The reported limit, or else the default of Kafka."""
        return TRANSACTION_TIMEOUT_MAX_MS_DEFAULT if self.reported_timeout_max_ms is None else self.reported_timeout_max_ms

    def topic(self, name: str) -> TopicSnapshot | None:
        return next((topic for topic in self.topics if topic.topic == name), None)


def topic_snapshot(
    topic: str, topic_id: bytes, partition_count: int, configuration: Mapping[str, str | None], replica_count: int = 1
) -> TopicSnapshot:
    """Build a snapshot from a topic's configuration as in DescribeConfigs. Missing values get the defaults of Kafka."""

    def number(name: str, default: int) -> int:
        text = configuration.get(name)
        return int(text) if text else default

    return TopicSnapshot(
        topic=topic,
        topic_id=topic_id,
        partition_count=partition_count,
        is_compacted="compact" in [part.strip() for part in (configuration.get("cleanup.policy") or "").split(",")],
        batch_bytes_max=number("max.message.bytes", BATCH_BYTES_MAX_DEFAULT),
        timestamp_type=configuration.get("message.timestamp.type") or "CreateTime",
        timestamp_before_max_ms=number("message.timestamp.before.max.ms", TIMESTAMP_BEFORE_MAX_MS_DEFAULT),
        timestamp_after_max_ms=number("message.timestamp.after.max.ms", TIMESTAMP_AFTER_MAX_MS_DEFAULT),
        replica_count=replica_count,
        in_sync_min=number("min.insync.replicas", 1),
    )


def changed_topic(snapshots: tuple[TopicSnapshot, ...]) -> tuple[TopicSnapshot, TopicSnapshot] | None:
    """The first two different snapshots of one topic; None if all tasks saw the same."""
    seen: dict[str, TopicSnapshot] = {}
    for snapshot in snapshots:
        if seen.setdefault(snapshot.topic, snapshot) != snapshot:
            return seen[snapshot.topic], snapshot
    return None


def recreated_topic(used: tuple[TopicSnapshot, ...], now: TargetSnapshot) -> str | None:
    """A topic whose id differs from the one that tasks used. Changed limits do not count: the broker rejects the affected rows."""
    for snapshot in used:
        current = now.topic(snapshot.topic)
        if current is not None and current.topic_id != snapshot.topic_id:
            return snapshot.topic
    return None
