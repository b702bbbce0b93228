"""Which records have no outcome: those that wait in the accumulator, and those that are under way or have come back."""

from __future__ import annotations

from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core.batches.accumulator import Accumulator
from chaffinch.producer.core.batches.partition_queues import PartitionQueues


class Outstanding:
    """A view of both places; it changes neither."""

    def __init__(self, accumulator: Accumulator, queues: PartitionQueues) -> None:
        self._accumulator = accumulator
        self._queues = queues

    @property
    def is_empty(self) -> bool:
        """Whether every record has its outcome, and every number its answer."""
        return self._accumulator.is_empty and not self._queues.busy()

    def partitions(self) -> list[TopicPartition]:
        """Partitions with something in either place."""
        return list(dict.fromkeys([*self._accumulator.partitions(), *[queue.topic_partition for queue in self._queues.busy()]]))

    def first_position(self, topic_partition: TopicPartition) -> int | None:
        """The lowest position of a record without an outcome; None when the partition has none."""
        queue = self._queues.get(topic_partition)
        positions = [] if queue is None else [batch.position for batch in queue.batches() if not batch.is_done]
        waiting = self._accumulator.first_position(topic_partition)
        return min([*positions, *([] if waiting is None else [waiting])], default=None)

    def ends(self) -> dict[TopicPartition, int]:
        """Of each partition with such a record: the position that its next record will have."""
        open_partitions = [tp for tp in self.partitions() if self.first_position(tp) is not None]
        return {topic_partition: self._accumulator.position_next(topic_partition) for topic_partition in open_partitions}

    def count(self) -> int:
        """How many records."""
        count = 0
        for topic_partition in self.partitions():
            count += self.count_of(topic_partition)
        return count

    def count_of(self, topic_partition: TopicPartition) -> int:
        """How many records of one partition."""
        first = self._accumulator.first_position(topic_partition)
        waiting = 0 if first is None else self._accumulator.position_next(topic_partition) - first
        return waiting + sum(batch.count for batch in self._queues.of(topic_partition).batches() if not batch.is_done)
