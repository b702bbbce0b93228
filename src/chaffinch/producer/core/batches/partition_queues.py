"""The queues of all partitions: made when first asked for, and told when their topic is another one of the same name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
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
        self._known_ids: dict[str, set[UUID]] = {}
        """All ids seen for each name: a broker that lags behind may answer with an earlier one."""

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

    def metadata_heard(self, topics: Iterable[str]) -> set[str]:
        """Metadata of these topics has come. Those that were deleted and created again: their id was never seen before, another one was."""
        renewed = set()
        for topic in topics:
            topic_id = self._wiring.cluster.topic_id(topic)
            if topic_id is None or topic_id == ZERO_UUID:
                continue
            known = self._known_ids.setdefault(topic, set())
            if known and topic_id not in known:
                renewed.add(topic)
            known.add(topic_id)
        for queue in self._queues.values():
            self._note_topic(queue, renewed)
        return renewed

    def _note_topic(self, queue: PartitionQueue, renewed: Set[str] = frozenset()) -> None:
        topic = queue.topic_partition.topic
        topic_id = self._wiring.cluster.topic_id(topic)
        if topic_id is not None and (topic in renewed or self._topic_ids.get(queue.topic_partition) != topic_id):
            self._topic_ids[queue.topic_partition] = topic_id
            queue.broker_is_new(is_topic_new=topic in renewed)
