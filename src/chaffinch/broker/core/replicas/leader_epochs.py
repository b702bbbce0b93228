"""Whether a node may answer for a partition: it must lead it, under the epoch the client knows (KIP-320)."""

from __future__ import annotations

from chaffinch.broker.core.topics.registry import Partition
from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode
from chaffinch.identifiers import NO_OFFSET

NO_EPOCH = -1


def leadership_fault(partition: Partition | None, node_id: int, client_epoch: int = NO_EPOCH) -> ErrorCode:
    """NONE, 3 (no such partition), 6 (another node leads), 74 (the client's epoch is old) or 75 (it is newer than ours)."""
    if partition is None:
        return codes.UNKNOWN_TOPIC_OR_PARTITION
    if partition.replicas.leader != node_id:
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
