"""What is said when a broker starts, or is told to create a topic: of topics to which writes with acks=all will fail, and why, and of logs
that no topic has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from chaffinch.broker.core.topics.registry import Topic, TopicRegistry
from chaffinch.errors import codes
from chaffinch.identifiers import counted

NAMES_MAX: Final = 5
"""Topics that one line names; others are counted."""


def of_nodes(topics: Iterable[Topic], node_count: int) -> Iterator[str]:
    """At most one line: replicas lie on nodes that an earlier start declared and this one does not."""
    highest = {topic.name: max(node for partition in topic.partitions for node in partition.replicas.assigned) for topic in topics}
    lost = [name for name, node in highest.items() if node >= node_count]
    if lost:
        wanted = 1 + max(highest.values())
        yield (
            f"{counted(len(lost), 'topic')} with replicas on nodes that are not declared: {_named(lost)}. Those nodes count as stopped: "
            f"partitions may lack a leader, and acks=all may get {codes.NOT_ENOUGH_REPLICAS.name}. To have them all, start with "
            f"--brokers {wanted} (in Python brokers={wanted})"
        )


def of_directories(topics: TopicRegistry) -> Iterator[str]:
    """At most one line: logs of no topic. What tells of a topic is on disk before its first record, so its entry was lost or never made."""
    unknown = topics.directories_without_topic()
    if unknown:
        yield (
            f"logs of no topic in {topics.directory}: {_named(unknown)}. They are left as they are: a creation was cut short there, or the "
            "end of journals/cluster.journal is lost, and with it what came last of topics"
        )


def of_replication(topics: Iterable[Topic], policy: str) -> Iterator[str]:
    """At most one line: min.insync.replicas above the replication factor (KIP-579)."""
    if policy == "capped":
        return
    counts = [(topic, min(len(partition.replicas.assigned) for partition in topic.partitions)) for topic in topics]
    found = [f"{topic.name} ({topic.config.in_sync_min} of {count})" for topic, count in counts if topic.config.in_sync_min > count]
    if found:
        yield (
            f"{counted(len(found), 'topic')} with min.insync.replicas above the replication factor: {_named(found)}. acks=all can never "
            "succeed there (KIP-579): lower min.insync.replicas, or create the topic with more replicas"
        )


def _named(names: Sequence[str]) -> str:
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")
