"""KIP-579: may a write with acks=all be satisfied at all, and can it be now?

`min.insync.replicas.policy` decides what a topic with min.insync.replicas above its replication factor gets:
`kip579` a refusal that clients do not retry, `legacy` NOT_ENOUGH_REPLICAS as before Kafka 3.7, `capped` the smaller of the two counts as
since.
Markers and offset commits are never asked. The mismatch comes before the in-sync count, as in the KIP.
"""

from __future__ import annotations

from typing import NamedTuple

from chaffinch.errors import codes
from chaffinch.errors.codes import ErrorCode

ACKS_ALL = -1
POLICIES = ("kip579", "legacy", "capped")


class ReplicationRefusal(NamedTuple):
    code: ErrorCode
    message: str


def check(*, acks: int, policy: str, in_sync_min: int, replica_count: int, in_sync_count: int, topic: str) -> ReplicationRefusal | None:
    """None when the write may go on. `in_sync_min` is the topic's min.insync.replicas."""
    if acks != ACKS_ALL or in_sync_min <= 1:
        return None
    if policy == "capped":
        in_sync_min = min(in_sync_min, replica_count)
    elif policy == "kip579" and in_sync_min > replica_count:
        return ReplicationRefusal(
            codes.INCONSISTENT_REPLICATION_FACTOR,
            f"INCONSISTENT_REPLICATION_FACTOR: topic {topic} has replication factor {replica_count}, below its min.insync.replicas of "
            f"{in_sync_min}: acks=all can never be satisfied; lower min.insync.replicas or recreate the topic with more replicas",
        )
    if in_sync_count < in_sync_min:
        return ReplicationRefusal(
            codes.NOT_ENOUGH_REPLICAS,
            f"{in_sync_count} of {replica_count} replicas of topic {topic} are in sync, min.insync.replicas asks for {in_sync_min}",
        )
    return None
