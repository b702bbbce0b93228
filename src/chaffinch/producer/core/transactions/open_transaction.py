"""One transaction: what belongs to it, and how much of it its coordinator has heard."""

from __future__ import annotations

from dataclasses import dataclass, field

from chaffinch.identifiers import TopicPartition


@dataclass(slots=True)
class OpenTransaction:
    """Of one producer, from its begin to its end."""

    version: int = 1
    """In which it was begun: 2 where the whole cluster speaks that (KIP-890)."""
    added: set[TopicPartition] = field(default_factory=set)
    """Partitions that may be written to."""
    to_add: dict[TopicPartition, None] = field(default_factory=dict)
    """Partitions that have to be added first; in version 1 alone."""
    is_started: bool = False
    """The coordinator may know of it: a request that adds to it was sent."""
    is_known: bool = False
    """It does: such a request was done."""
    is_ended: bool = False
    """It has said that it is committed or aborted."""
    started_ms: int = 0
    """When the first request that adds to it was made: from about then on the coordinator counts its time."""
    sent_end_requests: int = 0
    """EndTxn requests that may have left: what they ask for may have happened."""

    def mark_started(self, steady_ms: int) -> None:
        """A request leaves that adds to it."""
        if not self.is_started:
            self.is_started, self.started_ms = True, steady_ms

    def admits(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition may be written to; if it has to be added first, that is noted."""
        if topic_partition in self.added:
            return True
        if self.version == 1:
            self.to_add[topic_partition] = None
            return False
        self.added.add(topic_partition)
        return True

    def open_ms(self, steady_ms: int) -> int | None:
        """For how long the coordinator has known of it; None where it does not."""
        return steady_ms - self.started_ms if self.is_started else None
