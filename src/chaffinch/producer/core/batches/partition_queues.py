"""The queues of all partitions: made when first asked for, and told when their topic is another one of the same name."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from chaffinch.identifiers import ProducerIdentity, TopicPartition
from chaffinch.producer.core.batches.in_flight import PartitionQueue
from chaffinch.producer.core.wiring import Wiring
from chaffinch.protocol.primitives import ZERO_UUID


class PartitionQueues:
    """What is under way, by partition."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._busy: dict[TopicPartition, PartitionQueue] = {}
        """Those asked for since they were last seen idle: a round must not look at every partition that was ever written."""
        self._topic_ids: dict[TopicPartition, UUID] = {}
        self._known_ids: dict[TopicPartition, set[UUID]] = {}
        """All that were heard: a broker that lags behind may tell of an older one again."""

    def of(self, topic_partition: TopicPartition) -> PartitionQueue:
        """The partition's queue."""
        queue = self._queues.get(topic_partition)
        if queue is None:
            queue = self._queues[topic_partition] = PartitionQueue(
                topic_partition,
                is_idempotent=self._wiring.is_idempotent,
                limit=self._wiring.requests_per_node_max,
                is_transactional=self._wiring.transactional_id is not None,
            )
            self._note_topic(queue)
        self._busy[topic_partition] = queue
        return queue

    def get(self, topic_partition: TopicPartition) -> PartitionQueue | None:
        """The partition's queue, if there was anything to send."""
        return self._queues.get(topic_partition)

    def busy(self) -> Collection[PartitionQueue]:
        """Those of partitions with something under way, or that came back."""
        if not self._busy:
            return ()
        busy = [queue for queue in self._busy.values() if queue.in_flight or queue.retries or queue.returned]
        if len(busy) < len(self._busy):
            self._busy = {queue.topic_partition: queue for queue in busy}
        return busy

    def need_epoch(self, identity: ProducerIdentity) -> bool:
        """Whether sequences of some partition are used up for nothing."""
        return any(queue.needs_epoch(identity) for queue in self._queues.values())

    def metadata_heard(self) -> None:
        """Metadata has come: a topic may have been deleted and made anew."""
        for queue in self._queues.values():
            self._note_topic(queue)

    def _note_topic(self, queue: PartitionQueue) -> None:
        topic_id = self._wiring.cluster.topic_id(queue.topic_partition.topic)
        if topic_id is not None and self._topic_ids.get(queue.topic_partition) != topic_id:
            self._topic_ids[queue.topic_partition] = topic_id
            known = self._known_ids.setdefault(queue.topic_partition, set())
            queue.broker_is_new(is_topic_new=bool(known) and topic_id != ZERO_UUID and topic_id not in known)
            known |= {topic_id} - {ZERO_UUID}
