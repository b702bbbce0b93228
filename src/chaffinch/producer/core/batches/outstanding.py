"""Outstanding batches by partition: the unsent ones in the accumulator, and those in flight, to be retried, or returned."""

from __future__ import annotations

from collections.abc import Collection, Set
from typing import Final
from uuid import UUID

from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.producer.core.batches.accumulator import Accumulator
from chaffinch.producer.core.batches.in_flight import PartitionQueue
from chaffinch.producer.core.context import ProducerContext


class Outstanding:
    """The accumulator and the send queue of each partition. A queue is created on first use."""

    def __init__(self, context: ProducerContext, accumulator: Accumulator) -> None:
        self.accumulator: Final = accumulator
        self._context = context
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._busy: dict[TopicPartition, PartitionQueue] = {}
        """Queues used since they were last seen idle, so that a round does not visit every partition ever written to."""
        self._topic_ids: dict[TopicPartition, UUID] = {}

    def queue(self, topic_partition: TopicPartition) -> PartitionQueue:
        """The partition's send queue; it is created on first use."""
        queue = self._queues.get(topic_partition)
        if queue is None:
            queue = self._queues[topic_partition] = PartitionQueue(
                topic_partition,
                is_idempotent=self._context.is_idempotent,
                limit=self._context.requests_per_node_max,
                is_transactional=self._context.transactional_id is not None,
            )
            self._note_topic(queue, frozenset())
        self._busy[topic_partition] = queue
        return queue

    def known_queue(self, topic_partition: TopicPartition) -> PartitionQueue | None:
        """The partition's queue, if anything was ever sent to it."""
        return self._queues.get(topic_partition)

    def busy(self) -> Collection[PartitionQueue]:
        """The queues with batches in flight, to be retried, or returned."""
        if not self._busy:
            return ()
        busy = [queue for queue in self._busy.values() if queue.in_flight or queue.retries or queue.returned]
        if len(busy) < len(self._busy):
            self._busy = {queue.topic_partition: queue for queue in busy}
        return busy

    def need_epoch(self, identity: ProducerIdentity) -> bool:
        """Whether some partition has lost sequence numbers and needs another epoch."""
        return any(queue.needs_epoch(identity) for queue in self._queues.values())

    def note_topics(self, recreated: Set[str]) -> None:
        """Compare topic ids after new metadata. `recreated`: topics that were deleted and created again."""
        for queue in self._queues.values():
            self._note_topic(queue, recreated)

    def _note_topic(self, queue: PartitionQueue, recreated: Set[str]) -> None:
        topic = queue.topic_partition.topic
        topic_id = self._context.cluster.topic_id(topic)
        if topic_id is not None and (topic in recreated or self._topic_ids.get(queue.topic_partition) != topic_id):
            self._topic_ids[queue.topic_partition] = topic_id
            queue.producer_state_lost(is_topic_new=topic in recreated)

    @property
    def is_empty(self) -> bool:
        """Whether every record has its outcome, and every sequence number its response."""
        return self.accumulator.is_empty and not self.busy()

    def partitions(self) -> list[TopicPartition]:
        """Partitions with unsent or unfinished batches."""
        return list(dict.fromkeys([*self.accumulator.partitions(), *[queue.topic_partition for queue in self.busy()]]))

    def first_position(self, topic_partition: TopicPartition) -> int | None:
        """The lowest position of a record without an outcome; None if the partition has none."""
        queue = self._queues.get(topic_partition)
        positions = [] if queue is None else [batch.position for batch in queue.batches() if not batch.is_abandoned]
        waiting = self.accumulator.first_position(topic_partition)
        return min([*positions, *([] if waiting is None else [waiting])], default=None)

    def end_positions(self) -> dict[TopicPartition, int]:
        """The position of the next record, for each partition that has records without an outcome."""
        open_partitions = [tp for tp in self.partitions() if self.first_position(tp) is not None]
        return {topic_partition: self.accumulator.position_next(topic_partition) for topic_partition in open_partitions}

    def count(self) -> int:
        """Number of records without an outcome."""
        return sum(self.count_of(topic_partition) for topic_partition in self.partitions())

    def count_of(self, topic_partition: TopicPartition) -> int:
        """Number of a partition's records without an outcome."""
        first = self.accumulator.first_position(topic_partition)
        waiting = 0 if first is None else self.accumulator.position_next(topic_partition) - first
        return waiting + sum(batch.count for batch in self.queue(topic_partition).batches() if not batch.is_abandoned)

    def oldest_ms(self) -> int | None:
        """When the oldest record without an outcome was appended; None if there is none."""
        waiting = self.accumulator.oldest_ms()
        times = [] if waiting is None else [waiting]
        for queue in self.busy():
            times += [batch.created_ms for batch in queue.batches() if not batch.is_abandoned]
        return min(times, default=None)
