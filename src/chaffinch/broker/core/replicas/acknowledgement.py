"""acks=all: when a write is allowed (KIP-579), and when it is acknowledged: once it is below the high watermark (Kafka's delayed produce).

`min.insync.replicas.policy` selects the result for a topic with min.insync.replicas above its replication factor: `kip579` refuses with an
error that clients do not retry, `legacy` returns NOT_ENOUGH_REPLICAS as before Kafka 3.7, `capped` uses the smaller of the two counts as
Kafka does since 3.7. Markers and offset commits are not checked. The mismatch is checked before the in-sync count, as in the KIP.

Writes wait only if a lagging node is in the partition's in-sync set. The wait ends when the replica is back or has left the in-sync set,
when the leader moves, or after the request's `timeout_ms`. Unlike Apache Kafka since version 4.0 (KIP-966), the high watermark advances
when the set has become too small, as it did before: otherwise NOT_ENOUGH_REPLICAS_AFTER_APPEND would never be returned.
"""

from __future__ import annotations

from dataclasses import dataclass

from chaffinch.broker.core.broker_state import BrokerState
from chaffinch.broker.core.topics.registry import Partition
from chaffinch.errors import codes
from chaffinch.protocol.messages.produce import PartitionProduceResponse
from chaffinch.records.validation_result import Rejected

ACKS_ALL = -1


def replication_fault(broker: BrokerState, partition: Partition, acks: int) -> Rejected | None:
    """The reason why a write with these acks cannot be acknowledged now, or ever; None if it is allowed."""
    topic, replicas = partition.topic, partition.replicas
    in_sync_min = topic.config.in_sync_min
    if acks != ACKS_ALL or in_sync_min <= 1:
        return None
    policy, replica_count, in_sync_count = broker.settings["min.insync.replicas.policy"], len(replicas.assigned), len(replicas.in_sync)
    if policy == "capped":
        in_sync_min = min(in_sync_min, replica_count)
    elif policy == "kip579" and in_sync_min > replica_count:
        return Rejected(
            codes.INCONSISTENT_REPLICATION_FACTOR,
            f"INCONSISTENT_REPLICATION_FACTOR: topic {topic.name} has replication factor {replica_count}, below its min.insync.replicas of "
            f"{in_sync_min}: acks=all can never be satisfied; lower min.insync.replicas or recreate the topic with more replicas",
        )
    if in_sync_count < in_sync_min:
        return Rejected(
            codes.NOT_ENOUGH_REPLICAS,
            f"{in_sync_count} of {replica_count} replicas of topic {topic.name} are in sync, min.insync.replicas requires {in_sync_min}",
        )
    return None


@dataclass(frozen=True, slots=True)
class Unacknowledged:
    """A stored batch that is not yet on every in-sync replica. The high watermark is at the beginning of a batch, or after it."""

    partition: Partition
    answer: PartitionProduceResponse

    def is_over(self, broker: BrokerState, node_id: int) -> bool:
        """Whether the wait is over, successfully or not."""
        partition = self.partition
        return (
            partition.log.high_watermark > self.answer.base_offset
            or partition.replicas.leader != node_id
            or broker.topics.partition(*partition.topic_partition) is not partition
        )

    def refusal(self, broker: BrokerState, node_id: int) -> Rejected | None:
        """The error with which the wait ended; None for success. If it is not over, its time is up."""
        partition = self.partition
        tp, replicas = partition.topic_partition, partition.replicas
        if broker.topics.partition(*tp) is not partition:
            return Rejected(codes.UNKNOWN_TOPIC_OR_PARTITION, f"{tp} was deleted before the batch was on every in-sync replica")
        if replicas.leader != node_id:
            return Rejected(
                codes.NOT_LEADER_OR_FOLLOWER,
                f"node {node_id} lost {tp} to node {replicas.leader} before the batch was on every in-sync replica",
            )
        if partition.log.high_watermark <= self.answer.base_offset:
            lagging = [member for member in replicas.in_sync if member in broker.nodes.lagging]
            return Rejected(
                codes.REQUEST_TIMED_OUT,
                f"the batch is stored in {tp}, but in-sync replicas on nodes {lagging} did not get it in time",
            )
        refused = replication_fault(broker, partition, ACKS_ALL)
        if refused is None:
            return None
        return Rejected(codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND, f"the batch is stored in {tp}, but {refused.message}")
