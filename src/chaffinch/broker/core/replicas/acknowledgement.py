"""When a write with acks=all is acknowledged: once it lies below the high watermark (Kafka's delayed produce).

Only a partition with a lagging in-sync replica lets anybody wait. The wait ends when the replica is back or has left the in-sync set, when
the leader moves, or after the request's `timeout_ms`. Unlike Apache Kafka since version 4.0 (KIP-966) the high watermark moves on when the
set has become too small, as it did before: otherwise NOT_ENOUGH_REPLICAS_AFTER_APPEND would never be answered.
"""

from __future__ import annotations

from dataclasses import dataclass

from chaffinch.broker.core.append import Refusal
from chaffinch.broker.core.broker_state import BrokerState
from chaffinch.broker.core.replicas import replication_check
from chaffinch.broker.core.topics.registry import Partition
from chaffinch.errors import codes
from chaffinch.protocol.messages.produce import PartitionProduceResponse


@dataclass(frozen=True, slots=True)
class Unacknowledged:
    """A batch that is stored and not yet on every in-sync replica. The high watermark stands at the beginning of a batch, or after it."""

    partition: Partition
    answer: PartitionProduceResponse

    def is_over(self, broker: BrokerState, node_id: int) -> bool:
        """Whether nothing is left to wait for, be the end good or bad."""
        partition = self.partition
        return (
            partition.log.high_watermark > self.answer.base_offset
            or partition.replicas.leader != node_id
            or broker.topics.partition(*partition.topic_partition) is not partition
        )

    def refusal(self, broker: BrokerState, node_id: int) -> Refusal | None:
        """How the wait ended: None for the good end. Not over means that time is."""
        partition = self.partition
        place, replicas = partition.topic_partition, partition.replicas
        if broker.topics.partition(*place) is not partition:
            return Refusal(
                code=codes.UNKNOWN_TOPIC_OR_PARTITION, message=f"{place} was deleted before the batch was on every in-sync replica"
            )
        if replicas.leader != node_id:
            return Refusal(
                code=codes.NOT_LEADER_OR_FOLLOWER,
                message=f"node {node_id} lost {place} to node {replicas.leader} before the batch was on every in-sync replica",
            )
        if partition.log.high_watermark <= self.answer.base_offset:
            lagging = [member for member in replicas.in_sync if member in broker.nodes.lagging]
            return Refusal(
                code=codes.REQUEST_TIMED_OUT,
                message=f"the batch is stored in {place}, but in-sync replicas on nodes {lagging} did not get it in time",
            )
        refused = replication_check.check(
            acks=replication_check.ACKS_ALL,
            policy=broker.settings["min.insync.replicas.policy"],
            in_sync_min=partition.topic.config.in_sync_min,
            replica_count=len(replicas.assigned),
            in_sync_count=len(replicas.in_sync),
            topic=place.topic,
        )
        if refused is None:
            return None
        return Refusal(code=codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND, message=f"the batch is stored in {place}, but {refused.message}")
