"""OpenTransaction: the partitions of one transaction, and how much the coordinator knows of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from chaffinch.identifiers import TopicPartition


@dataclass(slots=True)
class OpenTransaction:
    """One transaction, from begin to end."""

    version: int = 1
    """Version of the transaction protocol: 2 if the whole cluster supports it (KIP-890)."""
    added: set[TopicPartition] = field(default_factory=set)
    """Partitions that may be written to."""
    to_add: dict[TopicPartition, None] = field(default_factory=dict)
    """Partitions that must be added first; only in version 1."""
    is_started: bool = False
    """The coordinator may know of it: a request that adds to it was sent."""
    is_known: bool = False
    """The coordinator knows it: such a request has succeeded."""
    is_ended: bool = False
    """The coordinator has reported it as committed or aborted."""
    started_ms: int = 0
    """When the first request that adds to it was sent: about the start of its time-out on the coordinator."""
    sent_end_requests: int = 0
    """Number of EndTxn requests that may have been sent, and applied."""

    def mark_started(self, steady_ms: int) -> None:
        """Record that a request that adds to it is sent."""
        if not self.is_started:
            self.is_started, self.started_ms = True, steady_ms

    def admits(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition may be written to. If it must be added first, schedule that."""
        if topic_partition in self.added:
            return True
        if self.version == 1:
            self.to_add[topic_partition] = None
            return False
        self.added.add(topic_partition)
        return True

    def open_ms(self, steady_ms: int) -> int | None:
        """For how long the coordinator has known it; None if it does not."""
        return steady_ms - self.started_ms if self.is_started else None
