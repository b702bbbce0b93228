"""Leadership checks: whether a node may respond for a partition, as leader or as an allowed follower, under the client's leader epoch
(KIP-320).

In Apache Kafka a follower serves consumers that support KIP-392 (Fetch 11 and later), debugging tools (`DEBUGGING_REPLICA`) and
DescribeProducers; everything else requires the leader. Here data is stored once, so all members of the in-sync set have the same data.
"""

from __future__ import annotations

from chaffinch.broker.core.topics.registry import Partition
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import NO_OFFSET

NO_EPOCH = -1
DEBUGGING_REPLICA = -2
"""Replica id of a tool that examines a single replica."""


def leadership_fault(
    partition: Partition | None, node_id: int, client_epoch: int = NO_EPOCH, *, allows_follower: bool = False
) -> ErrorCode:
    """NONE, 3 (no such partition), 6 (another node leads), 74 (the client's epoch is old) or 75 (the client's epoch is newer than ours)."""
    if partition is None:
        return codes.UNKNOWN_TOPIC_OR_PARTITION
    if partition.replicas.leader != node_id and not (allows_follower and node_id in partition.replicas.in_sync):
        return codes.NOT_LEADER_OR_FOLLOWER
    if client_epoch == NO_EPOCH or client_epoch == partition.replicas.leader_epoch:
        return codes.NONE
    return codes.FENCED_LEADER_EPOCH if client_epoch < partition.replicas.leader_epoch else codes.UNKNOWN_LEADER_EPOCH


def end_of_epoch(partition: Partition, epoch: int) -> tuple[int, int]:
    """(the largest epoch up to `epoch`, the offset at which a later one begins); (-1, -1) for an epoch that does not exist (yet). Raises
    StorageError.
    """
    current = partition.replicas.leader_epoch
    if epoch == current:
        return current, partition.log.log_end_offset
    return (NO_EPOCH, NO_OFFSET) if epoch < 0 or epoch > current else partition.log.end_of_epoch(epoch)
