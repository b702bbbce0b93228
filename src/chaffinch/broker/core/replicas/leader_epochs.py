"""Whether a node may answer for a partition: it must lead it, or follow where that is enough, under the epoch the client knows (KIP-320).

In Apache Kafka a follower answers consumers that know KIP-392 (Fetch 11 and later), debuggers (`DEBUGGING_REPLICA`) and DescribeProducers;
all else is for the leader. Here the bytes are stored once, so that each member of the in-sync set has the same to say.
"""

from __future__ import annotations

from chaffinch.broker.core.topics.registry import Partition
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import NO_OFFSET

NO_EPOCH = -1
DEBUGGING_REPLICA = -2
"""The replica id of a tool that wants to know what a single replica has."""


def leadership_fault(
    partition: Partition | None, node_id: int, client_epoch: int = NO_EPOCH, *, allows_follower: bool = False
) -> ErrorCode:
    """NONE, 3 (no such partition), 6 (another node leads), 74 (the client's epoch is old) or 75 (it is newer than ours)."""
    if partition is None:
        return codes.UNKNOWN_TOPIC_OR_PARTITION
    if partition.replicas.leader != node_id and not (allows_follower and node_id in partition.replicas.in_sync):
        return codes.NOT_LEADER_OR_FOLLOWER
    if client_epoch == NO_EPOCH or client_epoch == partition.replicas.leader_epoch:
        return codes.NONE
    return codes.FENCED_LEADER_EPOCH if client_epoch < partition.replicas.leader_epoch else codes.UNKNOWN_LEADER_EPOCH


def end_of_epoch(partition: Partition, epoch: int) -> tuple[int, int]:
    """(the largest epoch up to `epoch`, the offset at which a later one begins); -1 and -1 for an epoch that is not, or not yet, one.

    Raises StorageError.
    """
    current = partition.replicas.leader_epoch
    if epoch == current:
        return current, partition.log.log_end_offset
    return (NO_EPOCH, NO_OFFSET) if epoch < 0 or epoch > current else partition.log.end_of_epoch(epoch)
