"""What the target promises at planning time: partition counts and the limits a record has to keep (decision 40).

Pure: built from the answers of Metadata and DescribeConfigs, which `target.py` asks for. Tasks validate and partition
by a snapshot; the committer compares the snapshots of all tasks. What changes after it was taken, the broker finds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Kafka's defaults (TopicConfig, LogConfig), for a broker that does not tell, or a principal that may not ask.
BATCH_BYTES_MAX_DEFAULT = 1_048_588
TIMESTAMP_BEFORE_MAX_MS_DEFAULT = 2**63 - 1
TIMESTAMP_AFTER_MAX_MS_DEFAULT = 3_600_000
TRANSACTION_TIMEOUT_MAX_MS_DEFAULT = 900_000
OFFSETS_RETENTION_MS_DEFAULT = 7 * 24 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSnapshot:
    """One topic as it was when the snapshot was taken; equal exactly when nothing that matters here has changed."""

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
    """The smallest of its partitions'."""
    in_sync_min: int = field(default=1, compare=False)
    """min.insync.replicas: above `replica_count` acks=all can never be met (KIP-579)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSnapshot:
    """The topics known at planning time and the broker's limits; travels to the tasks inside the pickled writer."""

    topics: tuple[TopicSnapshot, ...]
    reported_timeout_max_ms: int | None = None
    """transaction.max.timeout.ms; None where the broker does not tell."""
    offsets_retention_ms: int = OFFSETS_RETENTION_MS_DEFAULT
    replication_policy: str | None = None
    """What the broker does about topics with fewer replicas than min.insync.replicas, where it tells (`min.insync.replicas.policy`)."""

    @property
    def transaction_timeout_max_ms(self) -> int:
        """What the broker allows, as far as is known."""
        return TRANSACTION_TIMEOUT_MAX_MS_DEFAULT if self.reported_timeout_max_ms is None else self.reported_timeout_max_ms

    def topic(self, name: str) -> TopicSnapshot | None:
        return next((topic for topic in self.topics if topic.topic == name), None)


def topic_snapshot(
    topic: str, topic_id: bytes, partition_count: int, configuration: Mapping[str, str | None], replica_count: int = 1
) -> TopicSnapshot:
    """From a topic's configuration as DescribeConfigs spells it; what is absent has Kafka's default."""

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
    """The first two snapshots of one topic that differ, or None when all tasks saw the same."""
    seen: dict[str, TopicSnapshot] = {}
    for snapshot in snapshots:
        if seen.setdefault(snapshot.topic, snapshot) != snapshot:
            return seen[snapshot.topic], snapshot
    return None


def recreated_topic(used: tuple[TopicSnapshot, ...], now: TargetSnapshot) -> str | None:
    """A topic whose id is not the one that tasks worked with. Limits that changed are no matter: the broker names the rows they concern."""
    for snapshot in used:
        current = now.topic(snapshot.topic)
        if current is not None and current.topic_id != snapshot.topic_id:
            return snapshot.topic
    return None
