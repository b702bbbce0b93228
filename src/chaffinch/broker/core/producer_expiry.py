"""Forgets producers that have written nothing to a partition for `producer.id.expiration.ms` (Kafka: ProducerStateManager).

By the broker's steady time since their last append: Apache Kafka compares with the records' own timestamps, under which a producer that
writes old events is forgotten while it writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chaffinch.broker.core.topics.registry import Partition, TopicRegistry
from chaffinch.identifiers import TopicPartition

PARTITIONS_PER_CALL = 500
"""A chore's slice: the broker answers requests between two of them."""


class ProducerExpiry:
    """A chore: every `producer.id.expiration.check.interval.ms` it goes through all partitions, some at a time."""

    def __init__(self, topics: TopicRegistry, settings: Mapping[str, Any], now_ms: int) -> None:
        self._topics = topics
        self._settings = settings
        self._left: list[TopicPartition] = []
        self.next_deadline_ms = now_ms + self._interval_ms

    def expire(self, now_ms: int) -> list[str]:
        """One slice of a round. Says nothing: that producers come and go is no news."""
        if not self._left:
            self._left = [partition.topic_partition for partition in self._topics.partitions()]
        for place in self._left[-PARTITIONS_PER_CALL:]:
            partition = self._topics.partition(*place)
            if partition is not None:
                self._forget(partition, now_ms)
        del self._left[-PARTITIONS_PER_CALL:]
        self.next_deadline_ms = now_ms if self._left else now_ms + self._interval_ms
        return []

    def _forget(self, partition: Partition, now_ms: int) -> None:
        partition.log.forget_idle_producers(now_ms, self._settings["producer.id.expiration.ms"])

    @property
    def _interval_ms(self) -> int:
        interval_ms: int = self._settings["producer.id.expiration.check.interval.ms"]
        return interval_ms
